"""Averages of the weights along a run, which often predict better than the last weights do.

An exponential moving average (Polyak and Juditsky 1992; Izmailov et al. 2018, arXiv:1803.05407)
takes no second run: after each update it moves towards the weights by 1 / horizon. Until as many
updates were made it is their plain mean, so what it began with leaves no trace.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from trainrig.config import Settings

# Run files are read without torch.
if TYPE_CHECKING:
    from torch import Tensor, nn


class Averaging(Settings):
    """Averages of the weights to keep beside them; each takes the memory of the weights once."""

    # Updates that an average reaches back over, about; one average for each. It is saved, and its
    # held-out loss measured beside that of the weights.
    horizons: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _horizons_are_some(self) -> Self:
        if len(set(self.horizons)) < len(self.horizons) or any(each < 2 for each in self.horizons):
            raise ValueError(
                f"horizons = {list(self.horizons)}: give different numbers of updates, 2 or more"
            )
        return self


class WeightAverages:
    """The averages that one rank keeps: of its slices of the weights, so nothing is sent."""

    def __init__(self, model: "nn.Module", horizons: Sequence[int] = ()) -> None:
        self._parameters = dict(model.named_parameters())
        self._averages = {
            horizon: {name: each.detach().clone() for name, each in self._parameters.items()}
            for horizon in horizons
        }

    @property
    def horizons(self) -> tuple[int, ...]:
        """Of each average."""
        return tuple(self._averages)

    def update(self, step: int) -> None:
        """Update number `step`, from 1, was made."""
        for horizon, averages in self._averages.items():
            share = max(1 / horizon, 1 / step)
            for name, average in averages.items():
                weights = _to_local(self._parameters[name].detach())
                # What an average began with may be no number, which times 0 is none either.
                if share == 1:
                    _to_local(average).copy_(weights)
                else:
                    _to_local(average).lerp_(weights, share)

    def list_tensors(self) -> "dict[str, Tensor]":
        """Each average as `average.HORIZON.NAME`; not copies."""
        return {
            f"average.{horizon}.{name}": average
            for horizon, averages in self._averages.items()
            for name, average in averages.items()
        }

    @contextlib.contextmanager
    def swap_in(self, horizon: int) -> Iterator[None]:
        """While the block runs, the model has the average in the place of its weights."""
        kept = {name: _to_local(each.detach()).clone() for name, each in self._parameters.items()}
        for name, each in self._parameters.items():
            _to_local(each.detach()).copy_(_to_local(self._averages[horizon][name]))
        try:
            yield
        finally:
            for name, each in self._parameters.items():
                _to_local(each.detach()).copy_(kept[name])


def _to_local(tensor: "Tensor") -> "Tensor":
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
