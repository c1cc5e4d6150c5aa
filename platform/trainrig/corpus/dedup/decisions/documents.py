"""The documents of one split that passed the rules, and the dedup decision on each.

An .npz file, of about 100 bytes a document. It stays beside the output, so that thresholds can be
decided again, and a later crawl be held to this one.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.decisions.keep import KeepRule, rank_across_crawls
from trainrig.corpus.dedup.pairs.document_reference import SplitIndex, format_ids
from trainrig.corpus.files.arrays import load_arrays, save_arrays

COPIES = SAME_URL, EXACT, NEAR = "url_duplicate", "exact_duplicate", "near_duplicate"
# Kinds of fate: 0 for none, else the place in COPIES from 1.
KEPT, BY_URL, BY_TEXT, BY_LIKENESS = range(4)


@dataclass(frozen=True)
class Documents:
    """Those of one split, in their order."""

    ids: NDArray[np.uint64]  # [documents, 2]
    ranks: NDArray[np.uint64]  # [documents] by the keep rule
    digests: NDArray[np.uint8]  # [documents, 16] of the texts
    urls: NDArray[np.uint8]  # [documents, 16] of the normalised URLs

    @classmethod
    def list_array_names(cls) -> list[str]:
        """Of the arrays."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def load(cls, split_index: SplitIndex, rule: KeepRule) -> "Documents":
        """Those of a split index, with the ranks that `rule` gives to them among all crawls."""
        there = cls.from_split_index(split_index)
        return dataclasses.replace(
            there, ranks=rank_across_crawls(rule, there.ranks, split_index.crawl)
        )

    @classmethod
    def from_split_index(cls, split_index: SplitIndex) -> "Documents":
        """Those of a split index, with the ranks that they have in their own crawl."""
        return cls(**load_arrays(split_index.documents, cls.list_array_names()))

    def save(self, path: str, decisions: "DedupDecisions | None" = None) -> None:
        """Write them, and what became of them where that is known."""
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        save_arrays(path, arrays | (decisions.collect_arrays() if decisions else {}))


def keep_order(
    split_index: SplitIndex, rule: KeepRule
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """What the documents of a split index compare by: ranks among all crawls, and ids [documents,
    2]."""
    there = load_arrays(split_index.documents, ["ranks", "ids"])
    return rank_across_crawls(rule, there["ranks"], split_index.crawl), there["ids"]


@dataclass(frozen=True)
class DedupDecisions:
    """What became of the documents of one split."""

    kinds: NDArray[np.uint8]  # [documents] KEPT, BY_URL, BY_TEXT or BY_LIKENESS
    repeated: NDArray[np.uint64]  # [documents, 2] id of the kept document that it repeats
    similarities: NDArray[np.float64]  # [documents] NaN where nobody compared the texts
    clusters: NDArray[np.uint64]  # [documents, 2] lowest id of all that are alike; 0, 0 for alone

    @classmethod
    def none(cls, count: int) -> "DedupDecisions":
        """Those of as many documents that nothing is like."""
        return cls(
            np.zeros(count, np.uint8),
            np.zeros((count, 2), np.uint64),
            np.full(count, np.nan),
            np.zeros((count, 2), np.uint64),
        )

    @classmethod
    def load(cls, path: str) -> "DedupDecisions":
        """What `Documents.save` was given."""
        return cls(**load_arrays(path, [field.name for field in dataclasses.fields(cls)]))

    def collect_arrays(self) -> dict[str, NDArray[np.generic]]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def build_verdicts(self) -> dict[int, dict[str, str | float | None]]:
        """By place, the columns of those that have something to tell."""
        tells = np.flatnonzero((self.kinds != KEPT) | self.clusters.any(axis=1))
        clusters = format_ids(self.clusters[tells])
        repeated = format_ids(self.repeated[tells])
        told: dict[int, dict[str, str | float | None]] = {}
        for nth, place in enumerate(tells.tolist()):
            kind, similarity = int(self.kinds[place]), float(self.similarities[place])
            fell = kind != KEPT
            told[place] = {
                "dropped_by": COPIES[kind - 1] if fell else None,
                "duplicate_of": repeated[nth] if fell else None,
                "similarity": None if np.isnan(similarity) else similarity,
                "cluster": clusters[nth] if self.clusters[place].any() else None,
            }
        return told
