"""Which slice of a tensor a rank holds, on a mesh of any axes."""

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local_slice(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """What of `tensor` this rank holds, not a copy, and where in the whole that begins, by
    dimension. Along an axis of size 1 nothing is cut."""
    if not isinstance(tensor, DTensor):
        return tensor.detach(), (0,) * tensor.ndim
    local = tensor.to_local().detach()
    size, first = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert local.shape == size, f"{tuple(local.shape)}: not the {tuple(size)} expected"
    return local, tuple(first)
