"""In what numbers a model computes, and in what its training is kept.

Mixed precision with a float32 master copy (Micikevicius et al. 2018, arXiv:1710.03740, section
3.1), in bfloat16, whose range is float32's: no loss has to be scaled (Kalamkar et al. 2019,
arXiv:1905.12322).
"""

from typing import TYPE_CHECKING, Literal

from trainrig.config import Settings

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy


class Precision(Settings):
    """In what numbers the forward and backward passes compute.

    Weights, the sum of their gradients over micro-batches and ranks, the optimizer's memory and
    checkpoints are float32 whatever is chosen. So are, inside of the passes, the mean of a norm,
    the angles of positions, the softmax of attention, the loss, and what sums many products.

    float32: products in float32. tf32: the same, but NVIDIA's tensor cores may round what they
    multiply to 10 bits of mantissa; on any other device it is float32. bfloat16: weights are cast
    to it once they are gathered, and what flows through the layers has 8 bits of mantissa.
    """

    # Number format of the forward and backward passes; weights, gradients and checkpoints stay
    # float32.
    compute: Literal["float32", "tf32", "bfloat16"] = "float32"


FLOAT32 = Precision()


def policy(precision: Precision) -> "MixedPrecisionPolicy":
    """How FSDP2 casts: weights as they are gathered, gradients before they are added up."""
    import torch  # takes seconds, which reading a run file should not
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if precision.compute == "bfloat16":
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def set_products(precision: Precision) -> None:
    """Set for this process how products of float32 matrices are computed, whatever it was."""
    import torch

    torch.set_float32_matmul_precision("high" if precision.compute == "tf32" else "highest")
