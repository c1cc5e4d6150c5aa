"""Views of a rank's slices of tensor-parallel parameters as slices of the whole parameters.

FSDP slices a tensor rank's part of a parameter as if it were the whole. Checkpoints and weight
initialisation need its position in the whole. Files hold whole rows. Ranks that share a matrix by
its columns therefore exchange parts before they write it: each of c ranks gets some of the rows
that they all have, with the columns of the others; after reading they exchange back. The rows of
experts that are divided over other ranks as well are already cut twice, so each rank gets all of
those rows.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from trainrig.parallel.axes.context_parts import gather_parts
from trainrig.parallel.axes.tensor_layers import LayerSplit
from trainrig.parallel.mesh import TENSOR, WorkerMesh


class SharedLayers:
    """Distribution of one model's parameters over the ranks that share its layers."""

    def __init__(self, split: LayerSplit, mesh: WorkerMesh) -> None:
        assert mesh.tensor.group is not None
        self._cuts = split.cuts
        self._parts = split.parts
        self.axis = mesh.tensor
        self._group: dist.ProcessGroup = mesh.tensor.group
        self._device = mesh.devices.device_type  # type of device whose memory the group sends from
        self._meshes: dict[tuple[DeviceMesh, str], tuple[DeviceMesh, DeviceMesh]] = {}

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return `tensor` as a slice of the whole parameter `name`, without a copy.

        `tensor` has the shape of this rank's part of the parameter.
        """
        if not isinstance(tensor, DTensor):
            return tensor
        cut = self._cuts[name]
        size = list(tensor.shape)
        placement: Placement = Replicate()
        if cut is not None:
            size[cut] *= self.axis.size
            placement = Shard(cut)
        placements = (placement, *tensor.placements)
        local = tensor.to_local()
        outside, _ = self._find_meshes(tensor.device_mesh, local.device.type)
        return _view_as(local, outside, placements, size)

    def _find_meshes(self, mesh: DeviceMesh, kind: str) -> tuple[DeviceMesh, DeviceMesh]:
        """Return `mesh` with the tensor ranks added as its first axis, and as its last.

        `mesh` is the one that a tensor is sliced over. The results describe placements only:
        nothing is sent over them. `kind`: type of device where slices lie, or `DTensor.from_local`
        would move them.
        """
        if (mesh, kind) not in self._meshes:
            # Ranks that share a layer are neighbouring ranks.
            ranks = (mesh.mesh - self.axis.rank)[..., None] + torch.arange(self.axis.size)
            names = mesh.mesh_dim_names or ()
            self._meshes[mesh, kind] = (
                DeviceMesh(
                    kind, ranks.movedim(-1, 0), mesh_dim_names=(TENSOR, *names), _init_backend=False
                ),
                DeviceMesh(kind, ranks, mesh_dim_names=(*names, TENSOR), _init_backend=False),
            )
        return self._meshes[mesh, kind]

    def is_alike(self, name: str) -> bool:
        """Return whether all ranks of the axis hold the whole parameter `name`."""
        return self._cuts[name] is None

    def list_alike(self, model: nn.Module) -> frozenset[int]:
        """Return the `id` of each parameter of `model` that all ranks of the axis hold whole."""
        return frozenset(id(p) for name, p in model.named_parameters() if self.is_alike(name))

    def add_parts(self, model: nn.Module) -> None:
        """Add the gradients of shared parameters of which each rank has a part. Collective.

        The parts are added in the order of ranks, and each rank gets the sum.
        """
        found = [p.grad for name, p in model.named_parameters() if name in self._parts]
        gradients = [_to_local(gradient) for gradient in found if gradient is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total, *others = gather_parts(flat, self._group)
        for other in others:
            total = total + other
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, sum_ in zip(gradients, total.split(sizes), strict=True):
            gradient.copy_(sum_.view_as(gradient))

    def combine_columns(self, name: str, numbers_O: Tensor, largest: bool = False) -> Tensor:
        """Return the sum, or the `largest`, of `numbers_O` over ranks with other columns.

        Collective. `numbers_O` has a number for each row of this rank's part of the parameter
        `name`. They are added in the order of ranks, and returned as they are if the columns are
        not divided.
        """
        if (self._cuts[name] or 0) == 0:
            return numbers_O
        total: Tensor
        total, *others = gather_parts(numbers_O, self._group)
        for other in others:
            total = torch.maximum(total, other) if largest else total + other
        return total

    def rows(self, tensors: Mapping[str, Tensor], filled: bool = True) -> dict[str, Tensor]:
        """Return results of `whole` with whole rows for every tensor that is cut by columns.

        Those are new tensors, `filled` with the values or left empty to be read into. Collective if
        `filled`.
        """
        return {
            name: self._rows(tensor, filled) if _is_cut_by_columns(tensor) else tensor
            for name, tensor in tensors.items()
        }

    def take_rows(self, rows: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Copy what was read into `rows`, as returned by `rows`, to `tensors`. Collective."""
        for name, tensor in tensors.items():
            if not _is_cut_by_columns(tensor):
                continue
            mine = _to_local(tensor)
            whole = _to_local(rows[name])
            if _cut_twice(tensor):  # each rank has read all of the rows
                mine.copy_(self._split_by_rank(whole, tensor)[self.axis.rank])
                continue
            sizes = self._count_rows(tensor)
            w = mine[:1].numel()
            outgoing = self._split_by_rank(whole, tensor)
            m = sizes[self.axis.rank]
            incoming = torch.empty_like(mine, memory_format=torch.contiguous_format)
            self._exchange(incoming, outgoing, [n * w for n in sizes], [m * w] * len(sizes))
            mine.copy_(incoming)

    def _rows(self, tensor: Tensor, filled: bool) -> DTensor:
        assert isinstance(tensor, DTensor)
        mine = _to_local(tensor)
        sizes = self._count_rows(tensor)
        ranks = self.axis.size
        if _cut_twice(tensor):
            found = mine.new_empty(len(mine), *tensor.shape[1:])
            if filled:
                parts = gather_parts(mine.to(self._device), self._group)
                self._split_by_rank(found, tensor).copy_(parts)
            placements: tuple[Placement, ...] = (Replicate(), *tensor.placements[1:])
            outside = self._find_whole_meshes(tensor)[0]
            return _view_as(found, outside, placements, list(tensor.shape))
        m = sizes[self.axis.rank]
        w = mine[:1].numel()
        found = mine.new_empty(m, *tensor.shape[1:])
        if filled:
            incoming = mine.new_empty(ranks, m, *mine.shape[1:])
            self._exchange(incoming, mine, [m * w] * ranks, [n * w for n in sizes])
            self._split_by_rank(found, tensor).copy_(incoming)
        placements = (*tensor.placements[1:], Shard(0))
        return _view_as(found, self._find_whole_meshes(tensor)[1], placements, list(tensor.shape))

    def _find_whole_meshes(self, tensor: DTensor) -> tuple[DeviceMesh, DeviceMesh]:
        """Return the meshes of `_find_meshes` for a tensor that `whole` returned."""
        return next(meshes for meshes in self._meshes.values() if meshes[0] is tensor.device_mesh)

    def _split_by_rank(self, rows: Tensor, tensor: Tensor) -> Tensor:
        """Return a view [ranks, …] of whole `rows` of `tensor`, with the part of each rank."""
        assert isinstance(tensor, DTensor)
        dim = tensor.placements[0].dim  # type: ignore[attr-defined]
        ranks = self.axis.size
        size = (*rows.shape[:dim], ranks, rows.shape[dim] // ranks, *rows.shape[dim + 1 :])
        return rows.view(size).movedim(dim, 0)

    def _count_rows(self, tensor: Tensor) -> list[int]:
        """Return the number of whole rows that each rank of the axis gets in the exchange."""
        rows = len(_to_local(tensor))
        ranks = self.axis.size
        most = -(-rows // ranks)
        return [min(most, max(0, rows - rank * most)) for rank in range(ranks)]

    def _exchange(
        self, incoming: Tensor, outgoing: Tensor, sizes: list[int], sent: list[int]
    ) -> None:
        # Tensors in the host's memory pass through the device's, one at a time.
        there = incoming.to(self._device)
        sending = outgoing.reshape(-1).to(self._device)
        dist.all_to_all_single(there.view(-1), sending, sizes, sent, group=self._group)
        if there is not incoming:
            incoming.copy_(there)


def _is_cut_by_columns(tensor: Tensor) -> bool:
    """Return whether ranks that share layers have parts of the same rows of a result of `whole`."""
    if not isinstance(tensor, DTensor):
        return False
    first = tensor.placements[0]
    return isinstance(first, Shard) and first.dim > 0


def _cut_twice(tensor: Tensor) -> bool:
    """Return whether rows are already divided over two axes, like the rows of divided experts."""
    assert isinstance(tensor, DTensor)
    return any(isinstance(placement, _StridedShard) for placement in tensor.placements)


def _to_local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()


def _view_as(
    local: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...], size: list[int]
) -> DTensor:
    stride = torch.empty(size, device="meta").stride()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(size), stride=stride
    )
