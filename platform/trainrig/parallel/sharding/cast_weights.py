"""Mixed precision on a single rank: float32 weights with low-precision copies to compute with.

It gives the same bits as FSDP without FSDP's communication work: even on one rank, FSDP copies each
cast weight into and out of its gather buffer, and each gradient into and out of its send buffer.

Weights are cast unit by unit (a layer, or everything outside the layers) when a forward pass first
needs them. The copies replace the weights until the step's last backward pass is through the unit.
The gradients of the copies are accumulated in float32 with the weights. Weights that are already
stored in the low-precision dtype, such as a frozen model under adapters, are not copied.

Gradients of a layer's inputs are summed within the layer, with a callback on completion
(`join_gradients`). Elementwise operations on gradients take one pass over memory on a GPU.

They use Triton (Tillet et al. 2019, doi 10.1145/3315508.3329973) where available, otherwise plain
torch. torch has no kernel with wide loads for two dtypes: on an H200 it adds bfloat16 to float32 at
1.5 of 4.3 TB/s. Sums in a fixed order take torch one kernel for every halving of a row: two
thousand for a model of 1.3B parameters, which took the host longer to launch (0.1 s) than the
device to run (gradient_norm.py).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.fsdp import FSDPModule

from trainrig.hardware import runs_kernels


def join_input_gradients(layers: Sequence[nn.Module]) -> None:
    """Make each of `layers` sum the gradients of its inputs before passing them on.

    The sum is complete before gradients of other layers join it. This matters for inputs that
    several layers read, such as an encoder's output, and is what a layer that FSDP shards does.
    FSDP also looks into containers; the layers here take tensors and plain objects (`Sight`), which
    FSDP does not look into.
    """
    for layer in layers:
        layer.register_forward_pre_hook(_join_hook, with_kwargs=True)


def _join_hook(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if not torch.is_grad_enabled():
        return None
    given = [*args, *kwargs.values()]
    if not join_gradients(given):
        return None
    return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))


def join_gradients(given: list[Any], then: Callable[[], None] | None = None) -> bool:
    """Replace the tensors of `given` that need a gradient by aliases that share one backward node.

    Returns False if no tensor needs a gradient. A backward pass that has the gradients of all of
    them calls `then`.
    """
    places = [
        n
        for n, argument in enumerate(given)
        if isinstance(argument, Tensor) and argument.requires_grad
    ]
    if places:
        joined = _Joined.apply(then, *(given[place] for place in places))  # type: ignore[no-untyped-call]
        for place, tensor in zip(places, joined, strict=True):
            given[place] = tensor
    return bool(places)


class _Joined(torch.autograd.Function):
    """Identity function whose backward pass runs once the gradients of all its inputs are known."""

    @staticmethod
    def forward(then: Callable[[], None] | None, *inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.then = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.then is not None:
            ctx.then()
        return None, *gradients


def widen(gradient: Tensor) -> Tensor:
    """Return a float32 copy of `gradient` with the same memory layout."""
    if not (runs_kernels(gradient.device) and gradient.is_contiguous()):
        return gradient.float()
    from trainrig.parallel.sharding import gradient_kernels

    total = torch.empty_like(gradient, dtype=torch.float32)
    gradient_kernels.add(total, gradient, first=True)
    return total


def add_widened(total: Tensor, gradient: Tensor) -> None:
    """Add `gradient` to `total` in float32, in place; Triton and torch give the same bits."""
    alike = total.is_contiguous() and gradient.is_contiguous()
    if not (runs_kernels(total.device) and alike and total.dtype == torch.float32):
        total.add_(gradient)
        return
    from trainrig.parallel.sharding import gradient_kernels

    gradient_kernels.add(total, gradient, first=False)


# Attribute in which a module keeps its `CastUnit`.
UNIT = "_cast_unit"


class CastUnit:
    """Weights that are cast together."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """Prepare the direct parameters of `modules`; parameters of submodules are not included."""
        self._modules = tuple(modules)
        self._dtype = dtype
        self._weights: list[nn.Parameter] = []
        self._copies: list[nn.Parameter] = []
        # (module, parameter name, number of the weight)
        self._places: list[tuple[nn.Module, str, int]] = []
        self._found = False  # True once the weights have been collected
        self._cast = False  # True while the copies exist and are in the modules
        self._under_way = 0  # forward passes whose backward pass has not run yet
        self.last = False  # True if the next backward pass is the step's last

    def cast(self) -> None:
        """Replace the weights in the modules by low-precision copies, unless already done."""
        if self._cast:
            return
        if not self._found:
            self._find()
        if not self._copies:  # all weights already have the dtype
            return
        with torch.no_grad():
            for copy in self._copies:
                copy.untyped_storage().resize_(copy.numel() * copy.element_size())
            # Autograd must not see the copies as modified versions of tensors that it saved.
            with _unsafe_preserve_version_counter(tuple(self._copies)):
                torch._foreach_copy_([*self._copies], [*self._weights])
        for module, name, number in self._places:
            module._parameters[name] = self._copies[number]
        self._cast = True

    def restore(self) -> None:
        """Put the weights back in the modules, and free the memory of the copies."""
        self._under_way = 0
        self.last = False
        if not self._cast:
            return
        for module, name, number in self._places:
            module._parameters[name] = self._weights[number]
        for copy in self._copies:
            copy.grad = None
            copy.untyped_storage().resize_(0)
        self._cast = False

    def add_gradients(self) -> None:
        """Add the copies' gradients of a backward pass to the gradients of the weights."""
        for weight, copy in zip(self._weights, self._copies, strict=True):
            gradient = copy.grad
            copy.grad = None
            if gradient is None:
                continue
            if weight.grad is None:
                weight.grad = widen(gradient)
            else:
                add_widened(weight.grad, gradient)
            for hook in (weight._post_accumulate_grad_hooks or {}).values():
                hook(weight)

    def begin_pass(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Prepare a call of a module of this unit, and return the arguments for it.

        The arguments are cast to the unit's dtype.
        """
        self.cast()
        given = [self._narrow(argument) for argument in (*args, *kwargs.values())]
        if torch.is_grad_enabled():
            # A pass without gradients gives no sign of its end, so the copies stay.
            self._under_way += 1
            join_gradients(given, self._end_pass)
        return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))

    def _end_pass(self) -> None:
        """Finish a backward pass through the module."""
        assert self._cast or not self._copies, "copies were let go before a backward pass was over"
        self.add_gradients()
        self._under_way -= 1
        if self.last and self._under_way == 0:
            self.restore()

    def _find(self) -> None:
        self._found = True
        numbers: dict[nn.Parameter, int] = {}
        for module in self._modules:
            for name, weight in module._parameters.items():
                if weight is None or not weight.is_floating_point() or weight.dtype == self._dtype:
                    continue
                self._places.append((module, name, numbers.setdefault(weight, len(numbers))))
        self._weights = list(numbers)
        with torch.inference_mode(False):
            for weight in self._weights:
                copy = torch.empty_like(weight, dtype=self._dtype)
                self._copies.append(nn.Parameter(copy, requires_grad=weight.requires_grad))

    def _narrow(self, given: Any) -> Any:
        if isinstance(given, Tensor) and given.is_floating_point():
            return given.to(self._dtype)
        return given


def cast_weights(model: nn.Module, layers: Sequence[nn.Module], dtype: torch.dtype) -> None:
    """Make `model` compute in `dtype`, in place and with unchanged names.

    Each of `layers` is a unit of its own, and the rest is one unit. The parameters may still be on
    the meta device.
    """
    own: set[nn.Module] = set()
    for layer in dict.fromkeys(layers):
        modules = list(layer.modules())
        own.update(modules)
        _attach_unit(layer, CastUnit(modules, dtype))
    _attach_unit(
        model, CastUnit([module for module in model.modules() if module not in own], dtype)
    )


def _attach_unit(module: nn.Module, unit: CastUnit) -> None:
    setattr(module, UNIT, unit)
    module.register_forward_pre_hook(functools.partial(_begin_pass, unit), with_kwargs=True)


def _begin_pass(
    unit: CastUnit, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return unit.begin_pass(args, kwargs)


def list_cast_units(model: nn.Module | FSDPModule) -> list[CastUnit]:
    """Return the units of `model` that `cast_weights` made."""
    assert isinstance(model, nn.Module)
    found = (getattr(module, UNIT, None) for module in model.modules())
    return [unit for unit in found if isinstance(unit, CastUnit)]
