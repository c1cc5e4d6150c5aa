"""Settings of attention: the plain kind, gated attention, and the union of all kinds.

Each other kind inherits from the plain one. To add a kind, add its class to `AttentionKind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pydantic import Field

from trainrig.config import Settings
from trainrig.models.architecture.layer_settings import Alibi, Epsilon, PositionEmbedding, Rope
from trainrig.models.architecture.shapes import AttentionShape, NormShape, ProjectionShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


class SlidingWindow(Settings):
    """Sliding-window attention: tokens attend only to nearby tokens.

    Source: Beltagy et al. 2020, arXiv:2004.05150.
    """

    # Width of the window: number of tokens that a token attends to, counting itself. In an encoder,
    # half of the others lie on either side.
    size: int = Field(ge=1)
    # Pattern of local (windowed) and global layers, repeated from the first layer on. Gemma 2
    # alternates, Gemma 3 has five local layers for each global one.
    pattern: tuple[Literal["local", "global"], ...] = Field(default=("local",), min_length=1)
    # Rotary positions of the local layers; None: the same as in the global layers.
    rope: Rope | None = None

    def is_local(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, has the window."""
        return self.pattern[layer % len(self.pattern)] == "local"


class AttentionSettings(Settings):
    """Attention of the usual kind, with optional window, norms, soft cap and sinks."""

    # Words for this kind if ranks of a tensor axis cannot share its heads; None: they can.
    unshared: ClassVar[str | None] = None

    kind: Literal["Attention"] = "Attention"
    window: SlidingWindow | None = None  # sliding window of some or all layers; None: no window
    # Norm of queries and keys: of each head (Qwen3, Gemma 3), or of all heads together (OLMo 2);
    # None: no such norm.
    qk_norm: Literal["head", "projection"] | None = None
    # Factor on the attention logits; None: 1 / sqrt(head_channels).
    query_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # Soft cap on the attention logits x, which become cap * tanh(x / cap), as in Gemma 2
    # (arXiv:2408.00118); None: no cap.
    logit_cap: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # Give each head a learnt logit that takes a share of the softmax and adds nothing to the output
    # (attention sinks: gpt-oss; Xiao et al. 2023, arXiv:2309.17453).
    sinks: bool = False

    def add_parts(self, plain: AttentionShape, heads: int) -> AttentionShape:
        """Return the shapes of a layer's parameters: `plain` and any additions.

        Another kind of attention adds fields; the attention module registers each part under the
        name of its field. `heads` is the number of query heads.
        """
        return plain

    def find_rotary_channels(self, head_channels: int) -> int:
        """Return the number of channels of a head, from the first on, that may be rotated."""
        return head_channels

    def check_heads(self, heads: int, kv_heads: int, head_channels: int) -> None:
        """Raise ValueError if heads of these numbers and of this width do not fit this kind."""

    def attend(
        self,
        layer: nn.Module,
        x_BTC: Tensor,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        value_BKSD: Tensor,
        see: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return the output of the heads, [B, H, T, D], before the output projection of `layer`.

        `layer` has the parts of `add_parts` by name. Queries, keys and values are computed from
        `x_BTC`, with rotary positions applied and cached positions included. `see` computes softmax
        attention from the three.
        """
        return see(query_BHTD, key_BKSD, value_BKSD)


# Most bytes of one channel that a CPU reads at once for short documents: 128 positions in float32,
# 256 in bfloat16, whose kernel takes longer to start. Fastest of 64 to 512 positions. Rows that are
# no longer than this are computed under one mask.
TOGETHER = 512
# Most channels of a head that trainrig's GPU kernel supports; Gemma has as many.
MOST_HEAD_CHANNELS = 256


def hides_by_distance(window: int | None, seen: int, causal: bool) -> bool:
    """Return whether `window` hides any of `seen` positions from some query."""
    if window is None:
        return False
    farthest = window - 1 if causal else (window - 1) // 2
    return farthest < seen - 1


def find_maskless_setting(attention: AttentionSettings, positions: PositionEmbedding) -> str | None:
    """Return the setting that makes some layer use a kernel without masks, or None."""
    settings = {
        "attention.window": attention.window is not None,
        "attention.logit_cap": attention.logit_cap is not None,
        "attention.sinks": attention.sinks,
        "position_embedding (Alibi)": isinstance(positions, Alibi),
    }
    return next((name for name, there in settings.items() if there), None)


class Biases(Settings):
    """Linear layers that add a learnt bias."""

    qkv: bool = False  # bias of queries, keys and values, as in Qwen2
    output: bool = False  # bias of attention's output projection
    feedforward: bool = False  # bias of all matrices of the feed-forward network
    head: bool = False  # bias of the output head


@dataclass(frozen=True)
class GatedAttentionShape(AttentionShape):
    """Shapes of one layer's attention, with a gate for each channel of each query head."""

    gate: ProjectionShape

    @property
    def kept_beside(self) -> int:
        """Numbers per token that the gate keeps: the output of attention that it multiplies."""
        return self.gate.outputs


class GatedAttention(AttentionSettings):
    """Attention whose output is multiplied by a sigmoid gate, computed from the query's token.

    A token can switch off what it attends to, so it needs no attention sink (Qiu et al. 2025,
    arXiv:2505.06708).
    """

    kind: Literal["GatedAttention"] = "GatedAttention"  # type: ignore[assignment]

    def add_parts(self, plain: AttentionShape, heads: int) -> GatedAttentionShape:
        """Return `plain` with the gate added."""
        gate = ProjectionShape(plain.query.inputs, plain.query.outputs)
        return GatedAttentionShape(**vars(plain), gate=gate)

    def attend(
        self,
        layer: nn.Module,
        x_BTC: Tensor,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        value_BKSD: Tensor,
        see: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return the output of the heads times the gate, [B, H, T, D]."""
        gate_BTE: Tensor = cast("nn.Module", layer.gate)(x_BTC)
        gate_BTHD = gate_BTE.view(*gate_BTE.shape[:2], -1, query_BHTD.shape[-1])
        return see(query_BHTD, key_BKSD, value_BKSD) * gate_BTHD.transpose(1, 2).sigmoid()


@dataclass(frozen=True)
class LatentAttentionShape(AttentionShape):
    """Shapes of one layer's latent attention; `query_down` is None if queries have no latent.

    `key` and `value` read the latent, and `query` reads its own latent if there is one.
    """

    query_down: ProjectionShape | None
    query_down_norm: NormShape | None
    rotated_key: ProjectionShape
    latent: ProjectionShape
    latent_norm: NormShape

    @property
    def kept_beside(self) -> int:
        """Numbers per token that the norms keep, and the heads' output without padding.

        The rotated channels of a key, which are counted as an output, are not kept.
        """
        normed = self.latent.outputs + (0 if self.query_down is None else self.query_down.outputs)
        return 2 * normed + self.value.outputs - self.rotated_key.outputs


class LatentAttention(AttentionSettings):
    """Multi-head latent attention: keys and values of all heads computed from one narrow vector.

    The first `rotated_channels` of each head's query are rotated, and the rotated channels of a key
    are the same for all heads (DeepSeek-V2, arXiv:2405.04434, section 2.1). The cache of generation
    holds the keys and values of each head. Values are padded with zeros to the width of keys, so
    that every attention kernel supports them.
    """

    unshared: ClassVar[str | None] = "latent attention"

    kind: Literal["LatentAttention"] = "LatentAttention"  # type: ignore[assignment]
    # Width of the vector from which the keys and values of all heads are computed.
    latent_channels: int = Field(ge=1)
    # Width of the vector from which the queries of all heads are computed; None: queries are
    # computed directly from the layer's input.
    query_channels: int | None = Field(default=None, ge=1)
    rotated_channels: int = Field(ge=2)  # channels of each head that rotary positions rotate
    value_channels: int = Field(ge=1)  # width of a head's values, at most the head's width
    norm_epsilon: Epsilon = 1e-6  # constant under the root in the norms of both vectors

    def add_parts(self, plain: AttentionShape, heads: int) -> LatentAttentionShape:
        """Return the shapes of a layer of latent attention with the sizes of `plain`."""
        stream = plain.query.inputs
        biased = plain.query.bias
        width = plain.query.outputs // heads
        latent = self.latent_channels
        down = None
        if self.query_channels is not None:
            down = ProjectionShape(stream, self.query_channels, biased)
        values = heads * self.value_channels
        return LatentAttentionShape(
            query=ProjectionShape(self.query_channels or stream, plain.query.outputs),
            key=ProjectionShape(latent, heads * (width - self.rotated_channels)),
            value=ProjectionShape(latent, values),
            output=ProjectionShape(values, stream, plain.output.bias),
            query_norm=None,
            key_norm=None,
            sinks=plain.sinks,
            query_down=down,
            query_down_norm=None if down is None else NormShape(down.outputs),
            rotated_key=ProjectionShape(stream, self.rotated_channels, biased),
            latent=ProjectionShape(stream, latent, biased),
            latent_norm=NormShape(latent),
        )

    def find_rotary_channels(self, head_channels: int) -> int:
        """Return the number of rotated channels of a head."""
        return self.rotated_channels

    def check_heads(self, heads: int, kv_heads: int, head_channels: int) -> None:
        """Raise ValueError for shared key heads, norms of heads, and widths that do not fit."""
        if kv_heads != heads:
            raise ValueError(
                f"kv_heads ({kv_heads}) differs from heads ({heads}), but latent attention has a "
                "key for each query head; leave kv_heads out"
            )
        if self.qk_norm is not None:
            raise ValueError("attention.qk_norm does not exist in latent attention; leave it out")
        if self.rotated_channels >= head_channels:
            raise ValueError(
                f"attention.rotated_channels ({self.rotated_channels}) must be below the "
                f"{head_channels} channels of a head; raise head_channels, which includes them"
            )
        if self.value_channels > head_channels:
            raise ValueError(
                f"attention.value_channels ({self.value_channels}) must be at most the "
                f"{head_channels} channels of a head"
            )
