"""Running averages of the weights, which often predict better than the last weights do.

An exponential moving average (Polyak and Juditsky 1992; Izmailov et al. 2018, arXiv:1803.05407)
needs no second run: after each update, the average moves towards the weights by 1 / horizon. For
the first `horizon` updates it is the plain mean of the weights so far, so the initial weights leave
no trace in it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from trainrig.config import Settings

# Run files are read without importing torch.
if TYPE_CHECKING:
    from torch import Tensor, nn


class Averaging(Settings):
    """Averages of the weights to keep; each takes as much memory as the weights."""

    # Number of updates that each average covers, approximately: one average per number. Each
    # average is saved in the checkpoints, and its held-out loss is measured next to the loss of the
    # weights.
    horizons: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _check_horizons(self) -> Self:
        if len(set(self.horizons)) < len(self.horizons) or any(
            horizon < 2 for horizon in self.horizons
        ):
            raise ValueError(
                f"horizons = {list(self.horizons)} are not different numbers of 2 or more; list "
                "each number of updates once"
            )
        return self


class WeightAverages:
    """Averages of one rank's slices of the weights; updating them needs no communication."""

    def __init__(self, model: "nn.Module", horizons: Sequence[int] = ()) -> None:
        self._parameters = dict(model.named_parameters())
        self._averages = {
            horizon: {
                name: parameter.detach().clone() for name, parameter in self._parameters.items()
            }
            for horizon in horizons
        }

    @property
    def horizons(self) -> tuple[int, ...]:
        """Number of updates that each average covers."""
        return tuple(self._averages)

    def update(self, step: int) -> None:
        """Update all averages after update number `step`, counted from 1."""
        for horizon, averages in self._averages.items():
            share = max(1 / horizon, 1 / step)
            for name, average in averages.items():
                weights = _to_local(self._parameters[name].detach())
                # An average may start as NaN, and NaN times 0 is NaN: copy instead of
                # interpolating.
                if share == 1:
                    _to_local(average).copy_(weights)
                else:
                    _to_local(average).lerp_(weights, share)

    def list_tensors(self) -> "dict[str, Tensor]":
        """Return all averages keyed by `average.HORIZON.NAME`; the tensors are not copies."""
        return {
            f"average.{horizon}.{name}": average
            for horizon, averages in self._averages.items()
            for name, average in averages.items()
        }

    @contextlib.contextmanager
    def swap_in(self, horizon: int) -> Iterator[None]:
        """Replace the model's weights by the average of `horizon` while the block runs."""
        kept = {
            name: _to_local(parameter.detach()).clone()
            for name, parameter in self._parameters.items()
        }
        for name, parameter in self._parameters.items():
            _to_local(parameter.detach()).copy_(_to_local(self._averages[horizon][name]))
        try:
            yield
        finally:
            for name, parameter in self._parameters.items():
                _to_local(parameter.detach()).copy_(kept[name])


def _to_local(tensor: "Tensor") -> "Tensor":
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
