"""What each layout of a model over workers says of itself."""

from typing import TYPE_CHECKING, ClassVar

from trainrig.config import Settings
from trainrig.parallel.context.settings import Context

if TYPE_CHECKING:
    import torch

    from trainrig.parallel.mesh import WorkerMesh


class WorkerLayout(Settings):
    """How a model is laid out over the workers of a run; its fields are `training.parallel`."""

    # Whether gradients can be added in an order that does not depend on the number of workers.
    exact: ClassVar[bool] = False

    # Workers that share each row, for sequences that one has no room for; None: each has whole
    # rows.
    context: Context | None = None

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError if a model cannot be laid out over `workers` workers."""
        if self.context is not None:
            self.context.check_workers(workers)

    @property
    def replica(self) -> int:
        """Workers that compute a micro-batch together, and come and go together."""
        return 1 if self.context is None else self.context.ranks

    def data_workers(self, workers: int) -> int:
        """Among how many of `workers` data is divided: a replica is one."""
        return workers // self.replica

    def mesh(self, device: "torch.device") -> "WorkerMesh":
        """All ranks of the process group, as they are laid out; each calls it."""
        import torch.distributed as dist  # torch, which run files do without

        from trainrig.parallel.mesh import build_mesh

        return build_mesh(device, self.copies(dist.get_world_size()), self.replica)

    def copies(self, workers: int) -> int | None:
        """How many of `workers` hold the same slices; None: one holds each."""
        return None
