import functools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainrig import storage
from trainrig.corpus.report.host_tallies import build_host_counts
from trainrig.corpus.stages import tally_sums
from trainrig.splits import Phase, Split

NAMES = [f"web-{number:05d}" for number in range(23)]


def make_told(number: int) -> dict[str, Any]:
    return {
        "samples": {"short": [{"id": f"{(number * 7) % 23:02}"}], f"rule-{number % 2}": []},
        "pairs": [{"id": f"{(number * 5) % 23:02}"}],
        "counts": {"kept": {"web": {"en": {"documents": number}}}, "quarantined": {}},
    }


def make_hosts(number: int) -> dict[tuple[str, int], int]:
    return {("same.example", number % 3): 2, (f"{number}.example", 100): 1}


def add_up(folder: Path) -> tuple[int, str]:
    """Write and add up the tallies of all splits; return the level and name of the sum."""
    path_of = functools.partial(storage.join, str(folder))
    for number, name in enumerate(NAMES):
        hosts = build_host_counts(make_hosts(number))
        tally_sums.write_tally(path_of, 0, name, make_told(number), hosts)

    def run_tasks(level: int, tasks: Sequence[Split]) -> None:
        work = functools.partial(tally_sums.sum_tallies, path_of, level)
        phase = Phase(path_of("done", str(level)), work)
        for task in tasks:
            phase.do(work(), task)

    return tally_sums.add_up(NAMES, run_tasks)


def read_sum(folder: Path, level: int, name: str) -> tuple[bytes, bytes]:
    below = folder / "tallies" / str(level) / name
    return below.with_suffix(".json").read_bytes(), below.with_suffix(".parquet").read_bytes()


def test_the_sum_does_not_depend_on_how_many_tallies_a_task_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = read_sum(tmp_path / "one", *add_up(tmp_path / "one"))
    monkeypatch.setattr(tally_sums, "FAN_IN", 3)
    level, name = add_up(tmp_path / "tree")
    assert level == 3
    assert read_sum(tmp_path / "tree", level, name) == at_once
    told = json.loads(at_once[0])
    assert told["samples"] == {
        "rule-0": [],
        "rule-1": [],
        "short": [{"id": "00"}, {"id": "01"}, {"id": "02"}],
    }
    assert told["counts"]["kept"]["web"]["en"] == {"documents": sum(range(23))}
    hosts = sum((Counter(make_hosts(number)) for number in range(23)), Counter())
    folder = functools.partial(storage.join, str(tmp_path / "one"))
    found = tally_sums._read_hosts(folder, 1, "00000")
    assert found == build_host_counts(hosts)


def test_each_tally_is_read_once_and_a_task_reads_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally_sums, "FAN_IN", 3)
    reads: Counter[str] = Counter()
    read = storage.read

    def count(path: str) -> bytes:
        reads[path] += 1
        return read(path)

    monkeypatch.setattr(storage, "read", count)
    level, name = add_up(tmp_path)
    assert set(reads.values()) == {1}
    # 23 tallies of splits, then 8 sums and 3 sums of sums; the driver reads the last one.
    assert len(reads) == 23 + 8 + 3
    assert str(tmp_path / "tallies" / str(level) / f"{name}.json") not in reads
