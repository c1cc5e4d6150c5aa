"""A model that is asked for a vector of each text.

Shapes: B pieces of a batch, T positions, C channels, D texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder
from trainrig.models.encoder.model import BidirectionalEncoder
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers
from trainrig.train import checkpoint


class Pooling(Protocol):
    """How a text becomes a vector: see `DocumentEmbedding`."""

    @property
    def pooling(self) -> Literal["mean", "first"]:
        """What of the last hidden states is the vector."""
        ...

    @property
    def normalise(self) -> bool:
        """Whether vectors are of length 1."""
        ...

    @property
    def pieces(self) -> int | None:
        """Pieces of one text to read."""
        ...

    @property
    def batch(self) -> int:
        """Pieces of a forward pass."""
        ...


@dataclass(frozen=True)
class _Piece:
    """A part of a text that is read by itself."""

    text: int  # which of the texts
    ids: Integers  # [T] with what stands before it
    before: int  # tokens of `ids` that are none of the text's


@dataclass(frozen=True)
class TextEmbedder:
    """A model on its device, with its tokenizer."""

    model: Decoder
    encoder: Encoder
    length: int  # tokens that are read together

    @classmethod
    def open(cls, path: str, sequence_length: int | None, device: str = "auto") -> "TextEmbedder":
        """That of the newest checkpoint at `path`. Raises DataError if there is none, ConfigError
        for a reward model and for a length that it cannot read."""
        opened = checkpoint.open_model(path)
        if opened.config.head == "score":
            raise ConfigError(f"checkpoint: {opened.path} is a reward model; `score` asks it")
        positions = opened.config.positions
        if sequence_length is not None and sequence_length > positions:
            raise ConfigError(
                f"sequence_length ({sequence_length}) is beyond the model's {positions} positions; "
                "lower it, or leave it out"
            )
        encoder = Encoder(opened.tokenizer, opened.path, opened.beside)
        model = opened.build().to(find_local_device() if device == "auto" else torch.device(device))
        return cls(model, encoder, sequence_length or positions)

    @property
    def channels(self) -> int:
        """Numbers of a vector."""
        return self.model.config.channels

    @torch.no_grad()
    def embed(self, texts: Sequence[str], run: Pooling) -> NDArray[np.float32]:
        """[D, C] the vector of each of `texts`, as `run` says."""
        sums_DC = np.zeros((len(texts), self.channels), dtype=np.float64)
        counts_D = np.zeros(len(texts), dtype=np.int64)
        pieces = list(self._iterate_pieces(texts, run))
        for begin in range(0, len(pieces), run.batch):
            together = pieces[begin : begin + run.batch]
            states_BTC = self._compute_states(together).double().cpu().numpy()
            for piece, states_TC in zip(together, states_BTC, strict=True):
                first, last = piece.before, len(piece.ids)
                if run.pooling == "first":
                    first, last = 0, 1
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
        """[B, T, C] the last hidden states of each; those after a piece's end mean nothing."""
        width = max(len(piece.ids) for piece in pieces)
        ids_BT = np.zeros((len(pieces), width), dtype=np.int64)
        there_BT = np.zeros((len(pieces), width), dtype=np.int64)
        for row, piece in enumerate(pieces):
            ids_BT[row, : len(piece.ids)] = piece.ids
            there_BT[row, : len(piece.ids)] = 1
        device = self.model.embedding.weight.device
        ids = torch.from_numpy(ids_BT).to(device)
        if not isinstance(self.model, BidirectionalEncoder):
            hidden: Tensor = self.model(ids).hidden  # which never looks at what comes after
            return hidden
        return self.model.compute_states(ids, documents_BS=torch.from_numpy(there_BT).to(device))
