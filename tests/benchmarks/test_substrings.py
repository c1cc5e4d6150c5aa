"""CPU seconds and memory of common lines and exact substrings, compared with plain methods.

The texts are words drawn from real pages, in documents of about 5 kB. A fifth of the documents
contains a passage of another one, each contains two of 300 common lines. So a known part repeats,
at any size.
"""

import ctypes
import functools
import hashlib
import json
import re
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pydivsufsort
import pytest
from support import side_by_side
from support.edited_pages import read_texts
from support.side_by_side import measure_pace, print_result

from trainrig.corpus.repeated_text.common_lines import (
    CommonLines,
    NormalForm,
    count_lines,
    cut_lines,
    find_common_lines,
    find_units,
)
from trainrig.corpus.repeated_text.exact_substrings import (
    ExactSubstrings,
    choose_partition_count,
    count_anchors,
    cut_substrings,
    find_repeated_anchors,
    find_repeats,
    gather_pieces,
)

pytestmark = [pytest.mark.bench, pytest.mark.data]

ROUNDS = 5
SPLITS = 4
BATCH = 500  # documents


def make_corpus(data: Path, megabytes: int, ascii_only: bool = False) -> list[str]:
    """Return documents as described above."""
    words = np.array(" ".join(read_texts(data)).split(), dtype=object)
    if ascii_only:
        words = words[[word.isascii() for word in words]]
    dice = np.random.default_rng(0)
    common = [" ".join(dice.choice(words, 12)) for _ in range(300)]
    texts: list[str] = []
    size = 0
    while size < megabytes * 1_000_000:
        lines = [" ".join(line) for line in dice.choice(words, (dice.integers(5, 100), 15))]
        lines[1:1] = [common[i] for i in dice.integers(0, len(common), 2)]
        if texts and dice.random() < 0.2:
            other = texts[dice.integers(len(texts))]
            start = dice.integers(max(1, len(other) - 2_000))
            lines.append(other[start : start + 2_000])
        texts.append("\n".join(lines))
        size += len(texts[-1].encode())
    return texts


def batches(texts: list[str]) -> Iterator[tuple[list[str], np.ndarray]]:
    for start in range(0, len(texts), BATCH):
        some = texts[start : start + BATCH]
        yield some, np.arange(start, start + len(some))


@pytest.mark.parametrize("ascii_only", [True, False], ids=["ascii", "all"])
def test_lines(test_data: Path, tmp_path: Path, ascii_only: bool):
    texts = make_corpus(test_data, 30, ascii_only)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rules = CommonLines()
    counted, common, cuts = (str(tmp_path / name) for name in ("counted", "common", "cuts"))
    result = {
        "benchmark": f"common lines, {'ASCII' if ascii_only else 'all'} words",
        "megabytes": round(megabytes, 1),
        "lines": sum(text.count("\n") + 1 for text in texts),
        "count": measure_pace(lambda: count_lines(batches(texts), rules, counted), megabytes),
        "decide": measure_pace(
            lambda: find_common_lines([counted], 0, 1, rules, common), megabytes
        ),
        "cut": measure_pace(lambda: cut_lines(batches(texts), [common], rules, cuts), megabytes),
        "cut_counts": cut_lines(batches(texts), [common], rules, cuts),
    }
    print(json.dumps(result))
    if ascii_only:
        assert result["count"]["median"] >= 40


_DROPPED = re.compile(r"[!-/:-@\[-`{-~\x00-\x1f\x7f]")


def compute_plain_key(line: str) -> bytes:
    """Return CCNet's normal form and hash of one line, as its paper defines them."""
    line = unicodedata.normalize("NFD", line.strip().lower())
    line = "".join(c for c in line if unicodedata.category(c) != "Mn")
    return hashlib.sha1(_DROPPED.sub("", re.sub(r"\d", "0", line)).encode()).digest()[:8]


def test_keys_of_lines_compared_with_one_line_at_a_time(test_data: Path):
    texts = make_corpus(test_data, 3)
    ratio = side_by_side.compare(
        "keys of lines beside SHA-1 of each line's normal form in Python",
        lambda: find_units(texts, CommonLines(), NormalForm()),
        lambda: [compute_plain_key(line) for text in texts for line in text.split("\n")],
        ROUNDS,
    )
    assert ratio < 0.2


def run_all_phases(texts: list[str], rules: ExactSubstrings, folder: Path) -> dict[str, object]:
    """Run all phases from texts to removed spans; return CPU seconds and counts of each phase."""
    splits = [list(batches(texts))[number::SPLITS] for number in range(SPLITS)]
    seconds: dict[str, float] = {}
    counts: dict[str, dict[str, int]] = {}

    def phase(name: str, work: Callable[[int, str], dict[str, int]], times: int) -> list[str]:
        paths = [str(folder / f"{name}-{number}") for number in range(times)]
        began = time.process_time()
        reports = [work(number, path) for number, path in enumerate(paths)]
        seconds[name] = round(time.process_time() - began, 2)
        counts[name] = {key: sum(report[key] for report in reports) for key in reports[0]}
        return paths

    anchors = phase(
        "count_anchors",
        lambda n, path: count_anchors((some for some, _ in splits[n]), rules, path),
        SPLITS,
    )
    repeated = phase(
        "repeated_anchors", lambda n, path: find_repeated_anchors(anchors, 0, 1, path), 1
    )
    partitions = choose_partition_count(counts["repeated_anchors"]["copies"], rules)
    pieces = phase(
        "gather_pieces",
        lambda n, path: gather_pieces(splits[n], repeated, partitions, rules, path),
        SPLITS,
    )
    repeats = phase(
        "find_repeats", lambda n, path: find_repeats(pieces, n, rules, path), partitions
    )
    phase(
        "cut_substrings",
        lambda n, path: cut_substrings(
            (some for some, _ in splits[n]), repeats, n, path, f"{path}-passages"
        ),
        SPLITS,
    )
    return {
        "seconds": seconds,
        "pieces_bytes": counts["gather_pieces"]["bytes"],
        "arrays": counts["find_repeats"]["arrays"],
        **counts["cut_substrings"],
    }


def measure_size(data: Path, megabytes: int, folder: Path, memory: int) -> dict[str, object]:
    """Measure one size in a separate process, whose peak memory is of this size alone."""
    arguments = [sys.executable, __file__, str(data), str(megabytes), str(folder), str(memory)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("memory", [2**31, 2**26], ids=["2 GiB", "64 MiB"])
def test_substrings(test_data: Path, tmp_path: Path, memory: int):
    results = [measure_size(test_data, size, tmp_path, memory) for size in (10, 100)]
    small, large = results
    print_result(
        benchmark=f"exact substrings, {memory // 2**20} MiB for an array",
        sizes=results,
        seconds_for_10_times_the_text=round(large["cpu_seconds"] / small["cpu_seconds"], 2),
    )
    assert large["megabytes_per_cpu_second"] >= 8 or memory < 2**31


def test_substrings_where_more_repeats(test_data: Path, tmp_path: Path):
    real = read_texts(test_data)
    drawn = make_corpus(test_data, 5)
    for name, texts, least in (  # `least` is the share of text that copies an earlier passage
        ("real pages", real, 0.0),
        ("a text twice", drawn * 2, 0.5),
        ("a text ten times", drawn[: len(drawn) // 5] * 10, 0.9),
        ("one letter", ["a" * 10_000_000], 0.9),
        ("one line over and over", ["That is what they say, each of them. " * 500] * 500, 0.9),
    ):
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        work = functools.partial(run_all_phases, texts, ExactSubstrings(), tmp_path)
        speed = measure_pace(work, megabytes, rounds=3)
        share = work()["bytes_cut"] / 1e6 / megabytes
        print_result(
            benchmark=f"exact substrings, {name}",
            megabytes=round(megabytes, 1),
            mb_per_cpu_second=speed,
            share_cut=round(share, 3),
        )
        assert least <= share <= 1


def test_substrings_compared_with_one_suffix_array(test_data: Path, tmp_path: Path):
    texts = make_corpus(test_data, 10)
    data = np.frombuffer("\0".join(texts).encode(), np.uint8).copy()

    def whole() -> np.ndarray:
        order = pydivsufsort.divsufsort(data)
        return np.flatnonzero(pydivsufsort.kasai(data, order) >= 200)

    # A cut is a copy of a passage that stays, and so begins or lies where the suffix array has one.
    repeated = np.zeros(len(data) + 1, np.int64)
    order = pydivsufsort.divsufsort(data)
    common = pydivsufsort.kasai(data, order)
    for rank in np.flatnonzero(common >= 200):
        for place in order[rank : rank + 2]:
            repeated[place] += 1
            repeated[place + common[rank]] -= 1
    covered = int(np.count_nonzero(repeated.cumsum()))
    cut = run_all_phases(texts, ExactSubstrings(), tmp_path)["bytes_cut"]
    assert 0 < cut < covered
    side_by_side.compare(
        "exact substrings, texts to cuts, beside a suffix array of all and Kasai's prefixes",
        lambda: run_all_phases(texts, ExactSubstrings(), tmp_path),
        whole,
        3,
    )


def read_memory(name: str) -> int:
    """Return the megabytes of this process that Linux counts under `name`."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", status)[1]) // 1024


def main() -> None:
    data, megabytes, folder, memory = sys.argv[1:]
    rules = ExactSubstrings(memory=int(memory))
    run_all_phases(make_corpus(Path(data), 1), rules, Path(folder))  # compiles the kernels
    texts = make_corpus(Path(data), int(megabytes))
    ctypes.CDLL(None).malloc_trim(0)  # returns the memory freed after making the texts
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read_memory("VmRSS")
    began = time.process_time()
    found = run_all_phases(texts, rules, Path(folder))
    seconds = time.process_time() - began
    found |= {
        "cpu_seconds": round(seconds, 2),
        "megabytes_per_cpu_second": round(found["bytes"] / 1e6 / seconds, 1),
        "peak_mb_above_the_texts": read_memory("VmHWM") - before,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
