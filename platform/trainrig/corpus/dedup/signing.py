"""What is known of the texts of one file: all that deduplication looks at, texts never again."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.exact import text_digest
from trainrig.corpus.dedup.minhash import MinHash, band_keys, sign
from trainrig.corpus.dedup.shingles import shingle
from trainrig.corpus.dedup.signature_file import load_columns, save_columns
from trainrig.corpus.urls.key import url_key


@dataclass(frozen=True)
class Signatures:
    """What is known of the texts of one file that passed the rules, in their order."""

    ids: NDArray[np.str_]  # [documents]
    characters: NDArray[np.int64]  # [documents]
    digests: NDArray[np.uint8]  # [documents, 16] of the texts
    urls: NDArray[np.uint8]  # [documents, 16] of the normalised URLs
    keys: NDArray[np.uint64]  # [documents, bands]
    shingles: NDArray[np.uint64]  # all, one document after the other
    ends: NDArray[np.int64]  # [documents] where each document's shingles end

    @classmethod
    def of(cls, documents: Sequence[tuple[str, str, str]], settings: MinHash) -> "Signatures":
        """Those of `(id, URL, text)` documents."""
        texts = [text for _, _, text in documents]
        shingles = [shingle(text, settings.shingle_words) for text in texts]
        keys = [band_keys(sign(each, settings), settings) for each in shingles]
        digests = b"".join(text_digest(text) for text in texts)
        return cls(
            ids=np.array([identity for identity, _, _ in documents], dtype=np.str_),
            characters=np.array([len(text) for text in texts], dtype=np.int64),
            digests=_rows_of(digests),
            urls=_rows_of(b"".join(url_key(url) for _, url, _ in documents)),
            keys=np.array(keys, dtype=np.uint64).reshape(-1, settings.bands),
            shingles=np.concatenate([np.empty(0, np.uint64), *shingles]),
            ends=np.cumsum([len(each) for each in shingles], dtype=np.int64),
        )

    def save(self, path: str) -> None:
        """Write them, as `load_columns` reads them."""
        save_columns(path, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: str) -> "Signatures":
        """What `save` wrote, mapped: only what is looked at is read. Raises DataError."""
        return cls(**load_columns(path))

    def shingles_of(self, document: int) -> NDArray[np.uint64]:
        """The shingles of one document."""
        start = self.ends[document - 1] if document else 0
        return self.shingles[start : self.ends[document]]


def _rows_of(digests: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16)
