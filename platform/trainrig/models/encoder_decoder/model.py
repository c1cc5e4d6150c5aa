"""A model that reads one text whole and writes another, in the manner of T5.

Raffel et al. 2019, arXiv:1910.10683. Attention, feed-forward parts and norms are the decoder's; its
layers are one list, those of the encoder first, so that they are sharded, recomputed and compiled
alike.

Shapes: B batch, S places of the text that is read, T of the one that is written, C channels, H
heads, D channels of one head, V entries of the vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainrig.models.architecture.shapes import CrossLayerShape
from trainrig.models.attention import Attention, Cache, KeyValueCache, Sight
from trainrig.models.decoder import Decoder, Layer
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig, RelativeBias
from trainrig.models.norm import Norm
from trainrig.models.output import ModelOutput


class CrossAttention(Attention):
    """Attention of the tokens that are written to those that were read."""

    def forward(self, x_BTC: Tensor, sight: Sight, cache: Cache | None = None) -> Tensor:
        """Raises ValueError: it has to be told what to look at."""
        raise ValueError("cross-attention has a text to look at: call `look`")

    def project_keys(self, memory_BSC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, K, S, D] of what was read: the same for all that is written."""
        key_BSE, value_BSE = self.multiply(memory_BSC, (self.key, self.value))
        return self._split_heads(key_BSE, None), self._split_heads(value_BSE, None)

    def look(self, x_BTC: Tensor, keys: tuple[Tensor, Tensor], sight: Sight) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        query_BHTD = self._split_heads(self.query(x_BTC), None)
        seen_BHTD = self.attend(query_BHTD, *keys, sight)
        mixed_BTC: Tensor = self.output(seen_BHTD.transpose(1, 2).flatten(2))
        return mixed_BTC


@dataclass
class CrossCache:
    """What one layer of the decoder keeps while it writes."""

    own: KeyValueCache  # of what is written
    read: tuple[Tensor, Tensor] | None = None  # keys and values of what was read

    def __len__(self) -> int:
        """Positions written."""
        return len(self.own)


class WritingLayer(Layer):
    """One layer of the decoder: each token looks back, then at what was read, then is worked on."""

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
        """[B, T, C] to [B, T, C]; `cache`, if given, is extended by these T positions."""
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
    """Predicts each next token of a text from those before it and from another text. Its weights
    are noise until `initialise`."""

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
            nn.Embedding(each.entries, each.channels) for each in tables
        )
        self.encoder_norm = Norm(shapes.encoder_norm, config.norm)

    def forward(  # type: ignore[override]
        self,
        ids_BS: Tensor,
        decoder_ids_BT: Tensor,
        segments_BS: Tensor | None = None,
        decoder_segments_BT: Tensor | None = None,
    ) -> ModelOutput:
        """What gives the logits [B, T, V] of the token after each of `decoder_ids_BT` [B, T], which
        answer the texts `ids_BS` [B, S].

        Segments number the documents of a row, 0 where there is padding: no place sees another's.
        Without them, all of a row is one.
        """
        if segments_BS is None:
            segments_BS = torch.ones_like(ids_BS)
        if decoder_segments_BT is None:
            decoder_segments_BT = torch.ones_like(decoder_ids_BT)
        memory_BSC = self.read(ids_BS, segments_BS)
        return self.write(memory_BSC, segments_BS, decoder_ids_BT, decoder_segments_BT)

    def read(self, ids_BS: Tensor, segments_BS: Tensor) -> Tensor:
        """[B, S, C] what the encoder makes of texts."""
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
        """What gives the logits after each of `decoder_ids_BT` [B, T].

        With `caches`, one for each layer of the decoder, `decoder_ids_BT` continues what they hold,
        all of one segment, and they are extended.
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
        # Padding sees all, or it would see nothing, and be no number.
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
        """[H, T, S] what is added to the logits of keys at `distances_TS` from their queries."""
        buckets_TS = find_buckets(distances_TS, self.config.position_embedding, both_sides)
        bias_HTS: Tensor = table(buckets_TS).permute(2, 0, 1)
        return bias_HTS


def find_buckets(distances: Tensor, settings: RelativeBias, both_sides: bool) -> Tensor:
    """The bucket of each of `distances`, of a key less its query; `both_sides`: half of the buckets
    are for keys after it, else none is."""
    count, behind = settings.buckets, -distances
    first = torch.zeros_like(distances)
    if both_sides:
        count //= 2
        first = (distances > 0) * count
        behind = distances.abs()
    behind = behind.clamp(min=0)
    exact = count // 2
    # In float32, as T5 has it: elsewhere a distance could fall into the bucket beside.
    ratio = torch.log(behind.clamp(min=1).float() / exact) / math.log(settings.farthest / exact)
    far = exact + (ratio * (count - exact)).long()
    return first + torch.where(behind < exact, behind, far.clamp(max=count - 1))


def _hide_unseen(bias: Tensor, seen: Tensor) -> Tensor:
    """`bias` where one sees, and minus infinity elsewhere, of both together's shape."""
    return bias.masked_fill(~seen, -math.inf)
