"""Number formats of a model's computation and of the state of its training.

Mixed precision with a float32 master copy (Micikevicius et al. 2018, arXiv:1710.03740, section
3.1). bfloat16 has the range of float32 and needs no loss scaling (Kalamkar et al. 2019,
arXiv:1905.12322). float16 needs it (Micikevicius et al., section 3.2).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from trainrig.config import Settings
from trainrig.hardware import AMPERE, Compute

if TYPE_CHECKING:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

NARROW = ("bfloat16", "float16", "float8")


class Precision(Settings):
    """Number format of the forward and backward passes.

    Weights, the sums of their gradients over micro-batches and ranks, and checkpoints are float32
    for every choice. So are, within the passes, the mean of a norm, rotary angles, the softmax of
    attention, the loss, and the sums within matrix products.

    float32: products in float32. tf32: the same, but NVIDIA's tensor cores may round the factors to
    10 bits of mantissa; on any other device it is float32. bfloat16: weights are cast after they
    are gathered, and activations have 8 bits of mantissa. float16: likewise, with 11 bits and a
    small range, for devices without bfloat16; the loss is scaled. auto: bfloat16 on GPUs that
    support it, float32 on CPUs and other devices; `resolve` returns the choice. float8: bfloat16,
    except that the products of the layers' projections have factors scaled to 8 bits, with one
    scale per tensor (parallel/float8.py); for NVIDIA's Ada, Hopper and newer.
    """

    # Number format of the forward and backward passes. Weights, gradient sums and checkpoints stay
    # float32. `auto`: bfloat16 on GPUs that support it, float32 on CPUs.
    compute: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float8"] = "auto"
    # Exponent of the initial loss scale with float16: the loss is multiplied by 2 to this power,
    # against underflow of small gradients.
    loss_scale_exponent: int = Field(default=16, ge=0, le=24)
    # Number of updates with float16 after which the loss scale doubles. If a gradient overflows,
    # the scale is halved and the step is computed again.
    loss_scale_interval: int = Field(default=2_000, ge=1)

    def resolve(self, supports_bfloat16: bool) -> Self:
        """Return these settings with `auto` replaced by the format for the device.

        `supports_bfloat16`: the device is an accelerator that supports bfloat16.
        """
        if self.compute != "auto":
            return self
        return self.model_copy(update={"compute": "bfloat16" if supports_bfloat16 else "float32"})

    @property
    def casts(self) -> bool:
        """True if weights are cast to a narrower format to compute; `auto` counts as on a CPU."""
        return self.compute in NARROW

    @property
    def stream(self) -> str:
        """The number format of activations between layers; `auto` counts as on a CPU."""
        if not self.casts:
            return "float32"
        return "float16" if self.compute == "float16" else "bfloat16"

    @property
    def bytes(self) -> int:
        """Bytes of one number of the activations between layers; `auto` counts as on a CPU."""
        return 2 if self.casts else 4

    @property
    def peak(self) -> Compute:
        """The format whose peak FLOP/s in the hardware table utilization is measured against.

        The table has no peak for float8 and float16. Theirs is at least that of bfloat16, which is
        used. `auto` counts as on a CPU.
        """
        if self.compute == "float16" or self.compute == "float8":
            return "bfloat16"
        return "float32" if self.compute == "auto" else self.compute

    def make_first_scale(self) -> "LossScale | None":
        """Return the loss scale of a new run, or None if losses are not scaled."""
        if self.compute != "float16":
            return None
        return LossScale(2.0**self.loss_scale_exponent, self.loss_scale_interval)


@dataclass
class LossScale:
    """Factor that losses are multiplied by before the backward pass, and gradients divided by.

    It is always a power of 2, so neither operation rounds. All ranks change it alike, by the norm
    of the whole gradient, and checkpoints contain it.
    """

    factor: float
    interval: int
    clean: int = 0  # updates since the factor last changed

    def succeed(self) -> None:
        """Record an update, and double the factor after `interval` updates."""
        self.clean += 1
        if self.clean >= self.interval:
            self.factor = self.factor * 2
            self.clean = 0

    def back_off(self) -> bool:
        """Halve the factor after a gradient overflow.

        Returns False if the factor is already 1, so that scaling is not the cause.
        """
        self.clean = 0
        if self.factor <= 1:
            return False
        self.factor /= 2
        return True


FLOAT32 = Precision(compute="float32")


def supports_bfloat16(device: "torch.device") -> bool:
    """Return whether `device` is a GPU that supports bfloat16 products."""
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE


def make_policy(precision: Precision) -> "MixedPrecisionPolicy":
    """Return FSDP2's policy: the dtypes of gathered weights and of reduced gradients."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if precision.casts:
        stream = find_stream_type(precision)
        return MixedPrecisionPolicy(param_dtype=stream, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def find_stream_type(precision: Precision) -> "torch.dtype":
    """Return the dtype of the activations between layers."""
    import torch  # here because torch is slow to import

    if not precision.casts:
        return torch.float32
    return torch.float16 if precision.compute == "float16" else torch.bfloat16


def set_products(precision: Precision) -> None:
    """Set the precision of float32 matrix products in this process, over any earlier setting."""
    import torch

    torch.set_float32_matmul_precision("high" if precision.compute == "tf32" else "highest")
