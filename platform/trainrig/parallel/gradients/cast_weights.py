"""Mixed precision on a rank alone: float32 weights, computed with as copies in narrower numbers.

What FSDP does there, to the same bits, without what it does for other ranks: on one rank it still
copies each cast weight into what it gathers and out of it, and each gradient into what it would
send and back. Weights are cast unit by unit (a layer; all that is of none) where a forward pass
first needs them, and the copies stand in their place until the step's last backward pass is through
the unit. What a backward pass leaves with the copies is added up in float32 with the weights.
Weights that are stored in those numbers already, as a frozen model under adapters may be, are not
copied.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.fsdp import FSDPModule

from trainrig.parallel.gradients.joined import join_gradients
from trainrig.parallel.gradients.kernels import add_widened, widen

# Where a module keeps its unit.
UNIT = "_cast_unit"


class CastUnit:
    """Weights that are cast together."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """Of the parameters that each of `modules` has as its own, not those of modules in it."""
        self._modules, self._dtype = tuple(modules), dtype
        self._weights: list[nn.Parameter] = []
        self._copies: list[nn.Parameter] = []
        self._places: list[tuple[nn.Module, str, int]] = []  # which weight a module has as what
        self._found = False  # whether it has looked for its weights
        self._cast = False  # whether the copies are there, and in the modules
        self._under_way = 0  # forward passes whose backward pass is still to come
        self.last = False  # whether the backward pass that comes is the step's last

    def cast(self) -> None:
        """Have copies of the weights in their place; nothing if they are there."""
        if self._cast:
            return
        if not self._found:
            self._find()
        if not self._copies:  # all is narrow already
            return
        with torch.no_grad():
            for copy in self._copies:
                copy.untyped_storage().resize_(copy.numel() * copy.element_size())
            # The copies are new to autograd, whatever it has kept of those before.
            with _unsafe_preserve_version_counter(tuple(self._copies)):
                torch._foreach_copy_([*self._copies], [*self._weights])
        for module, name, number in self._places:
            module._parameters[name] = self._copies[number]
        self._cast = True

    def restore(self) -> None:
        """Have the weights in their place again, and let the memory of the copies go."""
        self._under_way, self.last = 0, False
        if not self._cast:
            return
        for module, name, number in self._places:
            module._parameters[name] = self._weights[number]
        for copy in self._copies:
            copy.grad = None
            copy.untyped_storage().resize_(0)
        self._cast = False

    def add_gradients(self) -> None:
        """Add what a backward pass has left with the copies to the weights' gradients."""
        for weight, copy in zip(self._weights, self._copies, strict=True):
            gradient, copy.grad = copy.grad, None
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
        """A module of this unit is about to be called with these: what to call it with instead."""
        self.cast()
        given = [self._narrow(each) for each in (*args, *kwargs.values())]
        if torch.is_grad_enabled():
            # Of one that nothing goes back through, nothing says when it is over: it stays.
            self._under_way += 1
            join_gradients(given, self._end_pass)
        return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))

    def _end_pass(self) -> None:
        """A backward pass is through the module."""
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
    """Have `model` compute in `dtype`, in place, names unchanged: each of `layers` is cast by
    itself, the rest together. Its parameters may still be without memory."""
    own: set[nn.Module] = set()
    for layer in dict.fromkeys(layers):
        modules = list(layer.modules())
        own.update(modules)
        _have_cast(layer, CastUnit(modules, dtype))
    _have_cast(model, CastUnit([each for each in model.modules() if each not in own], dtype))


def _have_cast(module: nn.Module, unit: CastUnit) -> None:
    setattr(module, UNIT, unit)
    module.register_forward_pre_hook(functools.partial(_begin_pass, unit), with_kwargs=True)


def _begin_pass(
    unit: CastUnit, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return unit.begin_pass(args, kwargs)


def list_cast_units(model: nn.Module | FSDPModule) -> list[CastUnit]:
    """The units of `model` that `cast_weights` made."""
    assert isinstance(model, nn.Module)
    found = (getattr(module, UNIT, None) for module in model.modules())
    return [unit for unit in found if isinstance(unit, CastUnit)]
