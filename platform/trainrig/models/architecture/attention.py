"""How tokens look at the tokens before them: the plain kind, which each other kind begins from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.models.architecture.positions import Alibi, PositionEmbedding, Rope
from trainrig.models.architecture.shapes import AttentionShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


class SlidingWindow(Settings):
    """Layers whose tokens see only those shortly before them (Beltagy et al. 2020,
    arXiv:2004.05150)."""

    # Tokens that one sees, itself among them; in an encoder, half of the others on either side.
    size: int = Field(ge=1)
    # Which layers have it: this, repeated from the first layer on. Gemma 2 alternates, Gemma 3 has
    # five local layers to a global one.
    pattern: tuple[Literal["local", "global"], ...] = Field(default=("local",), min_length=1)
    # Rotary positions of the local layers; None: those of the others.
    rope: Rope | None = None

    def is_local(self, layer: int) -> bool:
        """Whether layer `layer`, counted from 0, has the window."""
        return self.pattern[layer % len(self.pattern)] == "local"


class AttentionSettings(Settings):
    """What attention has beside its heads."""

    kind: Literal["Attention"] = "Attention"
    window: SlidingWindow | None = None  # layers that see only what is near; None: none
    # Norm of queries and keys: of each head (Qwen3, Gemma 3), or of all heads together (OLMo 2).
    qk_norm: Literal["head", "projection"] | None = None
    # Factor on the logits; None: 1 / sqrt(head_channels).
    query_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # Logits x become cap * tanh(x / cap): Gemma 2's (arXiv:2408.00118); None: as they are.
    logit_cap: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # Whether each head has a learnt logit that takes its share of the softmax and adds nothing
    # (attention sinks: gpt-oss; Xiao et al. 2023, arXiv:2309.17453).
    sinks: bool = False

    def add_parts(self, plain: AttentionShape) -> AttentionShape:
        """The sizes of all parameters of a layer, beside which the plain kind has `plain`: each
        part that is added is a field, by whose name the module has it."""
        return plain

    def attend(
        self,
        layer: nn.Module,
        x_BTC: Tensor,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        value_BKSD: Tensor,
        see: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """What the heads give, [B, H, T, D], before the last product of `layer`, which has the
        parts of `add_parts` by name.

        Queries, keys and values are those of `x_BTC`, turned, and with what caches hold; of such
        three, `see` gives what each query sees by the softmax over what it may look at.
        """
        return see(query_BHTD, key_BKSD, value_BKSD)


# Of short documents a CPU reads so many bytes of a channel at once at most: 128 places in float32,
# 256 in bfloat16, whose kernel takes longer to begin. What was quickest of 64 to 512 places. Rows
# that are no longer are read under one mask.
TOGETHER = 512
# Most channels of a head that our kernel for GPUs is for: Gemma's.
WIDEST = 256


def hides_by_distance(window: int | None, seen: int, causal: bool) -> bool:
    """Whether `window` is narrow enough to hide any of `seen` positions."""
    if window is None:
        return False
    farthest = window - 1 if causal else (window - 1) // 2
    return farthest < seen - 1


def takes_no_mask(attention: AttentionSettings, positions: PositionEmbedding) -> str | None:
    """The setting of a model for which a kernel that takes no mask of its own computes some layer
    at least; None: there is none."""
    settings = {
        "attention.window": attention.window is not None,
        "attention.logit_cap": attention.logit_cap is not None,
        "attention.sinks": attention.sinks,
        "position_embedding (Alibi)": isinstance(positions, Alibi),
    }
    return next((name for name, there in settings.items() if there), None)


class Biases(Settings):
    """Which products have a vector added."""

    qkv: bool = False  # queries, keys and values; Qwen2
    output: bool = False  # what attention gives
    feedforward: bool = False  # all matrices of the feed-forward network
    head: bool = False  # logits
