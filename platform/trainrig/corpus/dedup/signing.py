"""What is known of the texts of one file: all that deduplication looks at, texts never again."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.exact import text_digest
from trainrig.corpus.dedup.minhash import MinHash
from trainrig.corpus.dedup.shingles import shingles_of
from trainrig.corpus.dedup.signature import band_keys, signatures
from trainrig.corpus.dedup.signature_file import load_columns, save_columns
from trainrig.corpus.dedup.texts import Texts
from trainrig.corpus.urls.key import url_key

_BLOCK = 2**22  # bytes of text signed at a time: what is worked in takes some ten times as many


@dataclass(frozen=True)
class Signatures:
    """What is known of the texts of one file that passed the rules, in their order."""

    ids: NDArray[np.str_]  # [documents]
    characters: NDArray[np.int64]  # [documents]
    digests: NDArray[np.uint8]  # [documents, 16] of the texts
    urls: NDArray[np.uint8]  # [documents, 16] of the normalised URLs
    keys: NDArray[np.uint64]  # [documents, bands]
    shingles: NDArray[np.uint32]  # all, one document after the other
    ends: NDArray[np.int64]  # [documents] where each document's shingles end

    @classmethod
    def of(cls, documents: Sequence[tuple[str, str, str]], settings: MinHash) -> "Signatures":
        """Those of `(id, URL, text)` documents."""
        texts = [text for _, _, text in documents]
        keys, shingles, ends = keys_and_shingles(Texts.of(texts), settings)
        digests = b"".join(text_digest(text) for text in texts)
        return cls(
            ids=np.array([identity for identity, _, _ in documents], dtype=np.str_),
            characters=np.array([len(text) for text in texts], dtype=np.int64),
            digests=_rows_of(digests),
            urls=_rows_of(b"".join(url_key(url) for _, url, _ in documents)),
            keys=keys,
            shingles=shingles,
            ends=ends,
        )

    def save(self, path: str) -> None:
        """Write them, as `load_columns` reads them."""
        save_columns(path, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: str) -> "Signatures":
        """What `save` wrote, mapped: only what is looked at is read. Raises DataError."""
        return cls(**load_columns(path))

    def shingles_of(self, document: int) -> NDArray[np.uint32]:
        """The shingles of one document."""
        start = self.ends[document - 1] if document else 0
        return self.shingles[start : self.ends[document]]


def keys_and_shingles(
    texts: Texts, settings: MinHash
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64]]:
    """Band keys [texts, bands]; all shingles, one text after the other; where each text's end."""
    keys = [np.empty((0, settings.bands), np.uint64)]
    shingles = [np.empty(0, np.uint32)]
    ends = [np.zeros(1, np.int64)]
    for first, end in texts.blocks(_BLOCK):
        block = texts.part(first, end)
        found, ends_here = shingles_of(block, settings.shingle_words)
        keys.append(band_keys(_signatures(block, found, ends_here, settings), settings))
        shingles.append(found)
        ends.append(ends[-1][-1] + ends_here)
    return np.concatenate(keys), np.concatenate(shingles), np.concatenate(ends)[1:]


def _signatures(
    texts: Texts, shingles: NDArray[np.uint32], ends: NDArray[np.int64], settings: MinHash
) -> NDArray[np.uint32] | NDArray[np.uint64]:
    if settings.scheme == "fast":
        return signatures(shingles, ends, settings)
    from trainrig.corpus.dedup.by_datasketch import signatures_by_datasketch  # brings scipy

    return signatures_by_datasketch(texts, settings)


def _rows_of(digests: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16)
