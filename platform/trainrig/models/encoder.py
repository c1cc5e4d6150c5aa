"""Bidirectional encoder in the manner of BERT or ModernBERT.

Sources: Devlin et al. 2018, arXiv:1810.04805; Warner et al. 2024, arXiv:2412.13663. Layers,
attention and feed-forward networks are the decoder's.

Shapes: B rows, T positions of a row, S positions of the keys (here the same as T), C channels, V
vocabulary entries, K classes. N places are positions of all rows together, from 0 to B * T - 1.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import SHARED, EncoderConfig, EncoderDecoderConfig
from trainrig.models.architecture.layer_settings import Network, Normalisation
from trainrig.models.architecture.shapes import TransformShape
from trainrig.models.attention import Cache, number_documents
from trainrig.models.decoder import Decoder
from trainrig.models.encoder_decoder import EncoderDecoder
from trainrig.models.initial_values import GENERATOR
from trainrig.models.layer_parts import Norm, activate, build_projection
from trainrig.models.output import ModelOutput


class Transform(nn.Module):
    """Linear layer, activation and perhaps a norm before the head."""

    def __init__(self, shape: TransformShape, network: Network, norm: Normalisation) -> None:
        super().__init__()
        self.network = network
        self.dense = build_projection(shape.dense)
        self.norm = None if shape.norm is None else Norm(shape.norm, norm)

    def forward(self, x_C: Tensor) -> Tensor:
        """Return the transformed hidden states [..., C]."""
        changed_C = activate(self.network, self.dense(x_C))
        return changed_C if self.norm is None else self.norm(changed_C)


class Detection(NamedTuple):
    """Outputs of replaced-token detection (see `BidirectionalEncoder.forward`).

    A named tuple, so that FSDP finds the tensors in it, as in `ModelOutput`.
    """

    generated: ModelOutput  # output of the generator for the masked ids
    ids_BT: Tensor  # ids with tokens replaced by the generator's
    detected: ModelOutput  # one logit for each position of `ids_BT`


class BidirectionalEncoder(Decoder):
    """Encoder that predicts tokens from both sides; call `initialise` to fill its weights."""

    head_bias: nn.Parameter | None

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        shapes = config.shapes
        segments = shapes.segment_embedding
        self.segment_embedding = (
            None if segments is None else nn.Embedding(segments.entries, segments.channels)
        )
        self.embedding_norm = (
            None if shapes.embedding_norm is None else Norm(shapes.embedding_norm, config.norm)
        )
        self.transform = (
            None
            if shapes.transform is None
            else Transform(shapes.transform, config.network, config.norm)
        )
        self.embedding_projection = (
            None
            if shapes.embedding_projection is None
            else build_projection(shapes.embedding_projection)
        )
        self.pooler = None if shapes.pooler is None else build_projection(shapes.pooler)
        self.head_bias = (
            None
            if shapes.head_bias is None
            else nn.Parameter(torch.zeros(shapes.head_bias.channels))
        )
        self._offset = config.positions_offset
        self._pools_all = config.head == "classes" and config.pooling == "mean"
        self._pooler_is_tanh = config.pooler == "tanh"
        generator = config.generator_model
        self.generator = None if generator is None else Generator(generator, self)

    @property
    def every_layer(self) -> list[nn.Module]:
        """The layers of the encoder, and of its generator if it has one."""
        generator_layers = [] if self.generator is None else self.generator.every_layer
        return [*super().every_layer, *generator_layers]

    def forward(  # type: ignore[override]
        self,
        ids_BT: Tensor,
        caches: Sequence[Cache] | None = None,
        positions_BT: Tensor | None = None,
        documents_BS: Tensor | None = None,
        places_N: Tensor | None = None,
        segments_BT: Tensor | None = None,
        branches_BT: Tensor | None = None,
        replace: Callable[[ModelOutput], Tensor] | None = None,
    ) -> ModelOutput | Detection:
        """Return the hidden states and the head, from which the logits [B, T, V] are computed.

        Args:
            ids_BT: Token ids [B, T].
            caches: Not supported, because later tokens change the states of earlier ones.
            positions_BT: Each token's position in its own document, [B, T], for rows that hold
                several documents. Tokens attend only to their own document.
            documents_BS: Document to which each position belongs, as a number. Padding can be a
                document of its own.
            places_N: Places whose logits are computed, [N, V]; None: all. With a head for classes
                they are [N, K], and `pooling` "mean" averages over the document of each place.
            segments_BT: Number of the text of a pair that each token belongs to, [B, T]; None: all
                belong to the first text.
            branches_BT: Not supported; in a decoder, several branches can continue one text.
            replace: Function from the output of the generator, which reads `ids_BT`, to the ids
                that the model then reads. Both run in one pass, so that FSDP gathers and reduces
                the parameters that they share one time.

        Raises ValueError for caches and for branches, and with `replace` for places and segments.
        """
        if branches_BT is not None:
            raise ValueError(
                "an encoder attends to whole documents, so it does not support branches"
            )
        if caches is not None:
            raise ValueError("an encoder reads whole rows, so it does not support caches")
        if replace is not None:
            if places_N is not None or segments_BT is not None:
                raise ValueError("with `replace`, an encoder supports neither places nor segments")
            assert self.generator is not None, "objectives refuse a model without a generator"
            generated = self.generator(ids_BT, None, positions_BT, documents_BS)
            ids_BT = replace(generated)
            detected = self.forward(ids_BT, None, positions_BT, documents_BS)
            assert isinstance(detected, ModelOutput)
            return Detection(generated, ids_BT, detected)
        states = self._embed_rows(ids_BT, positions_BT, documents_BS, segments_BT)
        return self._predict(*states, None, places_N)

    def compute_states(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        documents_BS: Tensor | None = None,
        segments_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the normalised hidden states of the last layer, before the head, [B, T, C]."""
        states = self._embed_rows(ids_BT, positions_BT, documents_BS, segments_BT)
        x_BTC, _ = self._pass_layers(*states, None)
        return x_BTC if self.norm is None else self.norm(x_BTC)

    def _embed_rows(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None,
        documents_BS: Tensor | None,
        segments_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the embedded tokens [B, T, C], their positions, and their documents."""
        length = ids_BT.shape[1]
        if positions_BT is None:
            positions = torch.arange(length, device=ids_BT.device)
        else:
            positions = positions_BT
            if documents_BS is None:
                documents_BS = number_documents(positions_BT)
        # Positions start at 0 in each document, so a row of several may be longer.
        if length > self.config.positions and documents_BS is None:
            raise ValueError(
                f"a row has {length} tokens, but the model has only {self.config.positions} "
                "positions"
            )
        x_BTC = self._embed(ids_BT, positions + self._offset)
        if self.segment_embedding is not None:
            if segments_BT is None:
                segments_BT = torch.zeros_like(ids_BT)
            x_BTC = x_BTC + self.segment_embedding(segments_BT)
        if self.embedding_norm is not None:
            x_BTC = self.embedding_norm(x_BTC)
        if self.embedding_projection is not None:
            x_BTC = self.embedding_projection(x_BTC)
        return x_BTC, positions, documents_BS

    def _read_places(
        self, x_BTC: Tensor, places_N: Tensor | None, documents_BS: Tensor | None
    ) -> Tensor:
        """Return normalised hidden states, [N, C]; [B, T, C] without places.

        With `pooling` "mean", each is the mean over the document of its place.
        """
        if not self._pools_all or places_N is None:
            return super()._read_places(x_BTC, places_N, documents_BS)
        x_BTC = x_BTC if self.norm is None else self.norm(x_BTC)
        rows_N = places_N // x_BTC.shape[1]
        length = x_BTC.shape[1]
        in_document_NT = x_BTC.new_ones(len(places_N), length)
        if documents_BS is not None:
            document_N = documents_BS.flatten()[places_N]
            in_document_NT = (documents_BS[rows_N] == document_N[:, None]).to(x_BTC.dtype)
        sums_NC = (x_BTC[rows_N] * in_document_NT[:, :, None]).sum(1)
        return sums_NC / in_document_NT.sum(1, keepdim=True)

    def _prepare_head_input(self, x_BTC: Tensor) -> Tensor:
        if self.pooler is not None:
            pooled = self.pooler(x_BTC)
            return torch.tanh(pooled) if self._pooler_is_tanh else F.gelu(pooled)
        return x_BTC if self.transform is None else self.transform(x_BTC)

    def _head_bias(self) -> Tensor | None:
        return super()._head_bias() if self.head_bias is None else self.head_bias


class Generator(BidirectionalEncoder):
    """Encoder that predicts masked tokens with the embedding of the model that it is part of."""

    def __init__(self, config: EncoderConfig, owner: BidirectionalEncoder) -> None:
        super().__init__(config)
        for name in SHARED:
            delattr(self, name)
            # In `__dict__`, because torch would register a shared submodule under a second name.
            self.__dict__[name] = getattr(owner, name)


def read_generator_tensor(read: Callable[[str], Tensor], name: str) -> Tensor:
    """Return the tensor that a stand-alone generator calls `name`.

    `read` returns a tensor of the whole model, which contains the generator, by its name there.
    """
    shared = name.partition(".")[0] in SHARED
    return read(name if shared else f"{GENERATOR}{name}")


def build_model(config: DecoderConfig) -> Decoder:
    """Return the network of `config`, with uninitialised weights."""
    if isinstance(config, EncoderDecoderConfig):
        return EncoderDecoder(config)
    return BidirectionalEncoder(config) if isinstance(config, EncoderConfig) else Decoder(config)
