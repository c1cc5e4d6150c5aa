"""A duplicate search in this process among texts given by a test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainrig.corpus.dedup.dedup_decisions import DedupDecisions, Documents
from trainrig.corpus.dedup.document_refs import SplitIndex, format_ids, parse_ids
from trainrig.corpus.dedup.duplicate_search import DuplicateSearch, PartitionPlan
from trainrig.corpus.dedup.keep_rules import KeepFeatures, KeepRule, Longest
from trainrig.corpus.dedup.search_passes import DuplicatesFound, find_duplicates
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.shingle_similarity import Verification
from trainrig.corpus.signatures.signatures import Signatures
from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Phase, Split, Work

LONGEST = Longest()
DEFAULT = Verification()
FEW = 40  # entries: less than half of what a range holds of a hundred documents


@dataclass(frozen=True)
class Searched:
    """Decisions about the documents, in the order of the files."""

    search: DuplicateSearch
    found: DuplicatesFound

    def decisions(self) -> dict[str, tuple[int, str, float]]:
        """Return kind, id of the partner and similarity of each removed document, keyed by id."""
        fell = {}
        for ids, decisions in self._settled():
            for nth in np.flatnonzero(decisions.kinds).tolist():
                of = format_ids(decisions.repeated)[nth]
                similarity = float(decisions.similarities[nth])
                fell[ids[nth]] = (int(decisions.kinds[nth]), of, similarity)
        return fell

    def clusters(self) -> dict[str, str]:
        """Return the names of clusters, keyed by the ids of documents that are in one."""
        return {
            identity: cluster
            for ids, decisions in self._settled()
            for identity, cluster in zip(ids, format_ids(decisions.clusters), strict=True)
            if int(cluster, 16)
        }

    def _settled(self) -> list[tuple[list[str], DedupDecisions]]:
        own = [split_index for split_index in self.search.split_indexes if not split_index.earlier]
        paths = [self.search.path_of("decided", f"{split_index.name}.npz") for split_index in own]
        documents = [Documents.load(split_index, self.search.keep) for split_index in own]
        return [
            (format_ids(document.ids), DedupDecisions.load(path))
            for document, path in zip(documents, paths, strict=True)
        ]


def shelve(
    folder: Path,
    name: str,
    signatures: Signatures,
    keep: KeepRule = LONGEST,
    source: tuple[str, int] = ("web", 0),
    columns: dict[str, Any] | None = None,
) -> SplitIndex:
    """Write one file of signatures and its side files, as the signing pass does."""
    paths = {
        part: str(folder / part / f"{name}.{ending}")
        for part, ending in (("documents", "npz"), ("signatures", "arrow"), ("pairs", "parquet"))
    }
    for path in paths.values():
        Path(path).parent.mkdir(exist_ok=True, parents=True)
    signatures.save(paths["signatures"])
    measured = KeepFeatures(signatures.characters, signatures.digests, *source, columns or {})
    Documents(
        parse_ids(signatures.ids.tolist()),
        keep.rank_documents(measured),
        signatures.digests,
        signatures.urls,
    ).save(paths["documents"])
    count = len(signatures.ids)
    shingles = len(signatures.shingles)
    return SplitIndex(name, 0, False, **paths, count=count, shingles=shingles)


def in_process(folder: Path) -> Callable[[str, Callable[[], Work], Sequence[Split]], Phase]:
    """Return a function that runs passes one after the other and records them in `folder`."""

    def do(name: str, make: Callable[[], Work], tasks: Sequence[Split]) -> Phase:
        phase = Phase(str(folder / "done" / name), make)
        map_splits(phase, tasks, 0)
        return phase

    return do


def look(
    folder: Path,
    split_indexes: Sequence[SplitIndex],
    minhash: MinHash,
    apart: bool = False,
    urls: bool = False,
    keep: KeepRule = LONGEST,
    verification: Verification = DEFAULT,
    plan: PartitionPlan | None = None,
    all_copies: bool = False,
) -> Searched:
    """Search `split_indexes` for duplicates.

    With `apart`, each has a task of its own partition, and the keys have three, with few entries at
    a time.
    """
    one_each = tuple((n, n + 1) for n in range(len(split_indexes)))
    whole = PartitionPlan(((0, len(split_indexes)),), 1, 10**9, 10**9, 0)
    cut = plan or (PartitionPlan(one_each, 3, FEW, FEW, 0) if apart else whole)

    def place(*names: str) -> str:
        return "/".join([str(folder), *names])

    search = DuplicateSearch(
        tuple(split_indexes), cut, minhash, verification, keep, urls, all_copies, place
    )
    return Searched(search, find_duplicates(search, in_process(folder)))
