"""A model before the first step of its run and after the last, seen by the ranks that train it, on
their devices: so no second copy of it is needed."""

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
    """The comparison of a run, of one rank of one attempt. All ranks must call the same methods."""

    def __init__(
        self,
        folder: str,
        asked: ModelComparison | None,
        agreement: "StopConsensus",
        agreed_to_stop: Callable[[str], bool],
        mesh: "WorkerMesh",
    ) -> None:
        """`folder`: the run's. `agreed_to_stop` is told what is being done, and answers all ranks
        alike. `mesh`: the ranks that hold its model."""
        self._folder, self._asked, self._mesh = folder, asked, mesh
        self._agreement, self._agreed_to_stop = agreement, agreed_to_stop

    def see_before(self, model: "nn.Module", step: int) -> bool:
        """See the model if it has taken no step yet; false: all agreed to stop instead."""
        return step > 0 or self._see(model, step, lambda: self._agreed_to_stop("compare"))

    def see_after(self, model: "nn.Module", step: int) -> None:
        """See the model after its last step: now or never, so to the end."""

        def never() -> bool:
            self._agreed_to_stop("compare")
            return False

        self._see(model, step, never)

    def _see(self, model: "nn.Module", step: int, agreed_to_stop: Callable[[], bool]) -> bool:
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
