"""How a model is laid out over the workers of a run: whole on each, in slices, or both."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings
from trainrig.errors import ConfigError
from trainrig.parallel.context.settings import Context

if TYPE_CHECKING:
    import torch

    from trainrig.parallel.mesh import WorkerMesh

# When gathered parameters are let go. "step": once a step, after its last micro-batch, so that each
# is sent once a step however many micro-batches there are, for the memory of one whole model.
# "layer": as soon as the layer is done, and gathered again for the backward pass.
Reshard = Annotated[Literal["step", "layer"], NOT_IDENTITY]


class _Layout(Settings):
    """What they have in common."""

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

        return build_mesh(device, self._copies(dist.get_world_size()), self.replica)

    def _copies(self, workers: int) -> int | None:
        """How many of `workers` hold the same slices; None: one holds each."""
        return None


class FSDP(_Layout):
    """Each worker keeps a slice of every parameter, its gradient and its optimizer memory."""

    exact: ClassVar[bool] = True

    kind: Literal["FSDP"] = "FSDP"
    # When gathered parameters are freed: `step` keeps them through a step, `layer` gathers them
    # again for each pass.
    reshard: Reshard = "step"


class HSDP(_Layout):
    """Groups of workers that hold a whole model each, sliced within the group."""

    kind: Literal["HSDP"] = "HSDP"
    replicas: int = Field(ge=1)  # number of groups, each with a whole copy of the model
    # When gathered parameters are freed: `step` keeps them through a step, `layer` gathers them
    # again for each pass.
    reshard: Reshard = "step"

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError unless `workers` make groups of equal size."""
        super().check_workers(workers)
        if not self._fits(workers, self.replicas):
            fitting = [str(n) for n in range(1, workers + 1) if self._fits(workers, n)]
            raise ConfigError(
                f"training.parallel.replicas ({self.replicas}) does not divide {workers} workers"
                f"{self._in_groups()}; for so many it may be {', '.join(fitting)}"
            )

    def _fits(self, workers: int, copies: int) -> bool:
        """Whether `workers` can hold so many copies: the slices of one lie with whole replicas, or
        each worker holds a whole one."""
        return workers % copies == 0 and (
            workers // copies % self.replica == 0 or copies == workers
        )

    def _in_groups(self) -> str:
        return "" if self.replica == 1 else f" that work in groups of {self.replica}"

    def _copies(self, workers: int) -> int | None:
        return self.replicas


class DDP(_Layout):
    """Each worker keeps the whole model."""

    kind: Literal["DDP"] = "DDP"

    @property
    def reshard(self) -> Literal["step"]:
        """Nothing is ever sent but gradients, so there is nothing to let go."""
        return "step"

    def _copies(self, workers: int) -> int | None:
        return workers


Layout = Annotated[FSDP | HSDP | DDP, Field(discriminator="kind")]
