import json
from pathlib import Path
from unittest import mock

import pytest
from support.s3_proxy import Proxy

from trainrig import manifest, storage
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.documents import Replacement
from trainrig.errors import DataError
from trainrig.manifest import Manifest, Stage
from trainrig.storage.local_files import LocalFiles
from trainrig.storage.s3_objects import S3Objects

OLD = {"kept/a": b"old a", "dropped/a": b"old dropped"}
NEW = {"kept/a": b"new a", "kept/b": b"new b"}
REPORT = "report.html"


class Stopped(Exception):
    """Stands for any cause that ends a process."""


def make_manifest(stage: Stage, below: str, files: dict[str, bytes]) -> Manifest:
    for name, data in files.items():
        storage.write(storage.join(below, name), data)
    sums = {name: manifest.compute_file_sum(storage.join(below, name)) for name in files}
    return stage.build_manifest({"files": len(files)}, sums)


@pytest.fixture(params=["disk", "bucket"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "out")
    return f"{request.getfixturevalue('s3')}/out"


@pytest.fixture
def begun(output: str) -> tuple[Replacement, Manifest, str]:
    """Write a finished output and prepare the files that will replace it."""
    source = CurationSource(name="web", paths=("a.warc",))
    stage = manifest.claim(output, Curation(output=output, sources=(source,)), {})
    storage.write(stage.build_path(REPORT), b"old report")
    storage.write(
        stage.build_path(manifest.MANIFEST),
        make_manifest(stage, output, OLD).model_dump_json().encode(),
    )
    new = stage.build_path("scratch", "new")
    fresh = make_manifest(stage, new, NEW)
    storage.write(storage.join(new, REPORT), b"new report")
    return Replacement(output), fresh, new


def read_contents(output: str) -> dict[str, bytes]:
    return {
        path.removeprefix(f"{output}/"): storage.read(path)
        for path in storage.list_files(output)
        if not path.endswith((".json",))
    }


def test_new_files_replace_all_old_ones(
    output: str, begun: tuple[Replacement, Manifest, str]
) -> None:
    replacement, fresh, new = begun
    replacement.begin(fresh, new, [REPORT])
    assert read_contents(output) == {**NEW, REPORT: b"new report"}
    assert manifest.read_manifest(output) == fresh
    replacement.go_on()  # nothing is left to do
    assert read_contents(output) == {**NEW, REPORT: b"new report"}


@pytest.mark.parametrize("moment", range(1, 9))
def test_a_replacement_stopped_at_any_moment_is_finished_by_the_next_run(
    output: str, begun: tuple[Replacement, Manifest, str], moment: int
) -> None:
    replacement, fresh, new = begun
    left = moment

    def stopping(function):  # type: ignore[no-untyped-def]
        def call(*arguments):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if not left:
                raise Stopped
            return function(*arguments)

        return call

    changing = [(LocalFiles, name) for name in ("write", "delete", "move", "delete_folder")]
    changing += [(S3Objects, name) for name in ("write", "delete", "copy", "delete_batch")]
    patches = [
        mock.patch.object(kind, name, stopping(getattr(kind, name))) for kind, name in changing
    ]
    with pytest.raises(Stopped):
        for patch in patches:
            patch.start()
        try:
            replacement.begin(fresh, new, [REPORT])
        finally:
            mock.patch.stopall()
    if moment == 1:  # before the note, nothing has changed
        assert read_contents(output).items() >= OLD.items()
        return
    replacement.go_on()
    assert read_contents(output) == {**NEW, REPORT: b"new report"}
    assert manifest.read_manifest(output) == fresh


def test_files_in_a_bucket_are_replaced_by_two_requests_each(proxy: Proxy, s3: str) -> None:
    source = CurationSource(name="web", paths=("a.warc",))
    stage = manifest.claim(f"{s3}/out", Curation(output=f"{s3}/out", sources=(source,)), {})
    old = make_manifest(stage, stage.folder, {f"old/{number}": b"" for number in range(9)})
    storage.write(stage.build_path(manifest.MANIFEST), old.model_dump_json().encode())
    new = {f"new/{number}": b"" for number in range(9)}
    fresh = make_manifest(stage, stage.build_path("scratch", "new"), new)
    proxy.count()
    Replacement(stage.folder).begin(fresh, stage.build_path("scratch", "new"))
    # Each file is looked at and copied; the originals, the old files and the note are deleted.
    moved = {"HEAD": 9, "PUT": 9 + 2, "DELETE many": 3, "DELETE": 1, "LIST": 2, "GET": 2}
    assert proxy.count() == dict(sorted(moved.items()))
    assert read_contents(stage.folder) == new


@pytest.mark.parametrize("key", ["old", "unlisted", "new"])
def test_a_note_that_names_files_elsewhere_is_refused_before_anything_is_touched(
    output: str, begun: tuple[Replacement, Manifest, str], key: str
) -> None:
    replacement, fresh, _ = begun
    failed_page = (
        storage.join(output, "..", "victim") if "://" not in output else f"{output}-victim"
    )
    storage.write(failed_page, b"theirs")
    before = read_contents(output)
    entries = {"new": "scratch/new", "old": [], "unlisted": []}
    entries[key] = "../victim" if key == "new" else ["../victim"]
    note = entries | {"manifest": fresh.model_dump(mode="json")}
    storage.write(storage.join(output, "scratch", "replacement.json"), json.dumps(note).encode())
    with pytest.raises(DataError, match="file below the folder"):
        replacement.go_on()
    assert storage.read(failed_page) == b"theirs"
    assert read_contents(output) == before
    assert storage.exists(storage.join(output, manifest.MANIFEST))
