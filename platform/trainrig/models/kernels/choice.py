"""Which kernel computes attention for documents, windows, caps, sinks and ALiBi.

One pure function chooses, from the device, the number format and the model; docs/performance.md has
its table. Whole rows without any of these are computed by torch's own attention, and rows with
prefixes or branches under a mask, whatever is chosen here. This module imports no torch, so that
`check` can ask it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.hardware import AMPERE
from trainrig.models.architecture.attention import WIDEST
from trainrig.models.architecture.positions import Alibi
from trainrig.models.kernels.tiles import choose_backward_tile, choose_forward_tile

if TYPE_CHECKING:
    from trainrig.models.decoder_config import DecoderConfig

Kernel = Literal["flash", "flex", "triton", "plain"]
WantedKernel = Literal["auto", "flash", "flex", "triton", "plain"]
NARROW = ("bfloat16", "float16")
SETTING = "training.attention.kernel"
# From and to which capability FlashAttention-2 has no backward pass for heads of 193 to 224
# channels: cards with 99 KiB of shared memory (torch's sdp_utils.cpp says so).
SMALL_CARDS = (((8, 6), (8, 9)), ((12, 0), (12, 1)))
SMALLEST_FLEX = 16  # channels of a head: what Triton multiplies at least


class AttentionExecution(Settings):
    """How attention is computed; none of it changes what is learnt, only the last bits."""

    # Kernel for documents, windows, caps, sinks and ALiBi. auto: on GPUs, flash where it can, else
    # flex; on CPUs, torch's own and blocks. flash: FlashAttention-2 by documents. flex: compiled
    # flex_attention. triton: our own kernel, which no GPU has run yet. plain: products in blocks.
    kernel: WantedKernel = "auto"


@dataclass(frozen=True)
class Card:
    """A device, as far as kernels of attention ask."""

    capability: tuple[int, int] | None = None  # CUDA's; None: a CPU
    shared_memory: int = 0  # bytes that a block of threads may have
    has_triton: bool = False

    @property
    def in_words(self) -> str:
        """The device, for a message."""
        if self.capability is None:
            return "a CPU"
        return "a GPU of capability {}.{}".format(*self.capability)


CPU_CARD = Card()
# What `check` assumes of a GPU that it cannot ask: an H100.
USUAL_GPU = Card((9, 0), 232_448, has_triton=True)


@dataclass(frozen=True)
class AttentionCase:
    """What attention computes."""

    width: int  # channels of a head
    compute: str  # number format: float32, bfloat16 or float16
    features: tuple[str, ...] = ()  # settings that change logits or the softmax
    in_ring: bool = False  # whether keys go round ranks, and parts are merged

    @classmethod
    def describe(cls, config: DecoderConfig, compute: str, in_ring: bool = False) -> AttentionCase:
        """Return the case of the layers of `config`, computed in `compute`."""
        attention = config.attention
        features = {
            "attention.logit_cap": attention.logit_cap is not None,
            "attention.sinks": attention.sinks,
            "position_embedding (Alibi)": isinstance(config.position_embedding, Alibi),
        }
        there = tuple(name for name, is_set in features.items() if is_set)
        width = config.head_channels or config.channels // config.heads
        return cls(width, compute, there, in_ring)


@dataclass(frozen=True)
class Choice:
    """The kernel that computes, and why it was chosen."""

    kernel: Kernel | None  # None: torch's own attention, masks and blocks, as on a CPU
    reason: str


def choose_kernel(wanted: WantedKernel, case: AttentionCase, card: Card) -> Choice:
    """Return the kernel for `case` on `card`.

    All four add in one order, so deterministic mode chooses no other: FlashAttention-2's backward
    pass does so under `torch.use_deterministic_algorithms`, flex_attention's and ours use no
    atomic additions. Raises ConfigError if `wanted` names a kernel that cannot compute `case`.
    """
    if wanted != "auto":
        obstacle = find_obstacle(wanted, case, card)
        if obstacle is not None:
            raise ConfigError(f"{SETTING} = '{wanted}': {obstacle}; use {_name_others(case, card)}")
        return Choice(wanted, "named in the run file")
    if card.capability is None:
        return Choice(None, "a CPU reads rows by document, under masks and in blocks")
    if case.compute not in NARROW:
        return Choice(None, f"{case.compute} is read under masks and in blocks")
    obstacles = {kernel: find_obstacle(kernel, case, card) for kernel in ("flash", "flex")}
    if obstacles["flash"] is None:
        return Choice("flash", "documents and windows")
    if obstacles["flex"] is None:
        return Choice("flex", f"not flash: {obstacles['flash']}")
    return Choice(None, f"not flash: {obstacles['flash']}; not flex: {obstacles['flex']}")


def find_obstacle(kernel: WantedKernel, case: AttentionCase, card: Card) -> str | None:
    """Return why `kernel` cannot compute `case` on `card`; None if it can."""
    if kernel in ("auto", "plain"):
        return None
    if card.capability is None:
        return "it needs a GPU, and the device is a CPU"
    if card.capability < AMPERE:
        return f"it needs capability 8.0 or newer, and the device is {card.in_words}"
    if case.width > WIDEST:
        return f"it takes heads of at most {WIDEST} channels, and these have {case.width}"
    if kernel == "flash":
        return _find_flash_obstacle(case, card.capability)
    if not card.has_triton:
        return "it needs Triton and a C compiler on the machine with the GPU"
    if kernel == "flex":
        if case.in_ring:
            return "parallel.context (RingAttention) merges parts of a row itself"
        if case.width < SMALLEST_FLEX:
            return (
                f"it takes heads of at least {SMALLEST_FLEX} channels, and these have {case.width}"
            )
        return None
    if case.compute not in NARROW:
        return f"it computes in bfloat16 and float16, not in {case.compute}"
    if _fits_no_tile(case.width, card.shared_memory):
        return (
            f"no tile for heads of {case.width} channels fits in the {card.shared_memory:,} bytes "
            f"of shared memory of {card.in_words}"
        )
    return None


def _find_flash_obstacle(case: AttentionCase, capability: tuple[int, int]) -> str | None:
    if case.compute not in NARROW:
        return f"it computes in bfloat16 and float16, not in {case.compute}"
    if case.features:
        return f"it has no {', no '.join(case.features)}"
    if case.in_ring:
        return "parallel.context (RingAttention) merges parts of a row itself"
    if case.width % 8:
        return f"it takes heads of a multiple of 8 channels, and these have {case.width}"
    is_small = any(first <= capability <= last for first, last in SMALL_CARDS)
    if is_small and 192 < case.width <= 224:
        return (
            f"it has no backward pass for heads of {case.width} channels on a GPU of capability "
            "{}.{}".format(*capability)
        )
    return None


def _fits_no_tile(width: int, shared_memory: int) -> bool:
    tiles = choose_forward_tile(width, shared_memory), choose_backward_tile(width, shared_memory)
    return None in tiles


def _name_others(case: AttentionCase, card: Card) -> str:
    """Name the kernels that can compute `case`, for a message."""
    fitting = [each for each in get_args(WantedKernel) if find_obstacle(each, case, card) is None]
    return " or ".join(f"'{name}'" for name in fitting)


def describe_choice(choice: Choice) -> str:
    """Return the kernel in words, as the fingerprint of a run's numerics has it."""
    named = {
        "flash": "flash: FlashAttention-2 by documents",
        "flex": "flex: compiled flex_attention",
        "triton": "triton: our kernel",
        "plain": "plain: products in blocks",
    }
    if choice.kernel is None:
        return "torch: under masks, and plain products in blocks"
    return named[choice.kernel]
