"""Fully sharded data parallelism (FSDP2): each rank keeps a slice of every parameter.

ZeRO stage 3 (Rajbhandari et al. 2020, arXiv:1910.02054), by torch's `fully_shard`.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def shard(model: nn.Module, layers: nn.ModuleList, mesh: DeviceMesh) -> FSDPModule:
    """Shard `model` in place: each of `layers` gathers by itself, the rest together.

    Gradients are *summed* over ranks: the loss of a micro-batch is already divided by the global
    batch's number of targets, so a mean over ranks would depend on how many there are.
    """
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    root = fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
    return root
