"""A search for copies among texts given in a test, in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainrig.corpus.dedup import passes
from trainrig.corpus.dedup.decisions.documents import Documents, Fates
from trainrig.corpus.dedup.decisions.keep import KeepRule, Longest, Measured
from trainrig.corpus.dedup.pairs.document_reference import Shelf, id_texts, id_words
from trainrig.corpus.dedup.pairs.partition_plan import Plan
from trainrig.corpus.dedup.pairs.verify import Verification
from trainrig.corpus.dedup.passes import Search
from trainrig.corpus.dedup.search import Found, find_copies
from trainrig.corpus.dedup.signatures.minhash import MinHash
from trainrig.corpus.dedup.signatures.sign_split import Signatures
from trainrig.ray_runtime.ray_session import map_splits
from trainrig.splits import Phase, Split, Work

LONGEST, DEFAULT = Longest(), Verification()
FEW = 40  # entries: less than half of what a range has of a hundred documents


@dataclass(frozen=True)
class Searched:
    """What became of the documents, in the order of the files."""

    search: Search
    found: Found

    def fates(self) -> dict[str, tuple[int, str, float]]:
        """Id → kind, id of what it repeats, similarity; of those that fell."""
        fell = {}
        for ids, fates in self._settled():
            for nth in np.flatnonzero(fates.kinds).tolist():
                of, similarity = id_texts(fates.repeated)[nth], float(fates.similarities[nth])
                fell[ids[nth]] = (int(fates.kinds[nth]), of, similarity)
        return fell

    def clusters(self) -> dict[str, str]:
        """Id → name of its cluster, of those that are in one."""
        return {
            identity: cluster
            for ids, fates in self._settled()
            for identity, cluster in zip(ids, id_texts(fates.clusters), strict=True)
            if int(cluster, 16)
        }

    def _settled(self) -> list[tuple[list[str], Fates]]:
        own = [shelf for shelf in self.search.shelves if not shelf.earlier]
        paths = [self.search.place("settled", f"{shelf.name}.npz") for shelf in own]
        documents = [Documents.load(shelf, self.search.keep) for shelf in own]
        return [
            (id_texts(each.ids), Fates.load(path))
            for each, path in zip(documents, paths, strict=True)
        ]


def shelve(
    folder: Path,
    name: str,
    signatures: Signatures,
    keep: KeepRule = LONGEST,
    source: tuple[str, int] = ("web", 0),
    columns: dict[str, Any] | None = None,
) -> Shelf:
    """One file of signatures, and what goes with it, as the pass that signs leaves them."""
    paths = {
        part: str(folder / part / f"{name}.{ending}")
        for part, ending in (("documents", "npz"), ("signatures", "arrow"), ("pairs", "parquet"))
    }
    for path in paths.values():
        Path(path).parent.mkdir(exist_ok=True, parents=True)
    signatures.save(paths["signatures"])
    measured = Measured(signatures.characters, signatures.digests, *source, columns or {})
    Documents(
        id_words(signatures.ids.tolist()),
        keep.ranks(measured),
        signatures.digests,
        signatures.urls,
    ).save(paths["documents"])
    count, shingles = len(signatures.ids), len(signatures.shingles)
    return Shelf(name, 0, False, **paths, count=count, shingles=shingles)


def in_process(folder: Path) -> Callable[[str, Callable[[], Work], Sequence[Split]], Phase]:
    """Does passes one after the other, their records in `folder`."""

    def do(name: str, make: Callable[[], Work], tasks: Sequence[Split]) -> Phase:
        phase = Phase(str(folder / "done" / name), make)
        map_splits(phase, tasks, 0)
        return phase

    return do


def look(
    folder: Path,
    shelves: Sequence[Shelf],
    minhash: MinHash,
    apart: bool = False,
    urls: bool = False,
    keep: KeepRule = LONGEST,
    verification: Verification = DEFAULT,
    plan: Plan | None = None,
) -> Searched:
    """Search `shelves`; `apart`, with a task for each of them, and three for the keys, of few
    entries at a time."""
    each = tuple((n, n + 1) for n in range(len(shelves)))
    whole = Plan(((0, len(shelves)),), 1, 10**9, 10**9, 0)
    cut = plan or (Plan(each, 3, FEW, FEW, 0) if apart else whole)

    def place(*names: str) -> str:
        return "/".join([str(folder), *names])

    search = passes.Search(tuple(shelves), cut, minhash, verification, keep, urls, place)
    return Searched(search, find_copies(search, in_process(folder)))
