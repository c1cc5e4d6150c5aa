"""Signatures of one split: all that deduplication needs, so that texts are not read again."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainrig.corpus.dedup.signatures.exact import DIGEST, hash_texts
from trainrig.corpus.dedup.signatures.minhash import MinHash
from trainrig.corpus.dedup.signatures.shingles import shingle_texts
from trainrig.corpus.dedup.signatures.signature import compute_band_keys, compute_signatures
from trainrig.corpus.dedup.signatures.signature_file import load_columns, save_columns
from trainrig.corpus.dedup.signatures.texts import NormalisedTexts
from trainrig.corpus.urls.key import compute_url_key

_BLOCK = 2**22  # bytes of text signed at a time; working memory is about ten times as much


@dataclass(frozen=True)
class Signatures:
    """Signatures of the texts of one split that passed the rules, in order."""

    ids: NDArray[np.str_]  # [documents]
    characters: NDArray[np.int64]  # [documents]
    digests: NDArray[np.uint8]  # [documents, 16] digests of the texts
    urls: NDArray[np.uint8]  # [documents, 16] digests of the normalised URLs
    keys: NDArray[np.uint64]  # [documents, bands] band keys
    shingles: NDArray[np.uint32]  # shingles of all documents, concatenated
    ends: NDArray[np.int64]  # [documents] where each document's shingles end

    @classmethod
    def of(cls, documents: Sequence[tuple[str, str, str]], settings: MinHash) -> "Signatures":
        """Compute the signatures of `(id, URL, text)` documents."""
        ids, urls, texts = zip(*documents, strict=True) if documents else ((), (), ())
        characters = np.fromiter(map(len, texts), np.int64, len(texts))
        return cls._of(ids, urls, characters, NormalisedTexts.of(texts), settings)

    @classmethod
    def from_table(cls, rows: pa.Table, settings: MinHash) -> "Signatures":
        """Compute the signatures of rows with `id`, `url` and `text`; texts are not copied."""
        ids = rows["id"].to_pylist()
        urls = rows["url"].to_pylist()
        characters = pc.utf8_length(rows["text"]).fill_null(0).to_numpy().astype(np.int64)
        return cls._of(ids, urls, characters, NormalisedTexts.from_arrow(rows["text"]), settings)

    @classmethod
    def _of(
        cls,
        ids: Sequence[str],
        urls: Sequence[str],
        characters: NDArray[np.int64],
        texts: NormalisedTexts,
        settings: MinHash,
    ) -> "Signatures":
        keys, shingles, ends = compute_keys_and_shingles(texts, settings)
        digests = [hash_texts(texts.slice_texts(*block)) for block in texts.find_blocks(_BLOCK)]
        return cls(
            ids=np.array(ids, dtype=np.str_),
            characters=characters,
            digests=np.concatenate([np.empty((0, DIGEST), np.uint8), *digests]),
            urls=np.frombuffer(b"".join(map(compute_url_key, urls)), np.uint8).reshape(-1, DIGEST),
            keys=keys,
            shingles=shingles,
            ends=ends,
        )

    @classmethod
    def concatenate(cls, parts: Sequence["Signatures"]) -> "Signatures":
        """Concatenate the signatures of several pieces of a split, at least one."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("ids", "characters", "digests", "urls", "keys", "shingles")
        }
        firsts = np.cumsum([0, *(len(part.shingles) for part in parts)])
        ends = [first + part.ends for first, part in zip(firsts.tolist(), parts, strict=False)]
        return cls(**columns, ends=np.concatenate(ends))

    def save(self, path: str) -> None:
        """Write the signatures in the format that `load_columns` reads."""
        save_columns(path, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: str) -> "Signatures":
        """Map the signatures that `save` wrote: only the parts used are read.

        Raises DataError if the file is invalid.
        """
        return cls(**load_columns(path))

    def slice_shingles(self, document: int) -> NDArray[np.uint32]:
        """Return the shingles of one document."""
        start = self.ends[document - 1] if document else 0
        return self.shingles[start : self.ends[document]]


def compute_keys_and_shingles(
    texts: NormalisedTexts, settings: MinHash
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64]]:
    """Return the band keys [texts, bands], all shingles, and the end of each text's shingles."""
    keys = [np.empty((0, settings.bands), np.uint64)]
    shingles = [np.empty(0, np.uint32)]
    ends = [np.zeros(1, np.int64)]
    for first, end in texts.find_blocks(_BLOCK):
        block = texts.slice_texts(first, end)
        found, ends_here = shingle_texts(block, settings.shingle_words)
        keys.append(compute_band_keys(_sign_texts(block, found, ends_here, settings), settings))
        shingles.append(found)
        ends.append(ends[-1][-1] + ends_here)
    return np.concatenate(keys), np.concatenate(shingles), np.concatenate(ends)[1:]


def _sign_texts(
    texts: NormalisedTexts, shingles: NDArray[np.uint32], ends: NDArray[np.int64], settings: MinHash
) -> NDArray[np.uint32] | NDArray[np.uint64]:
    if settings.scheme == "fast":
        return compute_signatures(shingles, ends, settings)
    # imported here, because it imports scipy
    from trainrig.corpus.dedup.signatures.by_datasketch import compute_datasketch_signatures

    return compute_datasketch_signatures(texts, settings)
