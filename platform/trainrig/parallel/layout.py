"""How a model is laid out over the workers of a run: whole on each, in slices, or both."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings
from trainrig.errors import ConfigError
from trainrig.parallel.context.settings import Context

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

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

    def data_workers(self, workers: int) -> int:
        """Among how many of `workers` data is divided: those that share rows are one."""
        return workers if self.context is None else workers // self.context.ranks


class FSDP(_Layout):
    """Each worker keeps a slice of every parameter, its gradient and its optimizer memory."""

    exact: ClassVar[bool] = True

    kind: Literal["FSDP"] = "FSDP"
    # When gathered parameters are freed: `step` keeps them through a step, `layer` gathers them
    # again for each pass.
    reshard: Reshard = "step"

    def mesh(self, device: "torch.device") -> "DeviceMesh":
        """All workers along one axis, over which parameters are sliced."""
        from trainrig.parallel.mesh import data_mesh  # torch, which run files do without

        return data_mesh(device)


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
        if workers % self.replicas:
            fitting = [str(n) for n in range(1, workers + 1) if workers % n == 0]
            raise ConfigError(
                f"training.parallel.replicas ({self.replicas}) does not divide {workers} workers; "
                f"for so many it may be {', '.join(fitting)}"
            )

    def mesh(self, device: "torch.device") -> "DeviceMesh":
        """Groups along one axis, workers of a group along the other."""
        from trainrig.parallel.mesh import replica_mesh

        return replica_mesh(device, self.replicas)


class DDP(_Layout):
    """Each worker keeps the whole model."""

    kind: Literal["DDP"] = "DDP"

    @property
    def reshard(self) -> Literal["step"]:
        """Nothing is ever sent but gradients, so there is nothing to let go."""
        return "step"

    def mesh(self, device: "torch.device") -> "DeviceMesh":
        """Each worker is a group of its own."""
        import torch.distributed as dist

        from trainrig.parallel.mesh import replica_mesh

        return replica_mesh(device, dist.get_world_size())


Layout = Annotated[FSDP | HSDP | DDP, Field(discriminator="kind")]
