"""Samples of near-duplicates in a split, with the documents kept in their place, for reports."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainrig.corpus.dedup.document_refs import format_ids
from trainrig.corpus.dedup.documents import (
    BY_LIKENESS,
    KEPT,
)
from trainrig.corpus.files.arrays import load_arrays

MOST = 3  # pairs in a report
EXCERPT = 2000  # characters of each text


@dataclass(frozen=True, order=True)
class LikePair:
    """A dropped document and the kept one that it duplicates, as they were compared."""

    id: str  # id of the dropped document
    url: str
    text: str
    kept_url: str
    kept_text: str
    similarity: float


class LikePairs:
    """Pairs of a dropped document and its kept duplicate within one split.

    Those with the lowest ids are chosen: ids are digests, so this is a random sample, and it needs
    no data of other splits.
    """

    def __init__(self, settled: str) -> None:
        there = load_arrays(settled, ["ids", "kinds", "repeated", "similarities"])
        fell = np.flatnonzero(there["kinds"] == BY_LIKENESS)
        kept = there["ids"][there["kinds"] == KEPT]
        fell = fell[np.isin(there["repeated"][fell, 0], kept[:, 0])]
        order = np.lexsort((there["ids"][fell, 1], there["ids"][fell, 0]))
        chosen = fell[order][:MOST]
        ids = format_ids(there["ids"][chosen])
        partners = format_ids(there["repeated"][chosen])
        self._partners = dict(zip(ids, partners, strict=True))
        self._similarities = dict(zip(ids, there["similarities"][chosen].tolist(), strict=True))
        self._rows: dict[str, dict[str, str]] = {}

    def add(self, rows: pa.Table) -> None:
        """Collect the texts of the pairs from some rows of the split, before any span removal."""
        wanted = pa.array([*self._partners, *self._partners.values()], pa.string())
        found = rows.select(["id", "url", "text"]).filter(pc.is_in(rows["id"], wanted))
        for row in found.to_pylist():
            self._rows[row["id"]] = row | {"text": row["text"][:EXCERPT]}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the pairs as JSON objects."""
        return [
            asdict(
                LikePair(
                    **self._rows[fell],
                    kept_url=self._rows[kept]["url"],
                    kept_text=self._rows[kept]["text"],
                    similarity=self._similarities[fell],
                )
            )
            for fell, kept in self._partners.items()
            if fell in self._rows and kept in self._rows
        ]
