import itertools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.sorted_runs import RunPart, read_part, write_run, writing_run
from trainrig.errors import DataError

KIND = np.dtype([("key", "u8"), ("value", "u4")])
PARTS = 4

runs = st.lists(
    st.lists(st.tuples(st.integers(0, PARTS - 1), st.integers(0, 99)), max_size=12), max_size=4
)


def written(folder: str, runs: list[list[tuple[int, int]]]) -> list[str]:
    paths = [f"{folder}/{number}.run" for number in range(len(runs))]
    for path, rows in zip(paths, runs, strict=True):
        parts = np.array([part for part, _ in rows], np.int64)
        write_run(path, np.array(rows, KIND), parts, PARTS)
    return paths


@given(runs)
def test_a_part_joins_the_runs_in_order(runs):
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        paths = written(folder, runs)
        for part in range(PARTS):
            found = read_part(paths, part, KIND).tolist()
            counts = RunPart.of(paths, part, KIND).count_rows(paths)
            assert counts == [sum(row[0] == part for row in rows) for rows in runs]
            assert found == [row for rows in runs for row in rows if row[0] == part]


@given(runs, st.integers(1, 5))
def test_a_run_of_many_chunks_is_read_chunk_after_chunk_and_in_pieces(chunks, most):
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        path = f"{folder}/0.run"
        with writing_run(path, PARTS) as run:
            for rows in chunks:
                run.add(np.array(rows, KIND), np.array([part for part, _ in rows], np.int64))
        for part in range(PARTS):
            wanted = [row for rows in chunks for row in rows if row[0] == part]
            assert read_part([path], part, KIND).tolist() == wanted
            both = RunPart.of([path, path], part, KIND)
            assert both.count == 2 * len(wanted)
            read = [piece.tolist() for piece in both.iterate_pieces(most)]
            assert [row for piece in read for row in piece] == wanted * 2
            assert all(0 < len(piece) <= most for piece in read)
            assert all(len(one) + len(two) > most for one, two in itertools.pairwise(read))


@pytest.mark.parametrize("left", [3, 30, 60, -1])
def test_a_torn_run_is_named(tmp_path, left):
    (path,) = written(str(tmp_path), [[(0, 1), (3, 2)]])
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:left])
    with pytest.raises(DataError, match=r"0\.run: the file"):
        read_part([path], PARTS - 1, KIND)


def test_only_its_part_is_read(s3, monkeypatch):
    from trainrig import storage

    path = f"{s3}/0.run"
    write_run(
        path, np.array([(n, n) for n in range(1000)], KIND), np.arange(1000) // 250, PARTS + 1
    )
    asked: list[int] = []
    read_range = storage.read_range

    def counted(path, begin, end):
        asked.append(end - begin)
        return read_range(path, begin, end)

    monkeypatch.setattr(storage, "read_range", counted)
    assert read_part([path], 2, KIND)["key"].tolist() == list(range(500, 750))
    assert asked == [2 * 8, 3 * 8, 250 * KIND.itemsize]
    asked.clear()
    assert len(read_part([path], 4, KIND)) == 0
    assert asked == [2 * 8]
