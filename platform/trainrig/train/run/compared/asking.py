"""Views the model before the first step of its run and after the last.

The ranks that train it do so on their devices, so no second copy is needed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainrig import storage
from trainrig.train.evaluations.comparison import ModelComparison
from trainrig.train.run.compared.records import view_path, write_view

if TYPE_CHECKING:
    from torch import nn

    from trainrig.parallel.mesh import WorkerMesh
    from trainrig.parallel.stop_consensus import StopConsensus


class RunComparison:
    """Comparison of a run, on one rank of one attempt. All ranks must call the same methods."""

    def __init__(
        self,
        folder: str,
        asked: ModelComparison | None,
        agreement: "StopConsensus",
        agreed_to_stop: Callable[[str], bool],
        mesh: "WorkerMesh",
    ) -> None:
        """Set up the comparison.

        Args:
            folder: The run folder.
            asked: What to ask the model; None: nothing.
            agreement: Collective decisions of all ranks.
            agreed_to_stop: Called with what the ranks are doing; returns the same on all ranks.
            mesh: The ranks that hold the model.
        """
        self._folder = folder
        self._asked = asked
        self._mesh = mesh
        self._agreement = agreement
        self._agreed_to_stop = agreed_to_stop

    def record_before(self, model: "nn.Module", step: int) -> bool:
        """Record the model's answers before its first step. Return False if all agreed to stop."""
        return step > 0 or self._record_view(model, step, lambda: self._agreed_to_stop("compare"))

    def record_after(self, model: "nn.Module", step: int) -> None:
        """Record the model's answers after its last step; stop requests are ignored."""

        def never() -> bool:
            self._agreed_to_stop("compare")
            return False

        self._record_view(model, step, never)

    def _record_view(
        self, model: "nn.Module", step: int, agreed_to_stop: Callable[[], bool]
    ) -> bool:
        import torch.distributed as dist

        if self._asked is None:
            return True
        first = dist.get_rank() == 0
        known = first and storage.exists(view_path(self._folder, step))
        if self._agreement.any(known):
            return True
        view = self._asked.view(model, self._mesh, step, agreed_to_stop)
        if view and first:
            write_view(self._folder, view)
        return view is not None
