"""The operator that encodes documents into token ids, as `tokenize` does."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from trainrig.config import NOT_IDENTITY
from trainrig.config.table_operator import TableOperator, put_column, read_strings
from trainrig.tokens.special_tokens import BEGIN_OF_TEXT, TokenizerFiles
from trainrig.tokens.tokenizers.encode import Encoder

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 256  # documents encoded at a time: enough to spend the time in the library's Rust code


def encode_documents(
    encoder: Encoder, texts: Sequence[str], before: Sequence[int]
) -> list[NDArray[np.uint32]]:
    """Return for each text the ids `before`, the ids of the text, and end-of-text."""
    first = np.array(before, dtype=np.uint32)
    last = np.array([encoder.end_of_text], dtype=np.uint32)
    return [np.concatenate([first, ids, last]) for ids in encoder.encode_batch(texts)]


class Tokenize(TableOperator):
    """Encode texts into token ids: adds `tokens`, whose last id is end-of-text.

    The ids equal the ids in the shards that `tokenize` writes. The tokenizer's files are read when
    the operator is built, and travel with it to the workers.
    """

    # Folder that `trainrig tokenizer` wrote, a Hugging Face folder, or any tokenizer.json.
    tokenizer: Annotated[str, NOT_IDENTITY]
    # Whether each document begins with begin-of-text.
    begin_of_text: bool = False
    _files: TokenizerFiles

    def _prepare(self) -> None:
        """Read the tokenizer's files. Raises DataError if there are none."""
        self._files = TokenizerFiles.read(self.tokenizer)

    def __call__(self, rows: "pa.Table") -> "pa.Table":
        """Return `rows` with the token ids of their texts."""
        import pyarrow as pa  # imported here: reading a run file does not need pyarrow

        self.require_columns(rows, ["text"], "name the column with the texts `text`")
        beside = tuple(sorted(self._files.beside.items()))
        encoder = _build_encoder(self._files.tokenizer, self._files.where, beside)
        before = [encoder.find_special(BEGIN_OF_TEXT)] if self.begin_of_text else []
        texts = read_strings(rows["text"])
        ids = [
            document
            for begin in range(0, len(texts), BATCH_ROWS)
            for document in encode_documents(encoder, texts[begin : begin + BATCH_ROWS], before)
        ]
        ends = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        flat = np.concatenate(ids) if ids else np.empty(0, np.uint32)
        tokens = pa.LargeListArray.from_arrays(pa.array(ends), pa.array(flat))
        return put_column(rows, "tokens", tokens)


@functools.lru_cache(maxsize=2)
def _build_encoder(text: str, where: str, beside: tuple[tuple[str, str], ...]) -> Encoder:
    """Return the encoder of a tokenizer's files, built once per process."""
    return Encoder(text, where, dict(beside))
