"""In what numbers a model computes, and in what its training is kept.

Mixed precision with a float32 master copy (Micikevicius et al. 2018, arXiv:1710.03740, section
3.1), in bfloat16, whose range is float32's: no loss has to be scaled (Kalamkar et al. 2019,
arXiv:1905.12322). In float16 it has (Micikevicius et al., section 3.2).
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
    """In what numbers the forward and backward passes compute.

    Weights, the sum of their gradients over micro-batches and ranks and checkpoints are float32
    whatever is chosen. So are, inside of the passes, the mean of a norm, the angles of positions,
    the softmax of attention, the loss, and what sums many products.

    float32: products in float32. tf32: the same, but NVIDIA's tensor cores may round what they
    multiply to 10 bits of mantissa; on any other device it is float32. bfloat16: weights are cast
    to it once they are gathered, and what flows through the layers has 8 bits of mantissa. float16:
    likewise, with 11 bits and a small range, for devices without bfloat16: the loss is scaled.
    auto: bfloat16 on GPUs that have it, float32 on CPUs and others; `resolve` says which.
    float8: bfloat16, but for the products of the layers' projections, whose factors are scaled,
    each as a whole, to 8 bits (parallel/float8.py); for NVIDIA's Ada, Hopper and newer.
    """

    # Number format of the forward and backward passes; weights, gradients and checkpoints stay
    # float32. auto: bfloat16 on GPUs that have it, float32 on CPUs.
    compute: Literal["auto", "float32", "tf32", "bfloat16", "float16", "float8"] = "auto"
    # Power of 2 that a loss in float16 is first multiplied by, so that small gradients are not
    # lost.
    loss_scale_exponent: int = Field(default=16, ge=0, le=24)
    # Updates in float16 after which the factor doubles; where a gradient overflows it is halved,
    # and the step computed again.
    loss_scale_interval: int = Field(default=2_000, ge=1)

    def resolve(self, has_bfloat16: bool) -> Self:
        """The same, its format named; `has_bfloat16`: the device is an accelerator that has it."""
        if self.compute != "auto":
            return self
        return self.model_copy(update={"compute": "bfloat16" if has_bfloat16 else "float32"})

    @property
    def casts(self) -> bool:
        """Whether weights are cast to be computed with; of auto, on a CPU."""
        return self.compute in NARROW

    @property
    def stream(self) -> str:
        """The number format of what flows through the layers; of auto, on a CPU."""
        if not self.casts:
            return "float32"
        return "float16" if self.compute == "float16" else "bfloat16"

    @property
    def bytes(self) -> int:
        """Of a number that flows through the layers; of auto, on a CPU."""
        return 2 if self.casts else 4

    @property
    def peak(self) -> Compute:
        """Whose peak in the table of hardware it is measured by: of float8 and float16 there is
        none, and theirs is no lower than that of bfloat16. Of auto, a CPU's."""
        if self.compute == "float16" or self.compute == "float8":
            return "bfloat16"
        return "float32" if self.compute == "auto" else self.compute

    def make_first_scale(self) -> "LossScale | None":
        """The loss scale of a fresh state; None: losses are not scaled."""
        if self.compute != "float16":
            return None
        return LossScale(2.0**self.loss_scale_exponent, self.loss_scale_interval)


@dataclass
class LossScale:
    """What losses are multiplied by before they go backward, and gradients divided by after.

    Always a power of 2, so neither rounds. All ranks change it alike, by the norm of the whole
    gradient, and checkpoints hold it.
    """

    factor: float
    interval: int
    clean: int = 0  # updates since it last changed

    def succeed(self) -> None:
        """An update was made: after enough of them, try twice as much."""
        self.clean += 1
        if self.clean >= self.interval:
            self.factor, self.clean = self.factor * 2, 0

    def back_off(self) -> bool:
        """A gradient overflowed: halve it; false if it is 1 already, so that scaling is not why."""
        self.clean = 0
        if self.factor <= 1:
            return False
        self.factor /= 2
        return True


FLOAT32 = Precision(compute="float32")


def has_bfloat16(device: "torch.device") -> bool:
    """Whether `device` is a GPU with products of bfloat16."""
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE


def make_policy(precision: Precision) -> "MixedPrecisionPolicy":
    """How FSDP2 casts: weights as they are gathered, gradients before they are added up."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if precision.casts:
        stream = find_stream_type(precision)
        return MixedPrecisionPolicy(param_dtype=stream, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def find_stream_type(precision: Precision) -> "torch.dtype":
    """Of the numbers that flow through the layers."""
    import torch  # takes seconds, which reading a run file should not

    if not precision.casts:
        return torch.float32
    return torch.float16 if precision.compute == "float16" else torch.bfloat16


def set_products(precision: Precision) -> None:
    """Set for this process how products of float32 matrices are computed, whatever it was."""
    import torch

    torch.set_float32_matmul_precision("high" if precision.compute == "tf32" else "highest")
