from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from trainrig.corpus.dedup import verified_pairs
from trainrig.corpus.dedup.document_refs import DOCUMENT_KEY, format_ids, make_refs
from trainrig.corpus.dedup.verified_pairs import PAIR, SCHEMA, read_pairs, write_pairs

SHELF = 3


def make_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of one split index's documents with others, and the keys of all documents."""
    dice = np.random.default_rng(count)
    found = np.empty(count, PAIR)
    found["a"] = make_refs(SHELF, np.arange(count))
    found["b"] = make_refs(dice.integers(0, 9, count), dice.integers(0, 2**32, count))
    found["similarity"] = dice.uniform(0.5, 1, count)
    names = np.empty(len(known := np.unique([*found["a"], *found["b"]])), DOCUMENT_KEY)
    names["ref"] = known
    for name in ("rank", "id0", "id1"):
        names[name] = dice.integers(0, 2**64, len(known), np.uint64)
    return found, names


@pytest.mark.parametrize("count", [0, 1, 1_000])
@pytest.mark.parametrize("threshold", [0.0, 0.8, 1.1])
@pytest.mark.parametrize("group", [300, 100_000])
def test_similar_pairs_are_read_back_with_their_keys(
    tmp_path: Path, count: int, threshold: float, group: int
) -> None:
    (written, names) = make_pairs(count)
    path = str(tmp_path / "pairs.parquet")
    with mock.patch.object(verified_pairs, "_ROW_GROUP", group):
        write_pairs(path, written, names)
    there = list(read_pairs(path, SHELF, threshold))
    assert len(there) == -(-count // group)
    found, a, b = (
        ([row for part in column for row in part.tolist()] for column in zip(*there, strict=True))
        if there
        else ([], [], [])
    )
    assert found == written[written["similarity"] >= threshold].tolist()
    known = {name[0]: name for name in names.tolist()}
    assert a == [known[ref] for ref, _, _ in found]
    assert b == [known[ref] for _, ref, _ in found]


def test_anybody_reads_them(tmp_path: Path) -> None:
    (written, names) = make_pairs(5)
    path = str(tmp_path / "pairs.parquet")
    write_pairs(path, written, names)
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    for end in "ab":
        rows = names[np.searchsorted(names["ref"], written[end])]
        ids = np.stack([rows["id0"], rows["id1"]], axis=1)
        assert table[end].to_pylist() == format_ids(ids)
        assert table[f"{end}_rank"].to_pylist() == rows["rank"].tolist()
