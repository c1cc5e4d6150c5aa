import hashlib
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from support import object_stores
from support.s3_proxy import Proxy

from trainrig import storage
from trainrig.errors import ClusterError, ConfigError, DataError
from trainrig.storage import bucket_files, retries, s3_objects, schemes

_containers = (f"container-{number}" for number in itertools.count())
ALL = pytest.mark.parametrize("place", ["disk", "s3", "gs", "az"], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a folder on the disk or in a bucket."""
    if request.param == "disk":
        return str(tmp_path / "folder")
    return f"{request.getfixturevalue(request.param)}/folder"


@pytest.fixture
def gs(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a bucket as `gs://bucket`, of a server that moto, or the test's proxy, answers for."""
    with object_stores.serve_google(os.environ["AWS_ENDPOINT_URL"]) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setattr(retries, "RETRY_SECONDS", 5.0)
        schemes.make_backend.cache_clear()
        yield s3.replace("s3://", "gs://")
    schemes.make_backend.cache_clear()


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """Yield the address of Azurite."""
    if object_stores.AZURITE is None:
        pytest.skip("azurite is not installed; name its `azurite-blob` in AZURITE")
    with object_stores.serve_azure() as address:
        yield address


@pytest.fixture
def az(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a new container of Azurite as `az://container`."""
    container = next(_containers)
    object_stores.create_container(azurite, container)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azurite)
    monkeypatch.setattr(retries, "RETRY_SECONDS", 5.0)
    schemes.make_backend.cache_clear()
    yield f"az://{container}"
    schemes.make_backend.cache_clear()


# All kinds of storage: what each of them must do


@ALL
@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5])
def test_written_data_is_read_back(place: str, data: bytes) -> None:
    path = storage.join(place, "sub", "file.bin")
    storage.write(path, data)
    assert storage.read(path) == data
    assert storage.measure_size(path) == len(data)
    assert storage.exists(path)
    assert storage.compute_sha256(path) == hashlib.sha256(data).hexdigest()
    assert storage.open_read(path).read() == data
    storage.write(path, b"other")
    assert storage.read(path) == b"other"


@ALL
@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 1280), (700, 703), (1279, 1280), (9, 5000)])
def test_a_range_of_bytes_is_that_of_the_file(place: str, begin: int, end: int) -> None:
    data = bytes(range(256)) * 5
    storage.write(storage.join(place, "file"), data)
    assert storage.read_range(storage.join(place, "file"), begin, end) == data[begin:end]
    with pytest.raises(FileNotFoundError):
        storage.read_range(storage.join(place, "other"), begin, end)


@ALL
@pytest.mark.parametrize(("begin", "length"), [(0, 3), (700, 580), (1279, 5), (1280, 5), (9000, 5)])
def test_a_buffer_is_filled_as_far_as_the_file_goes(place: str, begin: int, length: int) -> None:
    data = bytes(range(256)) * 5
    storage.write(storage.join(place, "file"), memoryview(data))
    buffer = bytearray(length)
    count = storage.read_into(storage.join(place, "file"), begin, memoryview(buffer))
    wanted = data[begin : begin + length]
    assert (count, buffer[:count]) == (len(wanted), wanted)
    with pytest.raises(FileNotFoundError):
        storage.read_into(storage.join(place, "other"), begin, memoryview(buffer))


@ALL
def test_names_that_need_escapes_are_names_like_others(place: str) -> None:
    path = storage.join(place, "a b+c%20é?#&.txt")
    storage.write(path, b"odd")
    assert storage.list_files(place) == [path]
    assert storage.read(path) == b"odd"


@ALL
def test_a_file_appears_only_when_its_block_ends(place: str) -> None:
    path = storage.join(place, "file")
    with storage.atomic_file(path) as temporary:
        Path(temporary).write_bytes(b"whole")
        assert not storage.exists(path)
        assert storage.list_files(place) == []
    assert storage.read(path) == b"whole"


@ALL
def test_a_block_that_fails_leaves_what_was_there(place: str, tmp_path: Path) -> None:
    path = storage.join(place, "file")
    storage.write(path, b"old")
    with pytest.raises(ZeroDivisionError), storage.atomic_file(path) as temporary:
        Path(temporary).write_bytes(b"new")
        raise ZeroDivisionError
    assert storage.read(path) == b"old"
    assert not Path(temporary).exists()


@ALL
def test_only_the_first_of_two_creations_counts(place: str) -> None:
    path = storage.join(place, "lock")
    assert storage.create(path, b"first")
    assert not storage.create(path, b"second")
    assert storage.read(path) == b"first"
    assert storage.list_files(place) == [path]
    storage.delete(path)
    assert storage.create(path, b"third")


@ALL
def test_one_of_sixteen_threads_creates_a_file(place: str) -> None:
    for round_ in range(2):
        path = storage.join(place, f"lock-{round_}")
        start = threading.Barrier(16)

        def compete(number: int, path: str = path, start: threading.Barrier = start) -> bool:
            start.wait()
            return storage.create(path, b"%d" % number)

        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(compete, range(16)))
        assert won.count(True) == 1
        assert storage.read(path) == b"%d" % won.index(True)


def test_one_of_sixteen_processes_creates_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import os, sys; from trainrig import storage; print('ready', flush=True); "
        "sys.stdin.readline(); "
        "print(storage.create(sys.argv[1], str(os.getpid()).encode()))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(16)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    answers = {child.pid: child.communicate("go\n")[0].strip() for child in children}
    winners = [pid for pid, answer in answers.items() if answer == "True"]
    assert sorted(answers.values()) == ["False"] * 15 + ["True"]
    assert path.read_text() == str(winners[0])


@ALL
def test_files_are_listed_by_folder_and_suffix_in_order(place: str) -> None:
    for name in ("b.txt", "a/z.txt", "a/c/d.json", "a.txt", ".hidden.txt", "a/.part"):
        storage.write(storage.join(place, name), b"")
    storage.write(f"{place}-beside/e.txt", b"")

    def listed(*arguments: str) -> list[str]:
        return [path.removeprefix(f"{place}/") for path in storage.list_files(*arguments)]

    assert listed(place) == ["a.txt", "a/c/d.json", "a/z.txt", "b.txt"]
    assert listed(f"{place}/", ".json") == ["a/c/d.json"]
    assert listed(place, "/z.txt") == ["a/z.txt"]
    assert listed(f"{place}/none") == []


@ALL
def test_sizes_and_folders_are_listed_too(place: str) -> None:
    for name, data in {"b.txt": b"12", "a/z.txt": b"", "a/c/d.json": b"{}", "e/.f": b"x"}.items():
        storage.write(storage.join(place, name), data)
    sizes = {path.removeprefix(f"{place}/"): s for path, s in storage.list_sizes(place).items()}
    assert sizes == {"b.txt": 2, "a/z.txt": 0, "a/c/d.json": 2}
    assert storage.list_folders(place) == [f"{place}/a", f"{place}/e"]
    assert storage.list_folders(f"{place}/a/") == [f"{place}/a/c"]
    assert storage.list_folders(f"{place}/none") == []
    assert storage.list_sizes(f"{place}/none") == {}


@ALL
def test_deleting_takes_one_file_or_all_below_a_folder(place: str) -> None:
    for name in ("a", "sub/b", "sub/deep/c", "sub/.part", "subway"):
        storage.write(storage.join(place, name), b"")
    storage.delete(f"{place}/a")
    storage.delete(f"{place}/a")
    storage.delete_folder(f"{place}/sub")
    storage.delete_folder(f"{place}/sub")
    assert storage.list_files(place) == [f"{place}/subway"]
    assert not storage.exists(f"{place}/sub/.part")


@ALL
def test_many_files_are_treated_as_each_of_them(place: str, tmp_path: Path) -> None:
    names = [f"{part}/{number}" for part in ("a", "b c") for number in range(6)]
    paths = [storage.join(place, name) for name in [*names, "d/one"]]
    for number, path in enumerate(paths):
        storage.write(path, b"x" * number)
    local = str(tmp_path / "local")
    storage.write(local, b"local")
    mixed = [paths[7], local, *paths[:3], paths[7]]
    assert list(storage.read_files(mixed)) == [storage.read(path) for path in mixed]
    assert storage.compute_content_keys(mixed) == [storage.compute_content_key(p) for p in mixed]
    missing = [storage.join(place, "a/none"), storage.join(place, "none/a"), f"{local}-none"]
    sizes = storage.measure_sizes([*missing, *mixed, storage.join(place, "a")])
    assert list(sizes.items()) == [(p, storage.measure_size(p)) for p in dict.fromkeys(mixed)]
    for look in (storage.read_files, storage.compute_content_keys):
        with pytest.raises(FileNotFoundError, match="a/none"):
            list(look([*paths, *missing]))
    storage.delete_files([*missing, *paths[3:], local])
    assert storage.list_files(place) == paths[:3]
    assert not storage.exists(local)
    storage.move_files({path: f"{path}-moved" for path in paths[:2]})
    assert storage.list_files(place) == [f"{paths[0]}-moved", f"{paths[1]}-moved", paths[2]]
    assert [storage.measure_size(path) for path in storage.list_files(place)] == [0, 1, 2]


@ALL
def test_the_first_file_is_the_first_that_is_listed(place: str) -> None:
    assert storage.find_first(place) is None
    storage.write(storage.join(place, ".hidden"), b"")
    assert storage.find_first(place) is None
    for name in ("b", "a/c/d"):
        storage.write(storage.join(place, name), b"")
    storage.write(f"{place}-beside/a", b"")
    assert storage.find_first(f"{place}/") == storage.list_files(place)[0]


@ALL
@pytest.mark.parametrize(
    "look",
    [
        storage.read,
        storage.measure_size,
        storage.open_read,
        storage.compute_sha256,
        storage.compute_content_key,
    ],
)
def test_a_missing_file_is_not_found(place: str, look: Callable[[str], object]) -> None:
    storage.write(f"{place}/sub/file", b"")
    assert not storage.exists(f"{place}/none")
    assert not storage.exists(f"{place}/sub")
    with pytest.raises(FileNotFoundError, match=f"{place}/none"):
        look(f"{place}/none")


@ALL
def test_the_content_key_changes_with_the_bytes_and_only_with_them(place: str) -> None:
    path = f"{place}/file"
    keys = []
    for data in (b"one", b"two", b"three", b"one"):
        storage.write(path, data)
        keys.append(storage.compute_content_key(path))
    # Azure gives each write another ETag, so that the same bytes written again count as a change.
    new_each_time = place.startswith("az")
    assert len(set(keys)) == 3 + new_each_time
    assert (keys[0] == keys[3]) == (not new_each_time)


@ALL
def test_a_local_file_has_the_bytes(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    storage.write(f"{place}/file", b"bytes")
    assert storage.fetch_local_path(f"{place}/file").read_bytes() == b"bytes"


@pytest.mark.parametrize(
    ("folder", "names", "path"),
    [
        ("a", ("b", "c"), "a/b/c"),
        ("a/", ("b",), "a/b"),
        ("/", ("b",), "/b"),
        ("", ("b",), "b"),
        ("./a", ("b",), "./a/b"),
        ("s3://bucket", ("b",), "s3://bucket/b"),
        ("s3://bucket/a/", ("b",), "s3://bucket/a/b"),
    ],
)
def test_names_are_joined_below_their_folder(
    folder: str, names: tuple[str, ...], path: str
) -> None:
    assert storage.join(folder, *names) == path


def test_a_file_url_is_the_path(tmp_path: Path) -> None:
    storage.write(f"file://{tmp_path}/a", b"x")
    assert storage.list_files(f"file://{tmp_path}") == [f"{tmp_path}/a"]
    assert storage.make_absolute(f"file://{tmp_path}/a") == f"{tmp_path}/a"
    assert not storage.is_remote("file:///a")
    assert storage.is_absolute("file:///a")


def test_a_scheme_without_storage_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^ftp://a/b: there is no storage for ftp://.*s3://"):
        storage.read("ftp://a/b")


def test_a_cloud_whose_package_is_missing_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    schemes.make_backend.cache_clear()
    with pytest.raises(ConfigError, match=r"^gs://b/k: .*pip install -e '.*\[gcs\]'"):
        storage.read("gs://b/k")


@pytest.mark.parametrize("key", ["a//run", "a/../c", "a/./c"])
def test_a_key_that_another_cloud_refuses_is_the_users_mistake(gs: str, key: str) -> None:
    with pytest.raises(ConfigError, match=r"^gs://.*no such key.*leave out empty parts"):
        storage.exists(f"{gs}/{key}")


FORK = """
import os, sys
from trainrig import storage
from trainrig.errors import ClusterError

storage.write(sys.argv[1], b"x")
child = os.fork()
if child == 0:
    try:
        storage.read(sys.argv[1])
    except ClusterError as error:
        os._exit(7 if "forked after" in str(error) else 1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("cloud", "code"), [("s3", 0), ("gs", 7)])
def test_a_fork_after_a_request_is_refused_where_the_library_would_hang(
    request: pytest.FixtureRequest, cloud: str, code: int
) -> None:
    file = f"{request.getfixturevalue(cloud)}/file"
    assert subprocess.run([sys.executable, "-c", FORK, file]).returncode == code


@pytest.mark.slow
def test_other_clouds_outlast_a_burst_of_503_too(
    proxy: Proxy, gs: str, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_a_burst(act: Callable[[], object], how: str = "slow_down") -> object:
        proxy.how = how
        proxy.times = 4
        result = act()
        assert proxy.times == 0
        return result

    path = f"{gs}/folder/file"
    in_a_burst(lambda: storage.write(path, b"data"))
    assert in_a_burst(lambda: storage.read(path)) == b"data"
    assert in_a_burst(lambda: storage.list_sizes(gs)) == {path: 4}
    assert in_a_burst(lambda: storage.create(f"{path}2", b"x")) is True
    assert in_a_burst(lambda: storage.create(f"{path}3", b"x"), "lose_answer") is True
    in_a_burst(lambda: storage.write(f"{gs}/large", large))
    assert storage.read(f"{gs}/large") == large
    in_a_burst(lambda: storage.delete(path))
    assert not storage.exists(path)
    proxy.how = "forbidden"
    proxy.times = 1_000
    proxy.seen.clear()
    with pytest.raises(ClusterError, match=r"^gs://.*/file: .*403"):
        storage.read(path)
    assert len(proxy.seen) == 1


def test_another_cloud_without_the_bucket_says_so(gs: str) -> None:
    for act in (storage.list_files, storage.read, lambda path: storage.write(path, b"")):
        with pytest.raises(DataError, match=r"^gs://no-such.*: the bucket does not exist"):
            act("gs://no-such-bucket/folder")


# The disk

STOPPED_BEFORE_ITS_NAME = """
import os, signal, sys
from support import object_stores

from trainrig import storage
def stop(descriptor):
    print("written, not yet named", flush=True)
    signal.pause()
os.fsync = stop
action, path = sys.argv[1:]
if action == "atomic_file":
    with storage.atomic_file(path) as temporary:
        open(temporary, "wb").write(b"new")
else:
    getattr(storage, action)(path, b"new")
"""


@pytest.mark.chaos
@pytest.mark.parametrize("action", ["write", "create", "atomic_file"])
def test_a_writer_killed_in_mid_write_leaves_nothing_under_the_name(
    tmp_path: Path, action: str
) -> None:
    path = str(tmp_path / "file")
    kill_at_first_line([sys.executable, "-c", STOPPED_BEFORE_ITS_NAME, action, path])
    assert not storage.exists(path)
    assert storage.list_files(str(tmp_path)) == []
    # The last write was complete.
    assert [name.read_bytes() for name in tmp_path.iterdir()] == [b"new"]
    storage.write(path, b"again")
    assert storage.read(path) == b"again"


def kill_at_first_line(command: list[str]) -> None:
    """Start `command`, wait for its first output, and kill it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.kill()
    assert child.returncode == -signal.SIGKILL


def test_a_file_written_over_a_folder_is_refused_by_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        storage.write(str(folder), b"data")
    assert caught.value.filename == str(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_local_file_is_itself() -> None:
    assert storage.fetch_local_path("some/file") == Path("some/file")


# S3

steps = st.lists(
    st.tuples(st.just("seek"), st.integers(0, 120), st.sampled_from([0, 1, 2]))
    | st.tuples(st.just("read"), st.integers(-1, 70), st.just(0))
    | st.tuples(st.just("readinto"), st.integers(0, 70), st.just(0)),
    max_size=8,
)


@given(st.integers(0, 100).map(range).map(bytes), steps)
@example(bytes(range(100)), [("read", 5, 0), ("read", -1, 0), ("seek", 120, 0), ("read", 1, 0)])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_object_reads_and_seeks_like_its_bytes(
    s3: str, data: bytes, steps: list[tuple[str, int, int]]
) -> None:
    storage.write(f"{s3}/file", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_files, "READ_BLOCK", 16)  # 100 bytes then need several requests
        ours = storage.open_read(f"{s3}/file")
        theirs = io.BytesIO(data)
    assert ours.seekable()
    assert ours.readable()
    for action, number, whence in steps:
        if action == "seek":
            offset = number - {0: 0, 1: theirs.tell(), 2: len(data)}[whence]
            assert ours.seek(offset, whence) == theirs.seek(offset, whence)
        elif action == "read":
            assert ours.read(number) == theirs.read(number)
        else:
            into = bytearray(number)
            reference = bytearray(number)
            assert ours.readinto(into) == theirs.readinto(reference)  # type: ignore[attr-defined]
            assert into == reference
        assert ours.tell() == theirs.tell()


def test_more_objects_than_fit_one_answer_are_all_listed(s3: str) -> None:
    names = [f"many/{number:04}" for number in range(1_001)]  # one answer holds 1000
    server = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for name in names:
        server.put_object(s3.removeprefix("s3://"), name, b"")
    assert storage.list_files(f"{s3}/many") == [f"{s3}/{name}" for name in names]


def test_a_folder_made_in_the_console_is_no_file(s3: str) -> None:
    storage.write(f"{s3}/made/", b"")
    assert storage.list_files(f"{s3}/made") == []
    assert storage.list_files(s3) == []
    storage.delete_folder(f"{s3}/made")
    assert not storage.exists(f"{s3}/made/")


def test_a_whole_bucket_is_a_folder_and_no_file(s3: str) -> None:
    storage.write(f"{s3}/file", b"")
    assert not storage.exists(s3)
    assert storage.list_files(s3) == [f"{s3}/file"]


def test_a_download_is_kept_until_the_object_changes(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    storage.write(f"{s3}/file", b"one")
    first = storage.fetch_local_path(f"{s3}/file")
    first_inode = first.stat().st_ino
    assert first.parent == tmp_path / "trainrig"
    assert storage.fetch_local_path(f"{s3}/file") == first
    assert first.stat().st_ino == first_inode
    storage.write(f"{s3}/file", b"two")
    second = storage.fetch_local_path(f"{s3}/file")
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: storage.write(f"{folder}/file", b""),
        lambda folder: storage.create(f"{folder}/file", b""),
        lambda folder: storage.delete(f"{folder}/file"),
        storage.list_files,
        lambda folder: storage.read(f"{folder}/file"),
    ],
)
def test_a_bucket_that_is_not_there_is_the_users_to_fix(
    s3: str, act: Callable[[str], object]
) -> None:
    with pytest.raises(DataError, match=r"^s3://no-such.*: the bucket does not exist"):
        act("s3://no-such-bucket/folder")


# S3 with failures


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of pauses between storage's own attempts, which are skipped."""
    waits: list[float] = []
    for module in (bucket_files, s3_objects):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.mark.slow
def test_reads_and_writes_outlast_a_burst_of_503(proxy: Proxy, s3: str) -> None:
    def in_a_burst(act: Callable[[], object]) -> object:
        proxy.times = 5  # boto3's own default gives up after 3
        result = act()
        assert proxy.times == 0
        return result

    path = f"{s3}/folder/file"
    in_a_burst(lambda: storage.write(path, b"data"))
    assert in_a_burst(lambda: storage.read(path)) == b"data"
    assert in_a_burst(lambda: storage.measure_size(path)) == 4
    assert in_a_burst(lambda: storage.list_files(s3)) == [path]
    assert in_a_burst(lambda: storage.open_read(path).read()) == b"data"
    assert in_a_burst(lambda: storage.create(path, b"x")) is False
    assert in_a_burst(lambda: storage.create(f"{path}2", b"x")) is True
    in_a_burst(lambda: storage.delete(path))
    assert not storage.exists(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "act",
    [
        storage.read,
        storage.measure_size,
        storage.exists,
        storage.list_files,
        storage.delete,
        lambda path: storage.write(path, b""),
        lambda path: storage.create(path, b""),
    ],
)
def test_a_503_without_end_is_the_clusters_fault(
    proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]
) -> None:
    # A tenth of a second for each rejected request, without waiting.
    clock = SimpleNamespace(monotonic=itertools.count(step=0.1).__next__)
    monkeypatch.setattr(retries, "time", clock)
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.0)
    proxy.times = 100_000
    with (
        retries.briefly(),
        pytest.raises(ClusterError, match=r"^s3://.*/file: .*(SlowDown|503)"),
    ):
        act(f"{s3}/file")
    assert len(proxy.seen) > 10


@pytest.mark.slow
def test_a_dozen_requests_at_once_outlast_a_bucket_that_refuses_now_and_then(
    proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bucket rejects three tenths of requests, as under load, and once all for longer."""
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(retries, "RETRY_SECONDS", 60.0)
    monkeypatch.setattr(retries, "SAID_AFTER", 0.5)
    monkeypatch.setattr(retries, "_said", float("-inf"))
    storage.write(f"{s3}/file", b"data")
    began = time.monotonic()

    def refuses(method: str, path: str) -> bool:
        at = time.monotonic() - began
        return at < 1.5 or at % 0.5 < 0.15

    proxy.spoil = refuses
    proxy.times = 10**9
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(storage.exists, [f"{s3}/file"] * 60)) == [True] * 60
    said = [message for message in caplog.messages if "have failed for" in message]
    assert len(said) == 1 and "503" in said[0] and "trying again for up to 60 s" in said[0]


def test_a_body_that_is_cut_off_is_read_again(proxy: Proxy, s3: str, waits: list[float]) -> None:
    data = os.urandom(100_000)
    storage.write(f"{s3}/file", data)
    proxy.how = "cut"
    proxy.times = 4
    proxy.spoil = lambda method, path: method == "GET"
    assert storage.read(f"{s3}/file") == data
    assert proxy.times == 0
    assert all(0 <= wait <= 0.1 * 2**attempt for attempt, wait in enumerate(waits))
    proxy.times = 4
    assert storage.open_read(f"{s3}/file").read() == data
    assert len(waits) == 8


@pytest.mark.slow
def test_a_body_that_is_always_cut_off_is_given_up(
    proxy: Proxy, s3: str, waits: list[float]
) -> None:
    storage.write(f"{s3}/file", b"data")
    proxy.how = "cut"
    proxy.times = 1_000
    proxy.spoil = lambda method, path: method == "GET"
    with pytest.raises(ClusterError, match="/file: 10 attempts failed"):
        storage.read(f"{s3}/file")
    assert len(waits) == bucket_files.ATTEMPTS - 1


def test_a_creation_whose_answer_is_lost_knows_itself_again(proxy: Proxy, s3: str) -> None:
    proxy.how = "lose_answer"
    proxy.times = 1
    assert storage.create(f"{s3}/lock", b"mine")
    assert [line.split()[0] for line in proxy.seen] == ["PUT", "PUT", "GET"]
    assert not storage.create(f"{s3}/lock", b"yours")


@pytest.mark.slow
def test_a_creation_that_meets_another_writer_tries_again(
    proxy: Proxy, s3: str, waits: list[float]
) -> None:
    proxy.how = "conflict"
    proxy.times = 2
    assert storage.create(f"{s3}/lock", b"mine")
    assert len(waits) == 2
    proxy.times = 1_000
    with pytest.raises(ClusterError, match="10 conditional writes collided"):
        storage.create(f"{s3}/other", b"mine")


@pytest.mark.slow
@pytest.mark.parametrize(
    "act",
    [
        storage.read,
        storage.measure_size,
        storage.list_files,
        lambda path: storage.write(path, b""),
        lambda path: storage.create(path, b""),
    ],
)
def test_an_access_denial_of_s3_is_raised_at_once(
    proxy: Proxy, s3: str, act: Callable[[str], object]
) -> None:
    proxy.how = "forbidden"
    proxy.times = 1_000
    with pytest.raises(ClusterError, match=r"^s3://.*/file: S3 answers .*(AccessDenied|403)"):
        act(f"{s3}/file")
    assert len(proxy.seen) == 1


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_named(
    proxy: Proxy, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "discard": a port without a server.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3_objects.get_client.cache_clear()
    with pytest.raises(ClusterError, match=r"/file.*endpoint URL"):
        storage.read(f"{s3}/file")


@pytest.mark.slow
def test_files_to_and_from_a_bucket_outlast_a_bad_day(
    proxy: Proxy, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = os.urandom(9 * 2**20)  # above 8 MiB boto3 uploads in parts
    proxy.times = 4
    with storage.atomic_file(f"{s3}/large") as temporary:
        Path(temporary).write_bytes(data)
    assert any(line.startswith("POST") and "uploadId" in line for line in proxy.seen)
    proxy.how = "cut"
    proxy.times = 2
    proxy.spoil = lambda method, path: method == "GET"
    assert storage.fetch_local_path(f"{s3}/large").read_bytes() == data
    assert proxy.times == 0
    proxy.how = "forbidden"
    proxy.times = 1_000
    proxy.spoil = lambda method, path: True
    with (
        pytest.raises(ClusterError, match=r"^s3://.*/large: .*AccessDenied"),
        storage.atomic_file(f"{s3}/large") as temporary,
    ):
        Path(temporary).write_bytes(b"")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return data that is uploaded in three parts, each as small as S3 allows."""
    monkeypatch.setattr(bucket_files, "PART", 5 * 2**20)
    return os.urandom(11 * 2**20)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["slow_down", "cut_request", "lose_answer"])
def test_large_data_outlasts_a_bad_day(proxy: Proxy, s3: str, large: bytes, how: str) -> None:
    proxy.how = how
    proxy.times = 4
    proxy.spoil = lambda method, path: method in {"PUT", "POST"}
    storage.write(f"{s3}/large", memoryview(large))
    assert proxy.times == 0
    assert sum("partNumber=" in line for line in proxy.seen) >= 3
    assert storage.read(f"{s3}/large") == large


def test_an_upload_whose_last_answer_is_lost_is_known_to_be_done(
    proxy: Proxy, s3: str, large: bytes
) -> None:
    proxy.how = "lose_answer"
    proxy.times = 1
    proxy.spoil = lambda method, path: method == "POST" and "uploadId=" in path
    storage.write(f"{s3}/large", large)
    assert proxy.times == 0
    assert storage.read(f"{s3}/large") == large


def test_an_upload_that_is_no_more_is_done_if_all_of_it_is_there(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 answers so to the second of two requests; moto has no such answer."""
    storage.write(f"{s3}/file", b"12345")
    client = s3_objects.get_client()
    error = {"Error": {"Code": "NoSuchUpload"}}
    refuse = mock.Mock(side_effect=ClientError(error, "CompleteMultipartUpload"))
    monkeypatch.setattr(client, "complete_multipart_upload", refuse)
    place = {"Bucket": "b", "Key": "file", "UploadId": "none"}
    s3_objects.S3.complete_upload(f"{s3}/file", place, [], length=5)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        s3_objects.S3.complete_upload(f"{s3}/file", place, [], length=6)


@pytest.mark.parametrize("request_", ["partNumber=2", "uploadId="])
def test_an_upload_that_fails_leaves_nothing(
    proxy: Proxy, s3: str, large: bytes, request_: str
) -> None:
    storage.write(f"{s3}/large", b"before")
    proxy.how = "forbidden"
    proxy.times = 1_000
    proxy.spoil = lambda method, path: method != "DELETE" and request_ in path
    with pytest.raises(ClusterError, match=r"^s3://.*/large: .*AccessDenied"):
        storage.write(f"{s3}/large", large)
    assert storage.read(f"{s3}/large") == b"before"
    unfinished = s3_objects.get_client().list_multipart_uploads(Bucket=s3.removeprefix("s3://"))
    assert "Uploads" not in unfinished


UPLOAD = """
import sys
from support import object_stores

from trainrig import storage
with storage.atomic_file(sys.argv[1]) as temporary:
    open(temporary, "wb").write(bytes(9 * 2**20))
"""


@pytest.mark.chaos
def test_an_upload_killed_before_its_end_leaves_nothing_under_the_name(
    proxy: Proxy, s3: str
) -> None:
    proxy.how = "hold"
    proxy.times = 1
    # All parts are uploaded.
    proxy.spoil = lambda method, path: method == "POST" and "uploadId" in path
    with subprocess.Popen([sys.executable, "-c", UPLOAD, f"{s3}/large"]) as child:
        assert proxy.reached.wait(60)
        child.kill()
    assert sum(line.startswith("PUT") for line in proxy.seen) == 2
    assert not storage.exists(f"{s3}/large")
    assert storage.list_files(s3) == []


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_moved_file_takes_the_place_of_another(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = str(tmp_path) if place == "disk" else request.getfixturevalue("s3")
    old = f"{folder}/new folder/old"
    new = f"{folder}/new"
    storage.write(new, b"new")
    storage.move(new, old)  # nothing was there
    assert (storage.read(old), storage.exists(new)) == (b"new", False)
    storage.write(new, b"newer")
    storage.move(new, old)
    assert (storage.read(old), storage.list_files(folder)) == (b"newer", [old])
    with pytest.raises(FileNotFoundError):
        storage.move(new, old)
    assert storage.read(old) == b"newer"
