"""Documents of one split that passed the rules, those with equal digests, and decisions on them.

The documents and the decisions on them are stored as an .npz file of about 100 bytes per document.
The file stays in the output, so that another threshold can be applied, or a later crawl
deduplicated against this one. Documents with equal digests (of texts or URLs) are found one range
of digests at a time.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_files import load_arrays, save_arrays
from trainrig.corpus.array_types import Bools, Float64s, UInt8s, UInt64s
from trainrig.corpus.dedup.document_refs import SplitIndex, format_ids, group_equal_keys
from trainrig.corpus.dedup.keep_rules import KeepRule, rank_across_crawls
from trainrig.corpus.dedup.sorted_runs import Rows

DIGEST = np.dtype([(name, "u8") for name in ("key", "more", "rank", "id0", "id1", "ref")])
# `first`: ref of the first document in the keep order with the same digest; `id0`, `id1`: its id
REPEAT = np.dtype([(name, "u8") for name in ("ref", "first", "id0", "id1")])


def digest_rows(words: UInt64s, ranks: UInt64s, ids: UInt64s, refs: UInt64s) -> Rows:
    """Build a DIGEST row for each document.

    `words` [documents, 2] are the digests, and `ids` [documents, 2] the ids.
    """
    rows = np.empty(len(refs), DIGEST)
    rows["key"] = words[:, 0]
    rows["more"] = words[:, 1]
    rows["rank"] = ranks
    rows["id0"] = ids[:, 0]
    rows["id1"] = ids[:, 1]
    rows["ref"] = refs
    return rows


def find_repeated_documents(rows: Rows) -> Rows:
    """Return a REPEAT row for each document whose digest one earlier in the keep order has, too."""
    shared, _ = group_equal_keys(np.ascontiguousarray(rows["key"]))
    rows = np.take(rows, shared)
    rows = np.take(rows, np.lexsort([rows[name] for name in reversed(DIGEST.names or ())]))
    starts = np.ones(len(rows), bool)
    starts[1:] = (rows["key"][1:] != rows["key"][:-1]) | (rows["more"][1:] != rows["more"][:-1])
    firsts = np.flatnonzero(starts)[np.cumsum(starts) - 1]
    again = np.flatnonzero(~starts)
    found = np.empty(len(again), REPEAT)
    found["ref"] = rows["ref"][again]
    for name, source in (("first", "ref"), ("id0", "id0"), ("id1", "id1")):
        found[name] = rows[source][firsts[again]]
    return found


def pick_one_per_first(repeats: Rows) -> Rows:
    """Return one repeat of each document that has repeats, sorted by that document's ref."""
    return np.take(repeats, np.unique(repeats["first"], return_index=True)[1])


COPIES = SAME_URL, EXACT, NEAR = "url_duplicate", "exact_duplicate", "near_duplicate"
# Kinds of decision: 0 for a kept document, else the position in COPIES, from 1.
KEPT, BY_URL, BY_TEXT, BY_LIKENESS = range(4)


@dataclass(frozen=True)
class Documents:
    """The documents of one split, in order."""

    ids: UInt64s  # [documents, 2]
    ranks: UInt64s  # [documents] rank by the keep rule; the lowest is kept
    digests: UInt8s  # [documents, 16] digests of the texts
    urls: UInt8s  # [documents, 16] digests of the normalised URLs

    @classmethod
    def list_array_names(cls) -> list[str]:
        """Return the names of the arrays in the file."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def load(cls, split_index: SplitIndex, rule: KeepRule) -> "Documents":
        """Load the documents of a split index, with their ranks by `rule` among all crawls."""
        there = cls.from_split_index(split_index)
        return dataclasses.replace(
            there, ranks=rank_across_crawls(rule, there.ranks, split_index.crawl)
        )

    @classmethod
    def from_split_index(cls, split_index: SplitIndex) -> "Documents":
        """Load the documents of a split index, with their ranks within their own crawl."""
        return cls(**load_arrays(split_index.documents, cls.list_array_names()))

    def save(self, path: str, decisions: "DedupDecisions | None" = None) -> None:
        """Write the documents to `path`, and the decisions on them if they are given."""
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        save_arrays(path, arrays | (decisions.collect_arrays() if decisions else {}))


def keep_order(split_index: SplitIndex, rule: KeepRule) -> tuple[UInt64s, UInt64s]:
    """Return the ranks among all crawls and the ids [documents, 2] of a split index's documents."""
    there = load_arrays(split_index.documents, ["ranks", "ids"])
    return rank_across_crawls(rule, there["ranks"], split_index.crawl), there["ids"]


def format_partners(repeated: UInt64s) -> list[str | None]:
    """Return the ids [documents, 2] of repeated documents as text; None for 0, 0."""
    there = np.asarray(repeated.any(axis=1))
    return [id if one else None for id, one in zip(format_ids(repeated), there, strict=True)]


@dataclass(frozen=True)
class DedupDecisions:
    """Decisions on the documents of one split."""

    kinds: UInt8s  # [documents] KEPT, BY_URL, BY_TEXT or BY_LIKENESS
    # [documents, 2] id of the document that each dropped one repeats; 0, 0 if all copies are
    # dropped and it comes first in the keep order
    repeated: UInt64s
    similarities: Float64s  # [documents] NaN where the texts were not compared
    # [documents, 2] lowest id of the document's cluster; 0, 0 if it is alone
    clusters: UInt64s

    @classmethod
    def none(cls, count: int) -> "DedupDecisions":
        """Return decisions that keep `count` documents without duplicates."""
        return cls(
            np.zeros(count, np.uint8),
            np.zeros((count, 2), np.uint64),
            np.full(count, np.nan),
            np.zeros((count, 2), np.uint64),
        )

    @classmethod
    def load(cls, path: str) -> "DedupDecisions":
        """Load the decisions that `Documents.save` wrote to `path`."""
        return cls(**load_arrays(path, [field.name for field in dataclasses.fields(cls)]))

    @property
    def firsts(self) -> Bools:
        """[documents] True for documents that repeat no other.

        These are the kept documents, and those that fell because all copies are dropped.
        """
        return np.asarray((self.kinds == KEPT) | ~self.repeated.any(axis=1))

    def collect_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays, keyed by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def build_verdicts(self) -> dict[int, dict[str, str | float | None]]:
        """Return the verdict columns of each dropped or clustered document, keyed by position."""
        shown = np.flatnonzero((self.kinds != KEPT) | self.clusters.any(axis=1))
        clusters = format_ids(self.clusters[shown])
        repeated = format_partners(self.repeated[shown])
        verdicts: dict[int, dict[str, str | float | None]] = {}
        for nth, place in enumerate(shown.tolist()):
            kind = int(self.kinds[place])
            similarity = float(self.similarities[place])
            is_dropped = kind != KEPT
            verdicts[place] = {
                "dropped_by": COPIES[kind - 1] if is_dropped else None,
                "duplicate_of": repeated[nth] if is_dropped else None,
                "similarity": None if np.isnan(similarity) else similarity,
                "cluster": clusters[nth] if self.clusters[place].any() else None,
            }
        return verdicts
