import json
import logging
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from support.s3_proxy import Proxy

from trainrig import manifest, storage
from trainrig.config import EXTENDABLE, NOT_IDENTITY, RunFile, Settings
from trainrig.errors import DataError, OutputTaken
from trainrig.manifest import CLAIM, MANIFEST, FileSum, Manifest, Stage, stage_folder


class Pile(Settings):
    names: tuple[str, ...] = ()
    rate: float = 0.5


class Stacking(RunFile):
    verb: ClassVar[str] = "stack"
    stage: Literal["stack"] = "stack"
    output: Annotated[str, NOT_IDENTITY]
    workers: Annotated[int, NOT_IDENTITY] = 2
    seed: int = 0
    pile: Pile = Pile()


class Growing(Stacking):
    later: Annotated[tuple[int, ...], EXTENDABLE] = ()


class Burning(RunFile):
    verb: ClassVar[str] = "burn"
    stage: Literal["burn"] = "burn"
    output: Annotated[str, NOT_IDENTITY]


INPUTS = {"pages": "fingerprint of the pages"}


@pytest.fixture(params=["disk", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the output folder of a stage: on the disk or in a bucket."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/out"
    return str(tmp_path / "out")


@pytest.fixture
def out(tmp_path: Path) -> str:
    """Return the output folder of a stage where its kind does not matter."""
    return str(tmp_path / "out")


def begin(folder: str, inputs: dict[str, str] = INPUTS, **changes: Any) -> Stage:
    return manifest.claim(folder, Stacking(output=folder, **changes), inputs)


def finish(stage: Stage, text: bytes = b"result") -> Manifest:
    storage.write(stage.build_path("part", "a.txt"), text)
    storage.write(stage.build_path("scratch", "part"), b"")
    return stage.finish(
        {"lines": 3}, {"part/a.txt": manifest.compute_file_sum(stage.build_path("part/a.txt"))}
    )


def rewrite(path: str, **changes: Any) -> None:
    storage.write(path, json.dumps({**json.loads(storage.read(path)), **changes}).encode())


# One run


def test_a_stage_claims_its_folder_and_writes_the_manifest_last(folder: str) -> None:
    stage = begin(folder)
    assert storage.list_files(folder) == [f"{folder}/{CLAIM}"]
    assert (stage.finished, stage.resumed) == (None, False)
    with pytest.raises(DataError, match="stage is not finished"):
        manifest.read_manifest(folder)
    written = finish(stage)
    assert storage.list_files(folder) == [  # the scratch folder is gone
        f"{folder}/{MANIFEST}",
        f"{folder}/part/a.txt",
        f"{folder}/{CLAIM}",
    ]
    assert manifest.read_manifest(folder) == written
    assert manifest.read_input(folder, "stack") == written


def test_the_manifest_says_what_was_made_from_what(out: str) -> None:
    written = finish(begin(out, seed=4))
    assert written.stage == "stack"
    assert written.config == {
        "stage": "stack",
        "seed": 4,
        "pile": {"names": [], "rate": 0.5},
    }
    assert written.inputs == INPUTS
    assert written.counts == {"lines": 3}
    assert written.seconds >= 0
    assert {"trainrig", "python", "machine", "torch"} <= set(written.environment)
    # The digest is `printf result | sha256sum`.
    assert written.files == {
        "part/a.txt": FileSum(
            bytes=6, sha256="f6a214f7a5fcda0c2cee9660b7fc29f5649e3c68aad48e20e950137c98913a68"
        )
    }


def test_a_finished_run_is_finished_when_it_runs_again(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainrig")
    written = finish(begin(folder, workers=1))
    before = {path: storage.read(path) for path in storage.list_files(folder)}
    again = begin(folder, workers=8)
    assert again.finished == written
    assert {path: storage.read(path) for path in storage.list_files(folder)} == before
    assert caplog.messages == [
        f"{folder}: the output is finished (see {folder}/{MANIFEST}); nothing to do"
    ]


def test_a_killed_run_continues_under_its_own_claim(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainrig")
    first = begin(folder)
    storage.write(first.build_path("scratch", "split-1.json"), b"{}")
    second = begin(folder)
    assert (second.finished, second.resumed) == (None, True)
    assert storage.exists(second.build_path("scratch", "split-1.json"))
    assert second.claim == first.claim
    assert caplog.messages == [f"{folder}: continuing an earlier run"]


def test_the_next_run_removes_scratch_files_left_by_a_kill(out: str) -> None:
    finish(begin(out))
    storage.write(f"{out}/scratch/part", b"")
    assert begin(out).finished
    assert not storage.exists(f"{out}/scratch/part")


def test_a_number_that_json_lacks_is_recorded_all_the_same(out: str) -> None:
    finish(begin(out, pile=Pile(rate=math.inf)))
    assert begin(out, pile=Pile(rate=math.inf)).finished
    assert manifest.read_manifest(out).config["pile"]["rate"] == math.inf
    with pytest.raises(OutputTaken, match=r"pile\.rate: inf there, -inf here"):
        begin(out, pile=Pile(rate=-math.inf))


def test_the_content_of_a_folder_is_that_of_its_files_alone(tmp_path: Path) -> None:
    one = finish(begin(str(tmp_path / "1"), seed=1))
    two = finish(begin(str(tmp_path / "2"), seed=2))
    other = finish(begin(str(tmp_path / "3"), seed=1), b"another result")
    assert one.content == two.content
    assert one.content != other.content
    renamed = one.model_copy(update={"files": {"b.txt": one.files["part/a.txt"]}})
    assert renamed.content != one.content


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert manifest.digest({"a": 1, "b": [1, "é"]}) == manifest.digest({"b": [1, "é"], "a": 1})
    assert manifest.digest([1, 2]) != manifest.digest([2, 1])
    # The digest is `printf '{"a":"é"}' | sha256sum`.
    assert manifest.digest({"a": "é"}) == (
        "b3a092a6af48807fa9482b2ee140105575daa26d5b24b3c0e60a7e2dee6683b1"
    )


# Another run


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"seed": 7}, "seed: 0 there, 7 here"),
        ({"pile": Pile(rate=0.25)}, "pile.rate: 0.5 there, 0.25 here"),
        (
            {"pile": Pile(names=("x",))},
            "pile.names: [] there, absent here; pile.names[0]: absent there, 'x' here",
        ),
        (
            {"seed": 7, "pile": Pile(names=("x", "y"), rate=1.0)},
            "pile.names: [] there, absent here; pile.names[0]: absent there, 'x' here; "
            "pile.names[1]: absent there, 'y' here; …",
        ),
        ({"inputs": {"pages": "other"}}, "input `pages` has other contents"),
        (
            {"inputs": {**INPUTS, "words": "w"}, "seed": 1},
            "seed: 0 there, 1 here; input `words` has other contents",
        ),
    ],
)
@pytest.mark.parametrize("done", [True, False])
def test_another_run_is_refused_and_the_difference_named(
    out: str, changes: dict[str, Any], difference: str, done: bool
) -> None:
    stage = begin(out)
    if done:
        finish(stage)
    with pytest.raises(OutputTaken) as caught:
        begin(out, **changes)
    assert str(caught.value) == (
        f"{out}: made by another run ({difference}); choose another `output`, or delete that folder"
    )


class Extending(Growing):
    """Run file whose finished output may be extended."""

    extends_finished: ClassVar[bool] = True


def test_extendable_settings_may_change_until_the_folder_is_finished(folder: str) -> None:
    manifest.claim(folder, Growing(output=folder), INPUTS)
    changed = manifest.claim(folder, Growing(output=folder, later=(7,)), INPUTS)
    assert changed.resumed and not changed.finished
    with pytest.raises(OutputTaken, match="seed: 0 there, 1 here"):
        manifest.claim(folder, Growing(output=folder, later=(7,), seed=1), INPUTS)
    made = finish(changed)
    assert made.config["later"] == [7]
    assert manifest.claim(folder, Growing(output=folder, later=(7,)), INPUTS).finished == made
    with pytest.raises(OutputTaken, match=r"later\[0\]: 7 there, 8 here"):
        manifest.claim(folder, Growing(output=folder, later=(8,)), INPUTS)


def test_a_stage_that_can_change_what_is_finished_claims_it_again(folder: str) -> None:
    def claim(**changes: Any) -> Stage:
        return manifest.claim(folder, Extending(output=folder, **changes), INPUTS)

    made = finish(claim())
    assert claim().finished == made  # there is nothing to change
    again = claim(later=(8,))
    assert (again.before, again.finished, again.resumed) == (made, None, True)
    assert again.build_manifest({}, {}).config["later"] == [8]
    with pytest.raises(OutputTaken, match=r"another run \(seed: 0 there, 1 here\)"):
        claim(later=(8,), seed=1)  # `later` may change, so it is not named


class Heap(Settings):
    name: str
    later: Annotated[tuple[int, ...], EXTENDABLE] = ()


class Heaping(Stacking):
    heaps: tuple[Heap, ...] = ()


def test_what_may_change_in_a_list_is_not_named_as_a_difference(folder: str) -> None:
    heaps = Heap(name="a", later=(7,)), Heap(name="b", later=(8,))
    manifest.claim(folder, Heaping(output=folder, heaps=heaps), INPUTS)
    other = (heaps[0], Heap(name="c"), Heap(name="d"))
    with pytest.raises(OutputTaken) as caught:
        manifest.claim(folder, Heaping(output=folder, heaps=other), INPUTS)
    assert "later" not in str(caught.value)
    assert "heaps[1].name: 'b' there, 'c' here; heaps[2].name: absent there" in str(caught.value)


def test_time_and_cost_are_no_part_of_the_content_digest(out: str) -> None:
    stage = begin(out)
    made = stage.finish({"n": 1}, {}, {"peak_bytes": 7})
    assert manifest.read_manifest(out).cost == {"peak_bytes": 7}
    assert made.content == stage.build_manifest({"n": 1}, {}).content


def test_changed_tables_are_reported_by_their_differences() -> None:
    there = {"a": 1, "b": {"c": [1, 2]}}
    here = {"a": 1, "b": {"c": [1, 3]}, "d": 4}
    assert (
        manifest.describe_table_difference(there, here)
        == "b.c[1]: 2 there, 3 here; d: absent there, 4 here"
    )
    assert manifest.describe_table_difference(there, there) == ""


def test_another_stage_is_refused(out: str) -> None:
    begin(out)
    with pytest.raises(OutputTaken, match=r"another run \(by `stack`, not `burn`\)"):
        manifest.claim(out, Burning(output=out), INPUTS)


def test_a_key_that_a_later_version_added_is_named_even_if_it_holds_nothing(out: str) -> None:
    stage = begin(out)
    here = stage.claim.model_copy(update={"config": {**stage.claim.config, "new": []}})
    assert manifest.describe_difference(stage.claim, here) == "new: absent there, [] here"


def test_an_integer_and_a_float_count_as_different(out: str) -> None:
    there = begin(out).claim
    here = there.model_copy(update={"config": {**there.config, "seed": 0.0}})
    assert manifest.describe_difference(there, here) == "seed: 0 there, 0.0 here"


def test_files_of_others_are_left_alone(folder: str) -> None:
    storage.write(f"{folder}/sub/thesis.tex", b"years of work")
    with pytest.raises(OutputTaken) as caught:
        begin(folder)
    assert str(caught.value) == (
        f"{folder}: holds files that no stage wrote (thesis.tex, …); choose another `output`"
    )
    assert storage.list_files(folder) == [f"{folder}/sub/thesis.tex"]


def test_an_output_that_is_a_file_is_refused(folder: str) -> None:
    storage.write(folder, b"a file")
    with pytest.raises(OutputTaken, match=r"out: is a file.*`output`"):
        begin(folder)


def test_a_folder_found_empty_that_another_run_claims_next_is_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_first = storage.find_first

    def look_before_the_other_claims(folder: str) -> str | None:
        monkeypatch.setattr(storage, "find_first", find_first)
        found = storage.find_first(folder)
        begin(folder, seed=9)
        return found

    monkeypatch.setattr(storage, "find_first", look_before_the_other_claims)
    with pytest.raises(OutputTaken, match="seed: 9 there, 0 here"):
        begin(folder)


def test_a_claim_takes_as_many_requests_whatever_the_folder_holds(proxy: Proxy, s3: str) -> None:
    out = f"{s3}/out"
    stage = begin(out)
    assert proxy.count() == {"HEAD": 1, "LIST": 1, "PUT": 1}
    for number in range(40):
        storage.write(f"{out}/part/{number:02}", b"x")
    proxy.count()
    assert begin(out).resumed
    assert proxy.count() == {"GET": 2, "HEAD": 1, "LIST": 1}
    one = FileSum(bytes=1, sha256="")
    stage.finish({}, {f"part/{number:02}": one for number in range(40)})
    proxy.count()
    assert begin(out).finished  # one listing more, of the sizes of all files, and one of scratch
    assert proxy.count() == {"GET": 2, "HEAD": 1, "LIST": 3}


CLAIM_ONCE = """
import sys
from tests_of_manifest import Stacking
from trainrig import manifest
from trainrig.errors import OutputTaken
print("ready", flush=True)
sys.stdin.readline()
try:
    stage = manifest.claim(sys.argv[1], Stacking(output="x", seed=int(sys.argv[2])), {})
    print("resumed" if stage.resumed else "claimed")
except OutputTaken as error:
    print("refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "others"), [((1, 1, 1, 1), "resumed"), ((1, 2, 3, 4), "refused")]
)
def test_only_one_of_simultaneous_claims_succeeds(
    tmp_path: Path, seeds: tuple[int, ...], others: str
) -> None:
    loader = (
        "import importlib.util, sys; "
        f"spec = importlib.util.spec_from_file_location('tests_of_manifest', {__file__!r}); "
        "module = importlib.util.module_from_spec(spec); sys.modules[spec.name] = module; "
        "spec.loader.exec_module(module)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", loader + CLAIM_ONCE, str(tmp_path / "out"), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in seeds
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = sorted(child.communicate()[0].strip() for child in children)
    assert answers == ["claimed"] + [others] * 3
    assert len(storage.list_files(str(tmp_path))) == 1


# State of a folder


@pytest.mark.parametrize("name", [CLAIM, MANIFEST])
@pytest.mark.parametrize("torn", [b"", b'{"format": 1, "st', b"[]", b"{}", b"\xff\xfe"])
def test_a_torn_record_is_named(out: str, name: str, torn: bytes) -> None:
    finish(begin(out))
    storage.write(f"{out}/{name}", torn)
    with pytest.raises(DataError, match=rf"/{name}: damaged, or not written by trainrig: [^\n]+$"):
        begin(out)


def test_a_record_that_lacks_a_key_names_it(out: str) -> None:
    finish(begin(out))
    whole = json.loads(storage.read(f"{out}/{MANIFEST}"))
    del whole["files"]["part/a.txt"]["sha256"]
    storage.write(f"{out}/{MANIFEST}", json.dumps(whole).encode())
    with pytest.raises(DataError, match=r"`files\.part/a\.txt\.sha256`: Field required$"):
        manifest.read_manifest(out)


def test_keys_that_a_later_version_added_are_passed_over(out: str) -> None:
    written = finish(begin(out))
    rewrite(f"{out}/{MANIFEST}", price="3 EUR")
    rewrite(f"{out}/{CLAIM}", price="3 EUR")
    assert begin(out).finished == written


@pytest.mark.parametrize("name", [CLAIM, MANIFEST])
def test_a_newer_format_asks_for_an_upgrade_whatever_else_it_holds(out: str, name: str) -> None:
    finish(begin(out))
    storage.write(f"{out}/{name}", b'{"format": 2, "files": 7}')
    with pytest.raises(DataError) as caught:
        begin(out)
    assert str(caught.value) == (
        f"{out}/{name}: has format 2, but this trainrig reads up to 1; upgrade trainrig"
    )


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (storage.delete, "missing, though manifest.json lists it"),
        (lambda path: storage.write(path, b"resul"), "5 bytes, but manifest.json says 6"),
    ],
    ids=["lost", "resized"],
)
def test_a_finished_folder_with_a_damaged_file_is_no_input_and_no_result(
    folder: str, damage: Callable[[str], object], told: str
) -> None:
    finish(begin(folder))
    damage(f"{folder}/part/a.txt")
    for use in (begin, lambda folder: manifest.read_input(folder, "stack")):
        with pytest.raises(DataError) as caught:
            use(folder)
        line = f"{folder}/part/a.txt: {told}; delete {folder} and run its stage again"
        assert str(caught.value) == line


def test_a_folder_that_is_no_stages_is_no_input(folder: str) -> None:
    with pytest.raises(DataError, match="^" + re.escape(f"{folder}: no such folder;")):
        manifest.read_input(folder, "stack")
    storage.write(storage.join(folder, "notes.txt"), b"mine")
    with pytest.raises(DataError) as caught:
        manifest.read_input(folder, "stack")
    assert str(caught.value) == (
        f"{folder}: no manifest.json, so it is not the output of a stage; "
        "name the folder that a stage wrote"
    )


def test_a_folder_of_another_stage_is_no_input(out: str) -> None:
    finish(begin(out))
    with pytest.raises(DataError) as caught:
        manifest.read_input(out, "burn")
    assert str(caught.value) == (
        f"{out}: is the output of `stack`, not of `burn`; name an output of `burn`"
    )


# The environment


@pytest.mark.parametrize("done", [True, False])
def test_a_change_of_versions_is_announced_and_not_refused(
    out: str, caplog: pytest.LogCaptureFixture, done: bool
) -> None:
    stage = begin(out)
    if done:
        finish(stage)
    there = {**stage.claim.environment, "numpy": "1.0", "gone": "2"}
    del there["torch"]
    rewrite(f"{out}/{CLAIM}", environment=there)
    assert bool(begin(out).finished) == done
    numpy, torch = (stage.claim.environment[name] for name in ("numpy", "torch"))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"{out}: the run began with other versions (gone 2 → none, numpy 1.0 → {numpy}, "
        f"torch none → {torch}), so results may differ from an "
        "uninterrupted run; install those versions to continue exactly"
    ]


def test_libraries_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_folder, "LIBRARIES", ("numpy", "no-such-library"))
    assert set(manifest.collect_environment()) == {"trainrig", "python", "machine", "numpy"}


def test_a_stage_that_refuses_its_input_leaves_nothing_behind(folder: str) -> None:
    stage = begin(folder)
    with pytest.raises(DataError), stage.undo_if_refused():
        storage.write(stage.build_path("half.bin"), b"half")
        raise DataError("x.txt: empty; give it text")
    assert storage.list_files(folder) == []
    assert not begin(folder, seed=7).resumed  # the corrected run may start


def test_earlier_results_survive_a_rejected_call(
    folder: str,
) -> None:
    storage.write(begin(folder).build_path("half.bin"), b"half")
    with pytest.raises(DataError), begin(folder).undo_if_refused():
        raise DataError("x.txt: empty; give it text")
    assert storage.exists(storage.join(folder, "half.bin"))
    other = f"{folder}-other"
    with pytest.raises(RuntimeError), begin(other).undo_if_refused():
        raise RuntimeError("a bug")
    assert storage.exists(storage.join(other, CLAIM))


ELSEWHERE = (
    "../victim",
    "a/../../victim",
    "/etc/passwd",
    "s3://other/victim",
    "",
    "..",
    "a\\..\\b",
)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_manifest_that_names_a_file_outside_its_folder_is_refused(out: str, name: str) -> None:
    finish(begin(out))
    path = storage.join(out, MANIFEST)
    entries = json.loads(storage.read(path))
    entries["files"] = {name: {"bytes": 1, "sha256": "0"}}
    storage.write(path, json.dumps(entries).encode())
    with pytest.raises(DataError, match="file below the folder"):
        manifest.read_manifest(out)


class Restacking(Stacking):
    output_format: ClassVar[int] = 2


@pytest.mark.parametrize("is_finished", [False, True])
def test_folders_of_another_format_are_rejected(out: str, is_finished: bool) -> None:
    stage = begin(out)
    if is_finished:
        finish(stage)
    with pytest.raises(OutputTaken, match="output format 1 there, 2 here"):
        manifest.claim(out, Restacking(output=out), INPUTS)


def test_a_manifest_holds_the_format_that_it_was_made_in(out: str) -> None:
    written = finish(manifest.claim(out, Restacking(output=out), INPUTS))
    assert written.output_format == 2
    assert manifest.claim(out, Restacking(output=out), INPUTS).finished == written
