"""Signatures with any number of injected duplicates, and which of them should be removed.

No texts are made: there are sets of random shingles, some of which copy another with a few
exchanged, and band keys that two documents share as often as such sets would (Broder 1997).

Ten splits have as many families as one split has documents, half of which are unrelated to any
other. Each split has one member of a family: the first, which stays; four with 1 to 4 of its 24
shingles exchanged (similarities .92, .85, .78, .71); a copy; four unrelated documents.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.dedup_decisions import Documents
from trainrig.corpus.dedup.document_refs import SplitIndex, format_ids
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.signatures import save_columns

SHINGLES = 24  # shingles of a document
MEMBERS = 10
COPY = 5  # the number of the member that is a copy


@dataclass(frozen=True)
class Injected:
    """The files, and for each document whether it should be removed."""

    split_indexes: list[SplitIndex]
    falls: NDArray[np.bool_]


def write_documents(folder: Path, documents: int, minhash: MinHash, splits: int) -> Injected:
    """Write `documents` documents in `splits` files of equal size."""
    for part in ("documents", "signatures", "pairs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    made = [_split(folder, number, documents // splits, minhash) for number in range(splits)]
    return Injected(
        [split_index for split_index, _ in made], np.concatenate([falls for _, falls in made])
    )


def _split(
    folder: Path, number: int, count: int, minhash: MinHash
) -> tuple[SplitIndex, NDArray[np.bool_]]:
    group, member = divmod(number, MEMBERS)
    # Of the first member.
    sets, keys, digests = _draw(np.random.default_rng([1, group]), count, minhash)
    own = np.random.default_rng([2, number])
    own_sets, own_keys, own_digests = _draw(own, count, minhash)
    stranger = np.arange(count) % 2 == 1
    exchanged = member if member < COPY else 0
    if member > COPY:
        stranger[:] = True
    sets[:, :exchanged] = own_sets[:, :exchanged]
    similarity = (SHINGLES - exchanged) / (SHINGLES + exchanged)
    differs = own.random((count, minhash.bands)) >= similarity**minhash.rows
    found = ~differs.all(axis=1)
    keys = np.where(stranger[:, None] | differs, own_keys, keys)
    sets = np.where(stranger[:, None], own_sets, sets)
    sets.sort(axis=1)
    digests = np.where(stranger[:, None] | (member not in (0, COPY)), own_digests, digests)
    ids = own.integers(0, 2**64, (count, 2), dtype=np.uint64)
    ranks = np.full(count, member, np.uint64)
    split_index = _save(folder, number, ids, ranks, sets, keys, digests, own_digests)
    falls = ~stranger & (member > 0) & (similarity >= minhash.threshold) & found
    return split_index, falls


def _save(
    folder: Path,
    number: int,
    ids: NDArray[np.uint64],
    ranks: NDArray[np.uint64],
    sets: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    digests: NDArray[np.uint8],
    urls: NDArray[np.uint8],
) -> SplitIndex:
    """Write the files of one split."""
    count = len(ids)
    paths = {
        part: str(folder / part / f"{number:05d}.{ending}")
        for part, ending in (("documents", "npz"), ("signatures", "arrow"), ("pairs", "parquet"))
    }
    columns = {
        "ids": np.array(format_ids(ids)),
        "characters": 1000 - ranks.astype(np.int64),
        "digests": digests,
        "urls": urls,
        "keys": keys,
        "shingles": sets.reshape(-1),
        "ends": np.arange(1, count + 1) * SHINGLES,
    }
    save_columns(paths["signatures"], columns)
    Documents(ids, ranks, digests, urls).save(paths["documents"])
    return SplitIndex(f"{number:05d}", 0, False, **paths, count=count, shingles=count * SHINGLES)


def _draw(
    dice: np.random.Generator, count: int, minhash: MinHash
) -> tuple[NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint8]]:
    return (
        dice.integers(0, 2**32, (count, SHINGLES), dtype=np.uint32),
        dice.integers(0, 2**64, (count, minhash.bands), dtype=np.uint64),
        dice.integers(0, 2**8, (count, 16), dtype=np.uint8),
    )


def write_families(
    folder: Path,
    documents: int,
    minhash: MinHash,
    splits: int,
    families: int,
    copies: bool = False,
) -> list[SplitIndex]:
    """Write `documents` documents, all of one of `families` families, in `splits` files.

    Any two of a family share 22 shingles of 24 (similarity .85, so about a third of their band
    keys), and those of earlier splits come first. With `copies`, they are equal instead.
    """
    for part in ("documents", "signatures", "pairs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    of_all = _draw(np.random.default_rng(3), families, minhash)
    split_indexes = []
    for number in range(splits):
        count = documents // splits
        family = np.arange(count) % families
        dice = np.random.default_rng([4, number])
        sets, keys, digests = _draw(dice, count, minhash)
        sets[:, 1:] = of_all[0][family, 1:]
        sets.sort(axis=1)
        same = dice.random((count, minhash.bands)) < (23 / 25) ** minhash.rows
        keys = np.where(same, of_all[1][family], keys)
        if copies:
            sets, keys, digests = (group[family] for group in of_all)
            sets.sort(axis=1)
        ids = dice.integers(0, 2**64, (count, 2), dtype=np.uint64)
        ranks = np.full(count, number, np.uint64)
        split_indexes.append(_save(folder, number, ids, ranks, sets, keys, digests, digests))
    return split_indexes
