"""A model before the first step of its run and after the last: measured by the ranks that train it,
on their devices, so that no second copy of it is needed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from trainrig.train.run.compared.records import ModelView, view_path, write_view

if TYPE_CHECKING:  # a run file is checked without torch
    from torch import nn

    from trainrig.parallel.stop_consensus import StopConsensus
    from trainrig.train.job import TrainingJob
    from trainrig.train.state import TrainState


class Comparison(Protocol):
    """What is asked of a model."""

    def view(
        self, model: "nn.Module", step: int, agreed_to_stop: Callable[[], bool]
    ) -> ModelView | None:
        """What `model` is like after `step`; all ranks call it and get the same. None: all agreed
        to stop instead."""


def nothing_compared() -> Comparison | None:
    """No comparison: for runs whose reports show none."""
    return None


class RunComparison:
    """The comparison of a run, of one rank of one attempt. All ranks must call the same methods."""

    def __init__(
        self,
        job: "TrainingJob",
        agreement: "StopConsensus",
        agreed_to_stop: Callable[[str], bool],
    ) -> None:
        """`agreed_to_stop` is told what is being done, and answers all ranks alike."""
        self._folder, self._asked = job.folder, job.make_comparison()
        self._agreement, self._agreed_to_stop = agreement, agreed_to_stop

    def before(self, state: "TrainState") -> bool:
        """See the model before its first step; false: all agreed to stop instead."""
        return state.step > 0 or self._see(state, lambda: self._agreed_to_stop("compare"))

    def after(self, state: "TrainState") -> None:
        """See the model after its last step: now or never, so to the end."""

        def never() -> bool:
            self._agreed_to_stop("compare")
            return False

        self._see(state, never)

    def _see(self, state: "TrainState", agreed_to_stop: Callable[[], bool]) -> bool:
        import torch.distributed as dist

        from trainrig import storage

        if self._asked is None:
            return True
        first = dist.get_rank() == 0
        known = first and storage.exists(view_path(self._folder, state.step))
        if self._agreement.any(known):
            return True
        view = self._asked.view(state.model, state.step, agreed_to_stop)
        if view and first:
            write_view(self._folder, view)
        return view is not None
