"""The choice of the attention kernel, and tile sizes of the Triton kernels, without torch.

One pure function chooses, from the device, the dtype and the model; docs/attention.md has its
table. Whole rows without any of these features use torch's own attention, and rows with prefixes or
branches use a mask, whatever is chosen here. This module imports no torch, so that `check` can use
it.

A GPU refuses to launch a kernel whose thread blocks need more shared memory than it has: 99 KiB on
consumer cards (capabilities 8.6, 8.9 and 12.0), 163 KiB on an A100, 227 KiB on an H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.hardware import AMPERE
from trainrig.models.architecture.attention_settings import MOST_HEAD_CHANNELS
from trainrig.models.architecture.layer_settings import Alibi

if TYPE_CHECKING:
    from trainrig.models.architecture.decoder_config import DecoderConfig


NUMBER_BYTES = 2  # bytes of a number in half precision
STAGES = 2  # number of loads in flight (Triton's `num_stages`)


@dataclass(frozen=True)
class Tile:
    """Size of one block: queries, keys, and channels padded to a power of two."""

    queries: int
    keys: int
    width: int


def pad_width(width: int) -> int:
    """Return the smallest power of two that is at least `width` channels and at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def estimate_forward_bytes(tile: Tile) -> int:
    """Return the bytes of shared memory that the forward kernel needs.

    The queries stay in memory, keys and values are
    loaded ahead, and the softmax passes through it. For 64 queries, 64 keys and 256 channels the
    result is the 106,496 bytes that Triton asked for.
    """
    loaded = tile.queries + 2 * tile.keys * (STAGES - 1)
    return NUMBER_BYTES * (tile.width * loaded + tile.queries * tile.keys)


def estimate_backward_bytes(tile: Tile) -> int:
    """Return the bytes of shared memory that the larger of the two backward kernels needs.

    Two tensors stay in memory, two are loaded ahead, and the softmax and its gradient pass through.
    """
    stays = max(tile.queries, tile.keys)
    ahead = min(tile.queries, tile.keys)
    loaded = 2 * stays + 2 * ahead * (STAGES - 1)
    return NUMBER_BYTES * (tile.width * loaded + 2 * tile.queries * tile.keys)


def choose_forward_tile(width: int, shared_memory: int) -> Tile | None:
    """Return the largest tile of the forward kernel that fits, or None if none does.

    `width` is the number of channels of a head, `shared_memory` the available bytes.
    """
    padded = pad_width(width)
    first = [(128, 64)] if width <= 128 else []
    sizes = [*first, (64, 64), (64, 32), (32, 32), (16, 16)]
    tiles = [Tile(queries, keys, padded) for queries, keys in sizes]
    return next((tile for tile in tiles if estimate_forward_bytes(tile) <= shared_memory), None)


def choose_backward_tile(width: int, shared_memory: int) -> Tile | None:
    """Return the largest tile of the backward kernels that fits, or None if none does."""
    padded = pad_width(width)
    sizes = [32, 16] if width > 128 else [64, 32, 16]
    tiles = [Tile(size, size, padded) for size in sizes]
    return next((tile for tile in tiles if estimate_backward_bytes(tile) <= shared_memory), None)


Kernel = Literal["flash", "flex", "triton", "plain"]
WantedKernel = Literal["auto", "flash", "flex", "triton", "plain"]
NARROW = ("bfloat16", "float16")
SETTING = "training.attention.kernel"
# Ranges of capabilities on which FlashAttention-2 has no backward pass for heads of 193 to 224
# channels: cards with 99 KiB of shared memory (see torch's sdp_utils.cpp).
SMALL_CARDS = (((8, 6), (8, 9)), ((12, 0), (12, 1)))
SMALLEST_FLEX = 16  # fewest channels of a head; Triton multiplies no smaller blocks


class AttentionExecution(Settings):
    """Settings of how attention is computed, which affect only the rounding of results."""

    # Kernel for documents, windows, soft caps, sinks and ALiBi. "auto": on GPUs flash where
    # possible, otherwise flex; on CPUs torch's kernels and plain products in blocks. "flash":
    # FlashAttention-2 by documents. "flex": compiled flex_attention. "triton": trainrig's Triton
    # kernel, which has not been run on a GPU yet. "plain": plain products in blocks.
    kernel: WantedKernel = "auto"


@dataclass(frozen=True)
class Card:
    """A device, with the properties that attention kernels depend on."""

    capability: tuple[int, int] | None = None  # CUDA capability; None on a CPU
    shared_memory: int = 0  # most bytes of shared memory for a thread block
    is_triton_installed: bool = False

    @property
    def in_words(self) -> str:
        """The device in words, for error messages."""
        if self.capability is None:
            return "a CPU"
        return "a GPU of capability {}.{}".format(*self.capability)


CPU_CARD = Card()
# The GPU that `check` assumes if there is none on this machine: an H100.
USUAL_GPU = Card((9, 0), 232_448, is_triton_installed=True)


@dataclass(frozen=True)
class AttentionCase:
    """The properties of a model's attention that the choice of kernel depends on."""

    width: int  # channels of a head
    compute: str  # dtype of the products: float32, bfloat16 or float16
    features: tuple[str, ...] = ()  # settings in use that change logits or the softmax
    in_ring: bool = False  # ring attention: keys pass around ranks and partial results are merged

    @classmethod
    def describe(cls, config: DecoderConfig, compute: str, in_ring: bool = False) -> AttentionCase:
        """Return the case of the layers of `config`, computed in the dtype `compute`."""
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
class KernelChoice:
    """The chosen kernel, with the reason."""

    kernel: Kernel | None  # None: torch's attention, with masks, and plain products in blocks
    reason: str


def choose_kernel(wanted: WantedKernel, case: AttentionCase, card: Card) -> KernelChoice:
    """Return the kernel for `case` on `card`.

    All four kernels add in a fixed order, so deterministic mode makes the same choice:
    FlashAttention-2 does so under `torch.use_deterministic_algorithms`, and flex_attention and
    trainrig's kernel use no atomic additions. Raises ConfigError if `wanted` names a kernel that
    cannot compute `case`.
    """
    if wanted != "auto":
        obstacle = find_obstacle(wanted, case, card)
        if obstacle is not None:
            raise ConfigError(f"{SETTING} = '{wanted}': {obstacle}; use {_name_others(case, card)}")
        return KernelChoice(wanted, "named in the run file")
    if card.capability is None:
        return KernelChoice(
            None, "on a CPU, rows are computed by document, with masks and in blocks"
        )
    if case.compute not in NARROW:
        return KernelChoice(None, f"in {case.compute}, rows are computed with masks and in blocks")
    obstacles = {kernel: find_obstacle(kernel, case, card) for kernel in ("flash", "flex")}
    if obstacles["flash"] is None:
        return KernelChoice("flash", "fastest kernel for documents and windows")
    if obstacles["flex"] is None:
        return KernelChoice("flex", f"not flash: {obstacles['flash']}")
    return KernelChoice(None, f"not flash: {obstacles['flash']}; not flex: {obstacles['flex']}")


def find_obstacle(kernel: WantedKernel, case: AttentionCase, card: Card) -> str | None:
    """Return why `kernel` cannot compute `case` on `card`, or None if it can."""
    if kernel in ("auto", "plain"):
        return None
    if card.capability is None:
        return "it needs a GPU, but the device is a CPU"
    if card.capability < AMPERE:
        return f"it needs capability 8.0 or newer, but the device is {card.in_words}"
    if case.width > MOST_HEAD_CHANNELS:
        return (
            f"it supports heads of at most {MOST_HEAD_CHANNELS} channels, but these have "
            f"{case.width}"
        )
    if kernel == "flash":
        return _find_flash_obstacle(case, card.capability)
    if not card.is_triton_installed:
        return "it needs Triton and a C compiler on the machine with the GPU"
    if kernel == "flex":
        if case.in_ring:
            return (
                "it does not support parallel.context (RingAttention), which merges parts of rows"
            )
        if case.width < SMALLEST_FLEX:
            return (
                f"it supports heads of at least {SMALLEST_FLEX} channels, but these have "
                f"{case.width}"
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
        return f"it does not support {', '.join(case.features)}"
    if case.in_ring:
        return "it does not support parallel.context (RingAttention), which merges parts of rows"
    if case.width % 8:
        return f"it supports heads of a multiple of 8 channels, but these have {case.width}"
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
    """Return the names of the kernels that can compute `case`, for an error message."""
    fitting = [
        kernel for kernel in get_args(WantedKernel) if find_obstacle(kernel, case, card) is None
    ]
    return " or ".join(f"'{name}'" for name in fitting)


def describe_choice(choice: KernelChoice) -> str:
    """Return the kernel in words, for the fingerprint of a run's numerics."""
    named = {
        "flash": "flash: FlashAttention-2 by documents",
        "flex": "flex: compiled flex_attention",
        "triton": "triton: our kernel",
        "plain": "plain: products in blocks",
    }
    if choice.kernel is None:
        return "torch: under masks, and plain products in blocks"
    return named[choice.kernel]
