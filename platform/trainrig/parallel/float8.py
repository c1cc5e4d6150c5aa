"""Linear projections that multiply in float8, with one scale per tensor.

Micikevicius et al. 2022, "FP8 Formats for Deep Learning", arXiv:2209.05433: activations and weights
in E4M3 (4 bits of exponent, 3 of mantissa), gradients in E5M2. Just before a product, each factor
is divided in float32 by its largest magnitude over the format's largest value ("dynamic" scaling).
A product therefore depends on its two factors alone, on every rank.

Shapes: N tokens, I input and O output channels.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainrig.errors import ConfigError

if TYPE_CHECKING:
    from trainrig.parallel.precision import Precision

ALIGNMENT = 16  # every dimension of a product must be a multiple of this
# The lowest compute capability of NVIDIA devices with float8 products (Ada; Hopper is 9.0).
CAPABILITY = (8, 9)
SMALLEST = 1e-12  # lower bound of the largest magnitude, against division by 0


def check_float8(precision: "Precision") -> None:
    """Raise ConfigError if `precision` asks for float8 and this process's device lacks it."""
    if precision.compute != "float8":
        return
    found = "a CPU"
    if torch.cuda.is_available():
        if torch.cuda.get_device_capability() >= CAPABILITY:
            return
        found = torch.cuda.get_device_name()
    raise ConfigError(
        "training.precision.compute = 'float8' needs an NVIDIA Ada, Hopper or newer, but this "
        f"worker has {found}; use 'bfloat16'"
    )


def use_float8(layers: Sequence[nn.Module], precision: "Precision") -> None:
    """Make the linear projections within `layers` multiply in float8, in place.

    Names are unchanged. Projections with a dimension that is not a multiple of 16 stay as they are.
    Call this before `recompute`.
    """
    if precision.compute != "float8":
        return
    for module in itertools.chain.from_iterable(layer.modules() for layer in layers):
        if isinstance(module, nn.Linear) and not any(
            size % ALIGNMENT for size in module.weight.shape
        ):
            # The class changes, not the `forward` of each module: a compiled graph is checked
            # against a module's own `forward`, so each layer would be compiled separately.
            module.__class__ = Float8Linear


class Float8Linear(nn.Linear):
    """Linear projection whose product and gradient products are computed in float8."""

    def forward(self, x_I: Tensor) -> Tensor:
        """Return the projection [..., O] of `x_I` [..., I]."""
        flat_NI = x_I.reshape(-1, x_I.shape[-1])
        missing = -len(flat_NI) % ALIGNMENT
        padded_NI = nn.functional.pad(flat_NI, (0, 0, 0, missing)) if missing else flat_NI
        y_NO: Tensor = _Product.apply(padded_NI, self.weight)  # type: ignore[no-untyped-call]
        y_O = y_NO[: len(flat_NI)].reshape(*x_I.shape[:-1], -1)
        return y_O if self.bias is None else y_O + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        x = _Scaled.of(x_NI)
        weight = _Scaled.of(weight_OI)
        ctx.save_for_backward(x.values, x.scale, weight.values, weight.scale)
        ctx.dtype = x_NI.dtype
        # Tensor cores may accumulate in fewer bits than float32, which is faster, in the forward
        # pass only: the same choice as torchao's tensorwise recipe and NVIDIA's Transformer Engine.
        return _multiply(x, weight.transpose(), x_NI.dtype, fast=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_NO: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        x = _Scaled(x_values, x_scale)
        weight = _Scaled(weight_values, weight_scale)
        gradient = _Scaled.of(gradient_NO, torch.float8_e5m2)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _multiply(gradient, weight.put_columns_first(), ctx.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = _multiply(gradient.copy_transposed(), x.put_columns_first(), ctx.dtype)
        return of_x, of_weight


class _Scaled:
    """Matrix in float8 and the scale that its values are multiplied by."""

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self.values = values
        self.scale = scale

    @classmethod
    def of(cls, matrix: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> "_Scaled":
        largest = torch.finfo(dtype).max
        scale = matrix.abs().amax().float().clamp(min=SMALLEST) / largest
        values = (matrix.float() / scale).clamp(-largest, largest).to(dtype)
        return cls(values, scale)

    def transpose(self) -> "_Scaled":
        """Return the transpose as a view."""
        return _Scaled(self.values.t(), self.scale)

    def copy_transposed(self) -> "_Scaled":
        """Return the transpose as a contiguous copy."""
        return _Scaled(self.values.t().contiguous(), self.scale)

    def put_columns_first(self) -> "_Scaled":
        """Return the matrix in column-major layout, which the right factor of a product needs."""
        return _Scaled(self.values.t().contiguous().t(), self.scale)


def _multiply(left: _Scaled, right: _Scaled, dtype: torch.dtype, fast: bool = False) -> Tensor:
    product: Tensor = torch._scaled_mm(
        left.values,
        right.values,
        scale_a=left.scale,
        scale_b=right.scale,
        out_dtype=dtype,
        use_fast_accum=fast,
    )
    return product
