"""Encoder-decoder in the manner of T5 (Raffel et al. 2019, arXiv:1910.10683), and its generation.

Attention, feed-forward networks and norms are the decoder's. The layers are one list, the encoder's
first, so that all are sharded, recomputed and compiled alike.

Shapes: B batch, S positions of the text that is read, T of the text that is written, C channels, H
heads, K key and value heads, D channels of one head, V vocabulary entries.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainrig.errors import DataError
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig, RelativeBias
from trainrig.models.architecture.shapes import CrossLayerShape
from trainrig.models.attention import Attention, Cache, KeyValueCache, Sight
from trainrig.models.decoder import Decoder, Layer
from trainrig.models.generation import Generation, Stopped
from trainrig.models.layer_parts import Norm
from trainrig.models.output import ModelOutput
from trainrig.models.token_sampling import NextToken, Sampling, derive_stream, draw


class CrossAttention(Attention):
    """Attention from the tokens that are written to the encoder's output."""

    def forward(self, x_BTC: Tensor, sight: Sight, cache: Cache | None = None) -> Tensor:
        """Raise ValueError, because cross-attention needs keys: call `look` instead."""
        raise ValueError("cross-attention needs the keys of a text; call `look` instead")

    def project_keys(self, memory_BSC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the encoder's output, [B, K, S, D] each.

        They are the same for all tokens that are written.
        """
        key_BSE, value_BSE = self.multiply(memory_BSC, (self.key, self.value))
        return self._split_heads(key_BSE, None), self._split_heads(value_BSE, None)

    def look(self, x_BTC: Tensor, keys: tuple[Tensor, Tensor], sight: Sight) -> Tensor:
        """Return the attention output [B, T, C] of `x_BTC` over the given keys and values."""
        query_BHTD = self._split_heads(self.query(x_BTC), None)
        seen_BHTD = self.attend(query_BHTD, *keys, sight)
        mixed_BTC: Tensor = self.output(seen_BHTD.transpose(1, 2).flatten(2))
        return mixed_BTC


@dataclass
class CrossCache:
    """Keys and values that one decoder layer keeps during generation."""

    own: KeyValueCache  # cache of the text that is written
    read: tuple[Tensor, Tensor] | None = None  # keys and values of the encoder's output

    def __len__(self) -> int:
        """Return the number of positions written."""
        return len(self.own)


class WritingLayer(Layer):
    """Decoder layer: self-attention, cross-attention, then a feed-forward network."""

    def __init__(self, shape: CrossLayerShape, config: EncoderDecoderConfig) -> None:
        super().__init__(shape, config)
        self.cross_norm = Norm(shape.cross_norm, config.norm)
        self.cross_attention = CrossAttention(
            shape.cross_attention,
            config.shape.head_channels,
            config.norm,
            config.attention,
        )

    def forward(  # type: ignore[override]
        self,
        x_BTC: Tensor,
        sight: Sight,
        memory_BSC: Tensor,
        cross: Sight,
        cache: CrossCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the layer's output [B, T, C].

        The T positions are appended to `cache` if it is given.
        """
        assert self.attention_norm is not None
        assert self.feedforward_norm is not None
        own = None if cache is None else cache.own
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), sight, own)
        if cache is None or cache.read is None:
            keys = self.cross_attention.project_keys(memory_BSC)
            if cache is not None:
                cache.read = keys
        else:
            keys = cache.read
        x_BTC = x_BTC + self.cross_attention.look(self.cross_norm(x_BTC), keys, cross)
        changed_BTC, router = self._feed_forward(self.feedforward_norm(x_BTC), sight)
        return x_BTC + changed_BTC, router


class EncoderDecoder(Decoder):
    """Model that predicts each next token of a text from its beginning and from another text.

    Call `initialise` to fill its weights.
    """

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        shapes = config.shapes
        self.layers = nn.ModuleList(
            WritingLayer(shape, config)
            if isinstance(shape, CrossLayerShape)
            else Layer(shape, config)
            for shape in shapes.layers
        )
        tables = shapes.encoder_bias, shapes.decoder_bias
        self.encoder_bias, self.decoder_bias = (
            nn.Embedding(table.entries, table.channels) for table in tables
        )
        self.encoder_norm = Norm(shapes.encoder_norm, config.norm)

    def forward(  # type: ignore[override]
        self,
        ids_BS: Tensor,
        decoder_ids_BT: Tensor,
        segments_BS: Tensor | None = None,
        decoder_segments_BT: Tensor | None = None,
    ) -> ModelOutput:
        """Return the hidden states and the head that give the logits [B, T, V] of each next token.

        `decoder_ids_BT` [B, T] answer the texts `ids_BS` [B, S]. Segments number the documents of a
        row, 0 being padding; tokens attend only to their own segment. Without segments, each row is
        one document.
        """
        if segments_BS is None:
            segments_BS = torch.ones_like(ids_BS)
        if decoder_segments_BT is None:
            decoder_segments_BT = torch.ones_like(decoder_ids_BT)
        memory_BSC = self.read(ids_BS, segments_BS)
        return self.write(memory_BSC, segments_BS, decoder_ids_BT, decoder_segments_BT)

    def read(self, ids_BS: Tensor, segments_BS: Tensor) -> Tensor:
        """Return the encoder's output for the texts `ids_BS`, [B, S, C]."""
        places = torch.arange(ids_BS.shape[1], device=ids_BS.device)
        distances_SS = places[None] - places[:, None]
        x_BSC = self.embedding(ids_BS)
        bias_HSS = self._make_bias(self.encoder_bias, distances_SS, both_sides=True)
        together = segments_BS[:, :, None] == segments_BS[:, None]
        sight = Sight(mask_B1TS=_hide_unseen(bias_HSS[None], together[:, None]))
        for layer in self.layers[: self.config.encoding_layers]:
            x_BSC, _ = layer(x_BSC, sight)
        read_BSC: Tensor = self.encoder_norm(x_BSC)
        return read_BSC

    def write(
        self,
        memory_BSC: Tensor,
        segments_BS: Tensor,
        decoder_ids_BT: Tensor,
        decoder_segments_BT: Tensor,
        caches: Sequence[CrossCache] | None = None,
    ) -> ModelOutput:
        """Return the hidden states and the head that give the logits of each next token.

        With `caches`, one for each decoder layer, `decoder_ids_BT` continues the positions that
        they hold, all in one segment, and the new positions are appended.
        """
        new = decoder_ids_BT.shape[1]
        past = len(caches[0]) if caches else 0
        places = torch.arange(past + new, device=decoder_ids_BT.device)
        distances_TS = places[None] - places[past:, None]
        seen = (distances_TS <= 0)[None]
        if not caches:
            seen = seen & (decoder_segments_BT[:, :, None] == decoder_segments_BT[:, None])
        bias_HTS = self._make_bias(self.decoder_bias, distances_TS, both_sides=False)
        sight = Sight(mask_B1TS=_hide_unseen(bias_HTS[None], seen[:, None]))
        # Padding attends to everything, because a row of only minus infinity would give NaN.
        padding_BT1 = decoder_segments_BT[:, :, None] == 0
        read_BTS = (decoder_segments_BT[:, :, None] == segments_BS[:, None]) | padding_BT1
        cross = Sight(mask_B1TS=read_BTS[:, None])
        x_BTC = self.embedding(decoder_ids_BT)
        for number, layer in enumerate(self.layers[self.config.encoding_layers :]):
            cache = caches[number] if caches else None
            x_BTC, _ = layer(x_BTC, sight, memory_BSC, cross, cache)
        assert self.norm is not None
        table = self.embedding if self.head is None else self.head
        return ModelOutput(self.norm(x_BTC), self._output_head(table.weight, None))

    def _make_bias(self, table: nn.Module, distances_TS: Tensor, both_sides: bool) -> Tensor:
        """Return what to add to the logits, [H, T, S], of keys at `distances_TS`.

        `distances_TS` is the key's place minus the query's.
        """
        buckets_TS = find_buckets(distances_TS, self.config.position_embedding, both_sides)
        bias_HTS: Tensor = table(buckets_TS).permute(2, 0, 1)
        return bias_HTS


def find_buckets(distances: Tensor, settings: RelativeBias, both_sides: bool) -> Tensor:
    """Return the bucket of each of `distances`, the key's position minus the query's.

    With `both_sides`, half of the buckets are for keys after the query; otherwise none is.
    """
    count = settings.buckets
    behind = -distances
    first = torch.zeros_like(distances)
    if both_sides:
        count //= 2
        first = (distances > 0) * count
        behind = distances.abs()
    behind = behind.clamp(min=0)
    exact = count // 2
    # Computed in float32 as in T5: another dtype could move a distance into the next bucket.
    ratio = torch.log(behind.clamp(min=1).float() / exact) / math.log(settings.farthest / exact)
    far = exact + (ratio * (count - exact)).long()
    return first + torch.where(behind < exact, behind, far.clamp(max=count - 1))


def _hide_unseen(bias: Tensor, seen: Tensor) -> Tensor:
    """Return `bias` where `seen` is true and minus infinity elsewhere, in their broadcast shape."""
    return bias.masked_fill(~seen, -math.inf)


@torch.inference_mode()
def write_answer(
    model: EncoderDecoder,
    read: Sequence[int],
    begin: Sequence[int],
    sampling: Sampling,
    stop: Collection[int],
    entries: int | None = None,
    listen: Callable[[int], bool] = lambda _: False,
) -> Generation:
    """Return what `model` writes after `begin` in answer to the text `read`.

    Generation stops at an id of `stop`, at `sampling.maximum_tokens`, or at the model's number of
    positions. `entries` is described at `generate_batch`, `listen` at `Request`. Keys and values of
    the text are computed only at the start. Raises DataError for a text that does not fit.
    """
    positions = model.config.positions
    device = model.embedding.weight.device
    if not 1 <= len(read) <= positions or not 1 <= len(begin) < positions:
        raise DataError(
            f"the text has {len(read)} tokens, but this model reads from 1 to {positions}; "
            "shorten it"
        )
    ids_1S = torch.tensor([list(read)], device=device)
    segments_1S = torch.ones_like(ids_1S)
    memory_1SC = model.read(ids_1S, segments_1S)
    caches = [CrossCache(KeyValueCache()) for _ in range(model.config.layers)]
    new = list(begin)
    written = list[int]()
    stream = derive_stream(sampling)
    stopped: Stopped = "length"
    while True:
        ids_1T = torch.tensor([new], device=device)
        ones_1T = torch.ones_like(ids_1T)
        output = model.write(memory_1SC, segments_1S, ids_1T, ones_1T, caches)
        logits_V = output.head(output.hidden[0, -1])[:entries]
        token = NextToken(sampling, stream, len(written), (*read, *written))
        drawn = draw(logits_V[None], [token])[0]
        if drawn in stop:
            return Generation(tuple(written), "end", drawn)
        written.append(drawn)
        new = [drawn]
        if listen(drawn):
            stopped = "stop"
        elif len(written) == sampling.maximum_tokens:
            stopped = "length"
        elif len(begin) + len(written) == positions:
            stopped = "positions"
        else:
            continue
        return Generation(tuple(written), stopped)
