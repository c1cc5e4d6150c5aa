"""Text embedding: a trained model that computes a vector for each text.

Shapes: B pieces of a batch, T positions, C channels, D texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from trainrig.corpus.array_types import Float32s
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.decoder import Decoder
from trainrig.models.encoder import BidirectionalEncoder
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint


class Pooling(Protocol):
    """Settings for turning a text into a vector, explained in `DocumentEmbedding`."""

    @property
    def pooling(self) -> Literal["mean", "first"]:
        """The reduction of the last hidden states to one vector."""
        ...

    @property
    def normalise(self) -> bool:
        """True if vectors are scaled to length 1."""
        ...

    @property
    def pieces(self) -> int | None:
        """Most pieces of one text to read; None: all."""
        ...

    @property
    def batch(self) -> int:
        """Number of pieces in one forward pass."""
        ...


@dataclass(frozen=True)
class _Piece:
    """A part of a text that is one sequence of the model."""

    text: int  # index of the text
    ids: Integers  # [T] token ids, with the tokenizer's prefix first
    before: int  # number of prefix tokens in `ids`


def check_embeds(config: DecoderConfig, path: str, sequence_length: int | None) -> None:
    """Raise ConfigError if the model with this `config` cannot embed pieces of `sequence_length`.

    `path` names its checkpoint in the message.
    """
    if config.head == "score":
        raise ConfigError(
            f"checkpoint: {path} is a reward model, which has no embeddings; use "
            "`trainrig score` with it"
        )
    positions = config.positions
    if sequence_length is not None and sequence_length > positions:
        raise ConfigError(
            f"sequence_length ({sequence_length}) exceeds the model's {positions} positions; "
            "lower it, or leave it out"
        )


@dataclass(frozen=True)
class TextEmbedder:
    """A model on its device, with its tokenizer."""

    model: Decoder
    encoder: Encoder
    length: int  # most tokens of a piece

    @classmethod
    def open(cls, path: str, sequence_length: int | None, device: str = "auto") -> "TextEmbedder":
        """Open the model of the newest checkpoint at `path`.

        Raises DataError if there is no checkpoint, and ConfigError for a reward model or a
        `sequence_length` beyond the model's positions.
        """
        opened = checkpoint.open_model(path)
        check_embeds(opened.config, opened.path, sequence_length)
        encoder = Encoder(opened.tokenizer, opened.path, opened.beside)
        model = opened.build().to(find_local_device() if device == "auto" else torch.device(device))
        return cls(model, encoder, sequence_length or opened.config.positions)

    @property
    def channels(self) -> int:
        """Number of channels of a vector."""
        return self.model.config.channels

    @torch.no_grad()
    def embed(self, texts: Sequence[str], run: Pooling) -> Float32s:
        """Return the vectors [D, C] of `texts`, pooled as `run` says."""
        sums_DC = np.zeros((len(texts), self.channels), dtype=np.float64)
        counts_D = np.zeros(len(texts), dtype=np.int64)
        pieces = list(self._iterate_pieces(texts, run))
        for begin in range(0, len(pieces), run.batch):
            together = pieces[begin : begin + run.batch]
            states_BTC = self._compute_states(together).double().cpu().numpy()
            for piece, states_TC in zip(together, states_BTC, strict=True):
                first = piece.before
                last = len(piece.ids)
                if run.pooling == "first":
                    first = 0
                    last = 1
                sums_DC[piece.text] += states_TC[first:last].sum(0)
                counts_D[piece.text] += last - first
        vectors_DC = sums_DC / counts_D[:, None]
        if run.normalise:
            lengths_D1 = np.linalg.norm(vectors_DC, axis=1, keepdims=True)
            vectors_DC = vectors_DC / np.where(lengths_D1 > 0, lengths_D1, 1.0)
        return vectors_DC.astype(np.float32)

    def _iterate_pieces(self, texts: Sequence[str], run: Pooling) -> Iterator[_Piece]:
        before = np.array(self.encoder.special_tokens.prefix, dtype=np.int64)
        room = self.length - len(before)
        most = 1 if run.pooling == "first" else run.pieces
        for number, ids in enumerate(self.encoder.encode_batch(list(texts))):
            begins = range(0, max(len(ids), 1), room)[:most]
            for begin in begins:
                part = ids[begin : begin + room].astype(np.int64)
                yield _Piece(number, np.concatenate([before, part]), len(before))

    def _compute_states(self, pieces: Sequence[_Piece]) -> Tensor:
        """Return the last hidden states [B, T, C]; those after the end of a piece are padding."""
        width = max(len(piece.ids) for piece in pieces)
        ids_BT = np.zeros((len(pieces), width), dtype=np.int64)
        there_BT = np.zeros((len(pieces), width), dtype=np.int64)
        for row, piece in enumerate(pieces):
            ids_BT[row, : len(piece.ids)] = piece.ids
            there_BT[row, : len(piece.ids)] = 1
        device = self.model.embedding.weight.device
        ids = torch.from_numpy(ids_BT).to(device)
        if not isinstance(self.model, BidirectionalEncoder):
            hidden: Tensor = self.model(
                ids
            ).hidden  # a causal model ignores the padding after a piece
            return hidden
        return self.model.compute_states(ids, documents_BS=torch.from_numpy(there_BT).to(device))
