import functools
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from trainrig import manifest, storage
from trainrig.errors import ClusterError, DataError
from trainrig.manifest import FileSum
from trainrig.ray_runtime import ray_session, split_processing
from trainrig.ray_runtime.split_processing import find_crashing_record, map_splits
from trainrig.ray_runtime.split_workers import SharedPhase
from trainrig.ray_runtime.worker_space import WorkerPlace
from trainrig.splits import Phase, RecordSelection, Split, Work

SPLITS = [Split(f"split-{number}", {"number": number}) for number in range(6)]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[int]:
    """Start a local Ray for all tests of this file, and return its number of CPUs."""
    with mock.patch.dict(os.environ):
        os.environ.pop("RAY_ADDRESS", None)
        ray_session.connect(1, "tests")
        import ray

        # Workers cannot import a test file by its name.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield int(ray.cluster_resources()["CPU"])
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> int:
    """Return the number of workers, and start Ray only for tests that use some."""
    if request.param:
        request.getfixturevalue("local_ray")
    return int(request.param)


WORKERS = pytest.mark.parametrize(
    ("workers", "brief"),
    [
        (0, False),
        pytest.param(1, False, marks=pytest.mark.ray),
        pytest.param(2, False, marks=pytest.mark.ray),
        pytest.param(1, True, marks=pytest.mark.ray),
        pytest.param(2, True, marks=pytest.mark.ray),
    ],
    indirect=["workers"],
)


def make_work(folder: str) -> Work:
    """Return work that writes a split's number, and adds a line to `log` for each split.

    A split fails if its number is in the file `bad`; all splits fail if `bad` contains `all`.
    """
    bad = storage.read(f"{folder}/bad").decode() if storage.exists(f"{folder}/bad") else ""
    if bad == "all":
        raise DataError("model: gone")

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        if bad == str(task["number"]):
            raise DataError(f"page {bad}: torn")
        with Path(folder, "log").open("a") as log:
            log.write(f"split-{task['number']}\n")
        path = f"{folder}/out/{task['number']}"
        storage.write(path, b"%d" % task["number"])
        return {"sum": task["number"]}, {f"out/{task['number']}": manifest.compute_file_sum(path)}

    return work


def make_phase(folder: Path) -> Phase:
    return Phase(str(folder / "records"), functools.partial(make_work, str(folder)))


@pytest.mark.slow
@WORKERS
def test_the_records_do_not_depend_on_who_did_the_splits(
    tmp_path: Path, workers: int, brief: bool
) -> None:
    seen: list[tuple[int, int]] = []
    phase = make_phase(tmp_path)
    map_splits(phase, SPLITS, workers, lambda done, of: seen.append((done, of)), brief)
    assert [record.model_dump() for record in phase.read_results(SPLITS)] == [
        {
            "name": split.name,
            "counts": {"sum": number},
            "files": {
                f"out/{number}": manifest.compute_file_sum(f"{tmp_path}/out/{number}").model_dump()
            },
        }
        for number, split in enumerate(SPLITS)
    ]
    assert seen == [(done, 6) for done in range(7)]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_datasets_of_the_caller_lose_no_block_with_an_error(tmp_path: Path) -> None:
    import ray.data

    map_splits(make_phase(tmp_path), SPLITS[:1], 1)
    assert ray.data.DataContext.get_current().max_errored_blocks == 0


@pytest.mark.slow
@WORKERS
def test_a_file_that_a_split_cannot_use_is_named_and_what_was_done_stays_done(
    tmp_path: Path, workers: int, brief: bool
) -> None:
    phase = make_phase(tmp_path)
    (tmp_path / "bad").write_text("4")
    with pytest.raises(DataError, match=r"^page 4: torn$"):
        map_splits(phase, SPLITS, workers, brief=brief)
    left = phase.find_unfinished(SPLITS)
    assert SPLITS[4] in left
    if workers == 0:
        assert left == SPLITS[4:]
    (tmp_path / "bad").unlink()
    seen: list[tuple[int, int]] = []
    map_splits(phase, SPLITS, workers, lambda done, of: seen.append((done, of)), brief)
    assert seen[0] == (6 - len(left), 6)
    assert phase.find_unfinished(SPLITS) == []
    done = (tmp_path / "log").read_text().split()
    assert all(done.count(split.name) == 1 for split in SPLITS if split not in left)


def count_threads() -> Counter[str]:
    """Return the number of threads of this process by name."""
    return Counter(thread.name for thread in threading.enumerate())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_a_phase_leaves_no_thread_behind(tmp_path: Path) -> None:
    def run(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        map_splits(make_phase(folder), SPLITS, 1)

    run("first")  # Ray Data starts its long-lived threads once
    before = count_threads()
    for name in ("second", "third"):
        run(name)
    deadline = time.monotonic() + 60
    while (left := count_threads() - before) and time.monotonic() < deadline:
        time.sleep(0.1)  # threads of the last phase may still be ending
    assert not left


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("brief", [False, True])
def test_no_further_split_is_begun_after_a_failed_one(
    tmp_path: Path, local_ray: int, brief: bool
) -> None:
    import ray.data

    many = [Split(f"split-{number}", {"number": number}) for number in range(200)]
    (tmp_path / "bad").write_text("0")
    level = logging.getLogger("ray.data").level
    with pytest.raises(DataError, match="page 0: torn"):
        map_splits(make_phase(tmp_path), many, 2, brief=brief)
    for thread in threading.enumerate():
        if thread.name == split_processing.SPLITS_THREAD:
            thread.join(60)
            assert not thread.is_alive()
    assert logging.getLogger("ray.data").level == level
    # It runs once no split does.
    ray.get(ray.remote(lambda: 0).options(num_cpus=local_ray).remote())
    begun = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
    assert len(begun) < 50


@pytest.mark.slow
@WORKERS
def test_a_file_that_a_worker_cannot_load_is_named(
    tmp_path: Path, workers: int, brief: bool
) -> None:
    (tmp_path / "bad").write_text("all")
    with pytest.raises(DataError, match=r"^model: gone$"):
        map_splits(make_phase(tmp_path), SPLITS, workers, brief=brief)


@WORKERS
def test_when_all_is_done_nothing_is_loaded(tmp_path: Path, workers: int, brief: bool) -> None:
    phase = make_phase(tmp_path)
    map_splits(phase, SPLITS, 0)
    (tmp_path / "bad").write_text("all")
    seen: list[tuple[int, int]] = []
    map_splits(phase, SPLITS, workers, lambda done, of: seen.append((done, of)), brief)
    assert seen == [(6, 6)]
    map_splits(phase, [], workers, brief=brief)


def make_fragile_work(folder: str) -> Work:
    """Return work that joins the letters of a split; a capital letter kills its process."""

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        records = RecordSelection(task)
        joined = ""
        for letter, crashed in records.choose(task["letters"]):
            if letter.isupper() and not crashed:
                with Path(folder, "deaths").open("a") as deaths:
                    deaths.write(letter)
                os.kill(os.getpid(), signal.SIGKILL)
            joined += "-" if crashed else letter
        if records.probing:
            return records.build_probe_counts(), {}
        return {joined: 1}, {}

    return work


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.parametrize("brief", [False, True])
def test_a_record_that_kills_its_process_is_left_out_and_the_rest_is_done(
    tmp_path: Path, local_ray: int, brief: bool, caplog: pytest.LogCaptureFixture
) -> None:
    work = functools.partial(make_fragile_work, str(tmp_path))
    phase = Phase(str(tmp_path / "records"), work, divisible=True)
    given = [Split(str(n), {"letters": letters}) for n, letters in enumerate(("ab", "cXdY", "e"))]
    seen: list[tuple[int, int]] = []
    map_splits(phase, given, 2, lambda done, of: seen.append((done, of)), brief)
    found = [next(iter(record.counts)) for record in phase.read_results(given)]
    assert found == ["ab", "c-d-", "e"]
    assert seen == [(done, 3) for done in range(4)]
    assert (tmp_path / "deaths").read_text() == "X" * 8 + "Y" * 6
    assert "1: record 1 kills its process, and is in quarantine" in caplog.text


def search(
    phase: Phase, monkeypatch: pytest.MonkeyPatch, dies: Callable[[Split], bool]
) -> tuple[str, list[Split]]:
    """Search the split "s" of 40 records where `dies` says which tasks kill; return the runs."""
    runs = []

    def run(
        shared: SharedPhase, left: list[Split], place: Any, tries: int, killed: list[Split]
    ) -> Iterator[dict[str, Any]]:
        assert place.most == 1
        (split,) = left
        runs.append(split)
        if not dies(split):
            yield {"name": split.name, "error": b"", "records": 40, "counts": "{}", "files": "{}"}

    monkeypatch.setattr(split_processing, "_run_by_tasks", run)
    place = WorkerPlace({"CPU": 1}, {}, 2)
    finish = split_processing._finish_without_crashing_records
    shared = SharedPhase("call", None, phase.title)
    return finish(phase, shared, Split("s", {}), place).name, runs


def list_probed(split: Split) -> set[int]:
    """Return the numbers of the records that the task of `split` processes."""
    begin, end = split.task.get("probed", (0, 40))
    return set(range(begin, min(end, 40))) - set(split.task.get("crashed", ()))


def test_a_split_that_others_killed_is_done_alone_and_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for divisible in (False, True):
        phase = Phase(str(tmp_path), make_failing_work, divisible)
        name, runs = search(phase, monkeypatch, lambda split: False)
        assert (name, len(runs)) == ("s", 1)


def test_records_that_kill_are_left_out_by_the_next_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = Phase(str(tmp_path), make_failing_work, divisible=True)
    _, runs = search(phase, monkeypatch, lambda split: bool(list_probed(split) & {7, 31}))
    assert runs[-1].task == {"crashed": [7, 31]}
    assert phase.find_unfinished([Split("r", {}), Split("s", {"a": 1})]) == [
        Split("r", {}),
        Split("s", {"a": 1, "crashed": [7, 31]}),
    ]


def test_a_machine_on_which_every_record_kills_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = Phase(str(tmp_path), make_failing_work, divisible=True)
    with pytest.raises(ClusterError, match=r"^s: .*; without 10 records that kill it, it is still"):
        search(phase, monkeypatch, lambda split: bool(list_probed(split)))


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.parametrize("divisible", [False, True])
def test_a_split_that_kills_its_process_without_a_record_is_named(
    tmp_path: Path, local_ray: int, divisible: bool
) -> None:
    def make_work() -> Work:
        def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
            if task["pieces"]:
                os.kill(os.getpid(), signal.SIGKILL)
            return {}, {}

        return work

    phase = Phase(str(tmp_path / "records"), make_work, divisible)
    paths: tuple[list[dict[str, str]], ...] = ([], [{"path": "a.jsonl"}], [])
    given = [Split(f"split-{n}", {"pieces": pieces}) for n, pieces in enumerate(paths)]
    message = r"^split-1 of a.jsonl: the process that worked on it was killed 3 times, "
    with pytest.raises(ClusterError, match=message):
        map_splits(phase, given, 1)
    assert phase.find_unfinished(given) == [given[1]]


def make_failing_work() -> Work:
    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        raise OSError(28, "No space left on device", task["path"])

    return work


@pytest.mark.slow
@WORKERS
def test_an_error_without_an_explanation_keeps_its_type(
    tmp_path: Path, workers: int, brief: bool
) -> None:
    phase = Phase(str(tmp_path / "records"), make_failing_work)
    with pytest.raises(OSError, match="No space left on device") as caught:
        map_splits(phase, [Split("a", {"path": "/full"})], workers, brief=brief)
    assert (caught.value.errno, caught.value.filename) == (28, "/full")
    assert not workers or 'raise OSError(28, "No space' in caught.value.__notes__[0]


def make_probe_work(folder: str) -> Work:
    """Return work that reports what its process sees."""

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        import platform

        names = (*ray_session.WORKER_ENVIRONMENT, "RAY_AUTH_MODE")
        return {
            "python": platform.python_version(),
            "process": os.getpid(),
            "environment": {name: os.environ.get(name) for name in names},
        }, {}

    return work


@pytest.mark.slow
@pytest.mark.ray
def test_a_worker_has_one_thread_and_the_standard_librarys_platform(
    tmp_path: Path, local_ray: int
) -> None:
    import platform

    phase = Phase(str(tmp_path), functools.partial(make_probe_work, str(tmp_path)))
    map_splits(phase, SPLITS[:1], 1)
    seen = phase.read_results(SPLITS[:1])[0].counts
    assert seen["python"] == platform.python_version()
    assert seen["process"] != os.getpid()
    assert seen["environment"] == {**ray_session.WORKER_ENVIRONMENT, "RAY_AUTH_MODE": "token"}


class Records:
    """Records of which some kill the process that works on them."""

    def __init__(self, count: int, killing: set[int], together: int = 1) -> None:
        self.count = count
        self.killing = killing
        self.together = together  # number of killing records that it takes
        self.probes = 0

    def probe(self, begin: int, end: int) -> int | None:
        self.probes += 1
        tried = range(begin, min(end, self.count))
        if len(self.killing.intersection(tried)) >= self.together:
            return None
        return min(end, self.count)


@pytest.mark.parametrize(
    ("killing", "found"), [({0}, 0), ({99}, 99), ({37}, 37), ({80, 41, 42}, 41), (set(), None)]
)
def test_the_first_record_that_kills_is_found(killing: set[int], found: int | None) -> None:
    records = Records(100, killing)
    assert find_crashing_record(records.probe, tries=3) == found
    assert records.probes <= 1 + 7 + 3


def test_records_that_kill_only_together_are_not_blamed_alone() -> None:
    assert find_crashing_record(Records(100, {3, 60}, together=2).probe, tries=3) is None


def test_no_record_is_blamed_for_a_split_that_cannot_be_read() -> None:
    assert find_crashing_record(lambda begin, end: None, tries=3) is None
    assert find_crashing_record(Records(0, set()).probe, tries=3) is None
