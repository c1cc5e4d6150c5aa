"""Tensors of which a rank has a part of a part, seen as what they are parts of.

FSDP slices what a rank of a tensor axis has of a parameter as if it were all there is. Checkpoints
and fresh weights want its place in the whole. Files hold whole rows, so ranks that share a matrix
by its columns change places before they write it: each of c ranks gets some of the rows that they
all have, and columns from the others; and back after it was read.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from trainrig.parallel.mesh import TENSOR, WorkerMesh
from trainrig.parallel.tensor.layers import Cuts


class SharedLayers:
    """How the parameters of one model lie over the ranks that share its layers."""

    def __init__(self, cuts: Cuts, mesh: WorkerMesh) -> None:
        assert mesh.tensor.group is not None
        self._cuts, self.axis = cuts, mesh.tensor
        self._group: dist.ProcessGroup = mesh.tensor.group
        # Ranks that share a layer are neighbours.
        first = mesh.sharding.mesh - mesh.tensor.rank
        ranks = first[..., None] + torch.arange(mesh.tensor.size)
        kind, names = mesh.devices.device_type, mesh.sharding.mesh_dim_names or ()
        # Only to say who has what: nothing is sent over these.
        self._outside = DeviceMesh(
            kind, ranks.movedim(-1, 0), mesh_dim_names=(TENSOR, *names), _init_backend=False
        )
        self._inside = DeviceMesh(kind, ranks, mesh_dim_names=(*names, TENSOR), _init_backend=False)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """`tensor`, of the sizes of the parameter `name` as this rank has it, as a part of the
        whole; not a copy."""
        if not isinstance(tensor, DTensor):
            return tensor
        cut = self._cuts[name]
        size = list(tensor.shape)
        placement: Placement = Replicate()
        if cut is not None:
            size[cut] *= self.axis.size
            placement = Shard(cut)
        placements = (placement, *tensor.placements)
        return _seen_as(tensor.to_local(), self._outside, placements, size)

    def is_alike(self, name: str) -> bool:
        """Whether all ranks of the axis have all of the parameter `name`."""
        return self._cuts[name] is None

    def alike(self, model: nn.Module) -> frozenset[int]:
        """The `id` of each parameter of `model` that all ranks of the axis have all of."""
        return frozenset(id(p) for name, p in model.named_parameters() if self.is_alike(name))

    def rows(self, tensors: Mapping[str, Tensor], filled: bool = True) -> dict[str, Tensor]:
        """What `whole` gave, but whole rows of what is cut by columns: new tensors, `filled` with
        what is there or to be read into. Collective if `filled`."""
        return {
            name: self._rows(each, filled) if _by_columns(each) else each
            for name, each in tensors.items()
        }

    def take_rows(self, rows: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Copy what was read into `rows`, as `rows` gave them, to `tensors`. Collective."""
        for name, tensor in tensors.items():
            if _by_columns(tensor):
                mine, sizes = _local(tensor), self._sizes(tensor)
                m, w = sizes[self.axis.rank], mine.shape[1]
                outgoing = _local(rows[name]).view(m, self.axis.size, w).transpose(0, 1)
                incoming = torch.empty_like(mine, memory_format=torch.contiguous_format)
                self._exchange(incoming, outgoing, [n * w for n in sizes], [m * w] * len(sizes))
                mine.copy_(incoming)

    def _rows(self, tensor: Tensor, filled: bool) -> DTensor:
        assert isinstance(tensor, DTensor)
        mine, sizes = _local(tensor), self._sizes(tensor)
        m, w, ranks = sizes[self.axis.rank], mine.shape[1], self.axis.size
        found = mine.new_empty(m, ranks * w)
        if filled:
            incoming = mine.new_empty(ranks, m, w)
            self._exchange(incoming, mine, [m * w] * ranks, [n * w for n in sizes])
            found.view(m, ranks, w).copy_(incoming.transpose(0, 1))
        placements = (*tensor.placements[1:], Shard(0))
        return _seen_as(found, self._inside, placements, list(tensor.shape))

    def _sizes(self, tensor: Tensor) -> list[int]:
        """How many of the rows that the ranks of the axis have some columns of each gets."""
        rows, ranks = len(_local(tensor)), self.axis.size
        each = -(-rows // ranks)
        return [min(each, max(0, rows - rank * each)) for rank in range(ranks)]

    def _exchange(
        self, incoming: Tensor, outgoing: Tensor, sizes: list[int], sent: list[int]
    ) -> None:
        dist.all_to_all_single(
            incoming.view(-1), outgoing.reshape(-1), sizes, sent, group=self._group
        )


def _by_columns(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor) and tensor.placements[0].is_shard(1)


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()


def _seen_as(
    local: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...], size: list[int]
) -> DTensor:
    stride = torch.empty(size, device="meta").stride()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(size), stride=stride
    )
