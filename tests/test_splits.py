import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.s3_proxy import Proxy

from trainrig import manifest, splits, storage
from trainrig.manifest import FileSum
from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Phase, RecordSelection, Split, SplitRecord, Work

SPLITS = [Split(name, {"letters": name * 3}) for name in ("b", "a", "c")]


def make_phase(folder: Path, done: Counter[str]) -> Phase:
    """Return a phase that writes each split's letters, and counts its calls in `done`."""

    def make_work() -> Work:
        def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
            done[task["letters"]] += 1
            path = str(folder / f"{task['letters']}.txt")
            storage.write(path, task["letters"].encode())
            return {"letters": len(task["letters"])}, {"x": manifest.compute_file_sum(path)}

        return work

    return Phase(str(folder / "records"), make_work)


def do(phase: Phase, splits: Sequence[Split] = SPLITS) -> None:
    """Process the splits that have no record, as the runner does."""
    work = phase.make_work()
    left, records = phase.open_records(splits)
    with records:
        for split in left:
            records.add(phase.do(work, split).to_row())


def test_each_split_is_done_once_and_leaves_its_record(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    phase = make_phase(tmp_path, done)
    assert phase.find_unfinished(SPLITS) == SPLITS
    do(phase)
    do(phase)
    assert phase.find_unfinished(SPLITS) == []
    assert done == {"aaa": 1, "bbb": 1, "ccc": 1}
    assert [record.name for record in phase.read_results(SPLITS)] == ["b", "a", "c"]
    assert phase.read_results(SPLITS)[1] == SplitRecord(
        name="a",
        counts={"letters": 3},
        files={"x": manifest.compute_file_sum(str(tmp_path / "aaa.txt"))},
    )


def test_only_what_has_no_record_is_done_again(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    phase = make_phase(tmp_path, done)
    do(phase)
    phase.tables.forget([SPLITS[1].name])
    assert phase.find_unfinished(SPLITS) == [SPLITS[1]]
    do(phase)
    assert done == {"aaa": 2, "bbb": 1, "ccc": 1}


def write_old_record(phase: Phase, record: SplitRecord) -> Path:
    """Write a record as trainrig 0.1 did, in a file of its own."""
    path = Path(phase.records, f"{record.name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.model_dump_json())
    return path


def test_records_of_an_older_version_are_kept(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    phase = make_phase(tmp_path, done)
    old = SplitRecord(name="a", counts={"letters": 3, "by": {"x": 1}}, files={})
    path = write_old_record(phase, old)
    other = path.with_name("decision.json")
    other.write_text("[]")
    do(phase)
    assert done == {"bbb": 1, "ccc": 1}
    assert phase.read_results(SPLITS[1:2]) == [old]
    assert not path.exists() and other.exists()


def test_a_phase_whose_records_are_all_of_an_older_version_is_finished(tmp_path: Path) -> None:
    phase = make_phase(tmp_path, Counter())
    for split in SPLITS:
        write_old_record(phase, SplitRecord(name=split.name, counts={}, files={}))
    map_splits(phase, SPLITS, workers=0)
    assert [record.name for record in phase.read_results(SPLITS)] == ["b", "a", "c"]
    assert [path.name for path in Path(phase.records).iterdir()] == ["records.parquet"]


def test_a_newer_record_counts_before_one_of_an_older_version(tmp_path: Path) -> None:
    phase = make_phase(tmp_path, Counter())
    do(phase)
    path = write_old_record(phase, SplitRecord(name="a", counts={"letters": 9}, files={}))
    assert phase.find_unfinished(SPLITS) == []
    assert phase.read_results(SPLITS[1:2])[0].counts == {"letters": 3}
    assert path.exists()


def test_records_may_lie_in_a_bucket(s3: str) -> None:
    phase = Phase(f"{s3}/out/scratch/records", lambda: lambda task: ({}, {}))
    do(phase, SPLITS[:1])
    assert phase.find_unfinished(SPLITS) == SPLITS[1:]
    assert phase.read_results(SPLITS[:1]) == [SplitRecord(name="b", counts={}, files={})]


def test_records_in_a_bucket_are_read_side_by_side(proxy: Proxy, s3: str) -> None:
    many = [Split(f"{number:02}", {}) for number in range(40)]
    phase = Phase(f"{s3}/records", lambda: lambda task: ({}, {}))
    for split in many:
        do(phase, [split])
    proxy.delay = 0.02
    proxy.count()
    assert [record.name for record in phase.read_results(many)] == [split.name for split in many]
    assert proxy.most_at_once > 4
    assert proxy.count() == {"LIST": 1, "GET": 40}  # the tables of 40 runs


def test_work_that_fails_leaves_no_record(tmp_path: Path) -> None:
    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        raise ZeroDivisionError

    phase = Phase(str(tmp_path), lambda: work)
    with pytest.raises(ZeroDivisionError):
        do(phase)
    assert phase.find_unfinished(SPLITS) == SPLITS


STOPPED_BEFORE_ITS_RECORD = """
import signal, sys
from pathlib import Path
from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Phase, Split, storage
def work(task):
    Path(sys.argv[1], "aaa.txt").write_text("aaa")
    return {}, {}
def stop(path, data):
    print("worked, not yet recorded", flush=True)
    signal.pause()
storage.write = stop
phase = Phase(sys.argv[1] + "/records", lambda: work)
_, records = phase.open_records([])
records.add(phase.do(work, Split("a", {"letters": "aaa"})).to_row())
"""


@pytest.mark.chaos
def test_a_split_killed_between_its_work_and_its_record_is_done_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED_BEFORE_ITS_RECORD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert (tmp_path / "aaa.txt").exists()
    done: Counter[str] = Counter()
    do(make_phase(tmp_path, done))
    assert done == {"aaa": 1, "bbb": 1, "ccc": 1}


# Choice of records


def choose(split: Split) -> tuple[list[tuple[str, bool]], RecordSelection]:
    """Return the letters that work on a split of three pieces chooses, and their selection."""
    records = RecordSelection(split.task)
    found = [choice for piece in ("ab", "", "cde") for choice in records.choose(piece)]
    return found, records


def test_all_records_are_processed_and_crashed_ones_are_marked() -> None:
    split = Split("a", {"pieces": [{"path": "x"}, {"path": "y"}, {"path": "x"}]})
    assert [letter for letter, _ in choose(split)[0]] == list("abcde")
    left = split.leave_out(3).leave_out(1)
    assert [letter for letter, crashed in choose(left)[0] if crashed] == ["b", "d"]
    assert not choose(left)[1].probing
    assert split.list_paths() == ["x", "y"]


@pytest.mark.parametrize(
    ("begin", "end", "letters", "read"),
    [(1, 4, "bcd", 4), (0, 2, "ab", 2), (4, 99, "e", 5), (sys.maxsize, sys.maxsize, "", 5)],
)
def test_a_probe_processes_a_range_of_records_and_counts_those_that_it_read(
    begin: int, end: int, letters: str, read: int
) -> None:
    found, records = choose(Split("a", {}).leave_out(2).probe(begin, end))
    assert "".join(letter for letter, _ in found) == letters
    assert records.probing and records.build_probe_counts() == {"records": read}


# Sums


def test_numbers_are_added_key_by_key() -> None:
    counts = [
        {"pages": 3, "dropped": {"short": 1, "long": 2}},
        {"pages": 4, "unread": 1, "dropped": {"short": 5}},
        {"dropped": {"by": {"host": 1}}},
    ]
    assert splits.sum_counts(counts) == {
        "dropped": {"by": {"host": 1}, "long": 2, "short": 6},
        "pages": 7,
        "unread": 1,
    }
    assert splits.sum_counts([]) == {}
    assert splits.sum_counts([{"dropped": {}}]) == {"dropped": {}}


def test_summing_does_not_change_its_inputs() -> None:
    first = {"a": {"b": 1}}
    second = {"a": {"b": 2}}
    splits.sum_counts([first, second])
    assert (first, second) == ({"a": {"b": 1}}, {"a": {"b": 2}})


def count_calls(number: int) -> int:
    """Return the number of function calls that sum the counts of `number` splits."""
    told = [
        {"hosts": {f"{split}-{n}.example": {"97": 1} for n in range(9)}} for split in range(number)
    ]
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        splits.sum_counts(told)
    finally:
        sys.setprofile(None)
    return calls


def test_the_work_of_summing_grows_with_the_tables_alone() -> None:
    assert count_calls(80) <= 2 * count_calls(40)


tables = st.fixed_dictionaries(
    {},
    optional={
        "pages": st.integers(),
        "dropped": st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
        "deep": st.fixed_dictionaries(
            {}, optional={"er": st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)}
        ),
    },
)


@given(st.lists(tables, max_size=5).flatmap(lambda t: st.tuples(st.just(t), st.permutations(t))))
def test_the_total_depends_on_no_order(
    both: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    one, other = (splits.sum_counts(counts) for counts in both)
    assert one == other
    assert str(one) == str(other)  # the keys' order too


@given(st.lists(tables, max_size=3), st.lists(tables, max_size=3))
def test_the_total_of_totals_is_the_total(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    assert splits.sum_counts(
        [splits.sum_counts(one), splits.sum_counts(other)]
    ) == splits.sum_counts(one + other)
