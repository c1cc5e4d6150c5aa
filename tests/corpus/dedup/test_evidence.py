from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from trainrig.corpus.dedup.evidence import SCHEMA, read_edges, write_pairs
from trainrig.corpus.dedup.names import id_texts, refs

SHELF = 3


def pairs(count: int) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(count)
    return {
        "a": dice.integers(0, 2**64, (count, 2), np.uint64),
        "b": dice.integers(0, 2**64, (count, 2), np.uint64),
        "similarity": dice.uniform(0.5, 1, count),
        "a_shelf": np.full(count, SHELF),
        "a_row": np.arange(count),
        "b_shelf": dice.integers(SHELF, 9, count),
        "b_row": dice.integers(0, 2**31, count),
        "a_rank": dice.integers(0, 2**64, count, np.uint64),
        "b_rank": dice.integers(0, 2**64, count, np.uint64),
    }


@pytest.mark.parametrize("count", [0, 1, 1_000])
@pytest.mark.parametrize("threshold", [0.0, 0.8, 1.1])
def test_pairs_come_back_from_either_end_and_those_alike_enough_alone(
    tmp_path: Path, count: int, threshold: float
) -> None:
    written, path = pairs(count), str(tmp_path / "pairs.parquet")
    write_pairs(path, written)
    there = read_edges(path, SHELF, threshold)
    enough = written["similarity"] >= threshold
    forth, back = np.split(there, 2)
    for one, end in ((forth, "a"), (back, "b")):
        other = "b" if end == "a" else "a"
        for prefix, column in (("", end), ("other_", other)):
            ids = np.stack([one[f"{prefix}id0"], one[f"{prefix}id1"]], axis=1)
            assert np.array_equal(ids, written[column][enough])
            assert np.array_equal(one[f"{prefix}rank"], written[f"{column}_rank"][enough])
        assert np.array_equal(one["similarity"], written["similarity"][enough])
    assert np.array_equal(forth["ref"], refs(SHELF, written["a_row"][enough]))
    assert np.array_equal(back["other_ref"], forth["ref"])
    assert np.array_equal(back["ref"], forth["other_ref"])
    assert np.array_equal(
        forth["other_ref"],
        written["b_row"][enough].astype(np.uint64)
        | written["b_shelf"][enough].astype(np.uint64) << np.uint64(32),
    )


def test_anybody_reads_them(tmp_path: Path) -> None:
    written, path = pairs(5), str(tmp_path / "pairs.parquet")
    write_pairs(path, written)
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    assert table["a"].to_pylist() == id_texts(written["a"])
    assert table["b"].to_pylist() == id_texts(written["b"])
