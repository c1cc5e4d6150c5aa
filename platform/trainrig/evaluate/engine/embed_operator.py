"""The operator that computes a vector for each text with a trained model, as `embed` does."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import pyarrow as pa
from pydantic import Field

from trainrig.config import NOT_IDENTITY
from trainrig.config.table_operator import TableOperator, put_column, read_strings
from trainrig.train import checkpoint

if TYPE_CHECKING:
    from trainrig.evaluate.engine.text_embedder import Pooling, TextEmbedder

TEXTS = 256  # documents that are embedded together; batches of pieces do not cross them


def embed_texts(
    embedder: "TextEmbedder", texts: Sequence[str], settings: "Pooling"
) -> pa.FixedSizeListArray:
    """Return the vectors of at most TEXTS `texts` as an Arrow column."""
    flat = pa.array(embedder.embed(texts, settings).reshape(-1), type=pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, embedder.channels)


class Embed(TableOperator):
    """Compute a vector for each text with a trained model: adds `embedding`, in float32.

    A worker with a GPU computes there: pass `num_gpus=1` and a `batch_size` to `map_batches`. The
    last digits depend on which texts stand together in a table, so equal tables give equal vectors.
    """

    # Run folder or checkpoint of the model, usually an encoder.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # How the last hidden states become one vector: their mean, or the state of the first token.
    pooling: Literal["mean", "first"] = "mean"
    normalise: bool = True  # scale vectors to length 1, so that products are cosines
    # Tokens of one piece, of which longer texts have several; None: all positions of the model.
    sequence_length: int | None = Field(default=None, ge=2)
    # Most pieces of one text to read, from its beginning; None: all.
    pieces: int | None = Field(default=None, ge=1)
    # Pieces in one forward pass.
    batch: int = Field(default=16, ge=1)
    threads: int = Field(default=1, ge=1)  # CPU threads of a worker
    _model: str  # checkpoint that was the newest when the operator was built

    def _prepare(self) -> None:
        """Find the model. Raises DataError if there is none, and ConfigError if it cannot embed."""
        from trainrig.evaluate.engine.text_embedder import check_embeds

        self._model = checkpoint.resolve(self.checkpoint)
        config, _ = checkpoint.describe(self._model)
        check_embeds(config, self._model, self.sequence_length)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with the vectors of their texts."""
        self.require_columns(rows, ["text"], "name the column with the texts `text`")
        embedder = _open_embedder(self._model, self.sequence_length, self.threads)
        texts = read_strings(rows["text"])
        parts = [
            embed_texts(embedder, texts[begin : begin + TEXTS], self)
            for begin in range(0, len(texts), TEXTS)
        ]
        kind = pa.list_(pa.float32(), embedder.channels)
        return put_column(rows, "embedding", pa.chunked_array(parts, kind))


@functools.lru_cache(maxsize=1)
def _open_embedder(model: str, sequence_length: int | None, threads: int) -> "TextEmbedder":
    """Open the model once per process."""
    import torch

    from trainrig.evaluate.engine.text_embedder import TextEmbedder

    torch.set_num_threads(threads)
    return TextEmbedder.open(model, sequence_length)
