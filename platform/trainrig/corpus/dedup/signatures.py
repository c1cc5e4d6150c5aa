"""Signatures on storage, and the numbers that documents go by while copies are looked for.

A document that passed the rules has a *position*: its place in the signature files, one after the
other. Its *number* is its place in the keep order: of two alike, the lower one may stay.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.dedup.minhash import MinHash
from trainrig.corpus.dedup.pairs import FULL_BUCKET, Fallen, candidate_pairs, keep_order
from trainrig.corpus.dedup.shingles import jaccard
from trainrig.corpus.dedup.signature_file import load_columns
from trainrig.corpus.dedup.signing import Signatures

COPIES = SAME_URL, EXACT, NEAR = "url_duplicate", "exact_duplicate", "near_duplicate"


def save_arrays(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as an .npz file: equal arrays give equal bytes."""
    keywords: dict[str, Any] = dict(arrays)
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        np.savez(file, **keywords)


def load_arrays(path: str, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays `names` of an .npz file, or all; the others are not read."""
    # Closed at once: thousands of files are looked into, and a process may hold about 1024 open.
    with np.load(storage.local_path(path), allow_pickle=False) as file:
        return {name: file[name] for name in names or file.files}


@dataclass(frozen=True)
class Copy:
    """Why one document falls, and for which kept one."""

    dropped_by: str  # SAME_URL, EXACT or NEAR
    duplicate_of: str  # id
    similarity: float | None  # Jaccard, of shingles; None where nobody compared the texts


@dataclass(frozen=True)
class Ranking:
    """All documents that passed, by position."""

    ids: NDArray[np.str_]
    numbers: NDArray[np.int64]  # place in the keep order
    repeats: NDArray[np.int64]  # position of the document of equal text, or URL, that it is for; -1
    by_url: NDArray[np.bool_]  # whether what is equal is the URL

    @classmethod
    def of(cls, paths: Sequence[str], urls: bool = False) -> "Ranking":
        """That of the signature files at `paths`; with `urls`, one document a URL is enough.

        URLs come first, so that no text is lost with a page that another capture stands for.
        """
        files = [load_columns(path, ["ids", "characters", "digests", "urls"]) for path in paths]
        ids = np.concatenate([file["ids"] for file in files])
        characters = np.concatenate([file["characters"] for file in files])
        order = keep_order(characters.tolist(), ids.tolist())
        repeats = np.full(len(ids), -1, np.int64)
        if urls:
            _repeating([row for file in files for row in file["urls"]], order, repeats)
        by_url = repeats >= 0
        _repeating([row for file in files for row in file["digests"]], order, repeats)
        numbers = np.empty(len(ids), np.int64)
        numbers[order] = np.arange(len(ids))
        return cls(ids, numbers, repeats, by_url)

    def save(self, path: str) -> None:
        """Write it, as an .npz file."""
        save_arrays(path, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: str) -> "Ranking":
        """What `save` wrote."""
        return cls(**load_arrays(path))

    def copies(self, near: Fallen) -> dict[int, Copy]:
        """What falls, by position: the exact copies, and the near ones that were found."""
        position_of = np.argsort(self.numbers)
        rows = zip(near.documents, near.partners, near.similarities, strict=True)
        found = {
            int(position_of[document]): Copy(
                NEAR, str(self.ids[position_of[partner]]), float(similarity)
            )
            for document, partner, similarity in rows
        }
        # Where the first of equals fell itself, all of them are near copies of what is kept.
        for position in np.flatnonzero((self.repeats >= 0) & ~self.by_url).tolist():
            first = int(self.repeats[position])
            found[position] = found.get(first) or Copy(EXACT, str(self.ids[first]), 1.0)
        for position in np.flatnonzero(self.by_url).tolist():
            first = int(self.repeats[position])
            kept = found[first].duplicate_of if first in found else str(self.ids[first])
            found[position] = Copy(SAME_URL, kept, None)
        return found


def _repeating(
    keys: Sequence[NDArray[np.uint8]], order: Sequence[int], repeats: NDArray[np.int64]
) -> None:
    """Note in `repeats` which documents, of those that repeat none, have the key of one before."""
    kept_with: dict[bytes, int] = {}
    for position in order:
        if repeats[position] < 0:
            kept = kept_with.setdefault(keys[position].tobytes(), position)
            if kept != position:
                repeats[position] = kept


def band_pairs(
    paths: Sequence[str], ranking: Ranking, settings: MinHash
) -> Callable[[int], tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """A function of the band: its verified pairs [pairs, 2] by number, and their similarities.

    Exact copies take no part. A pair that meets in several bands is verified in the first alone.
    """
    files = [load_columns(path, ["keys", "ends"]) for path in paths]
    keys = np.concatenate([file["keys"] for file in files])
    unique = np.flatnonzero(ranking.repeats < 0)
    position_of = np.argsort(ranking.numbers)
    firsts = np.cumsum([0, *(len(file["ends"]) for file in files)])  # position of each file's first

    @functools.cache
    def opened(number: int) -> Signatures:
        return Signatures.load(paths[number])

    def shingles_at(position: int) -> NDArray[np.uint64]:
        number = int(np.searchsorted(firsts, position, side="right")) - 1
        return opened(number).shingles_of(position - int(firsts[number]))

    @functools.cache
    def leads(band: int) -> NDArray[np.bool_]:
        """By position: whether all later ones of its bucket meet it."""
        order = unique[np.lexsort((ranking.numbers[unique], keys[unique, band]))]
        in_order = keys[order, band]
        leading = np.zeros(len(keys), bool)
        leading[order] = np.arange(len(order)) - np.searchsorted(in_order, in_order) < FULL_BUCKET
        return leading

    def pairs_of(band: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        pairs = candidate_pairs(keys[unique, band], ranking.numbers[unique])
        earlier, later = position_of[pairs[:, 0]], position_of[pairs[:, 1]]
        fresh = np.ones(len(pairs), bool)
        for before in range(band):
            met = (keys[earlier, before] == keys[later, before]) & leads(before)[earlier]
            fresh &= ~met
        positions = zip(earlier[fresh].tolist(), later[fresh].tolist(), strict=True)
        similarities = np.array(
            [jaccard(shingles_at(a), shingles_at(b)) for a, b in positions], dtype=np.float64
        )
        alike = similarities >= settings.threshold
        return pairs[fresh][alike], similarities[alike]

    return pairs_of
