"""What the device at hand can do for kernels of attention."""

import functools

import torch

from trainrig.hardware import has_triton
from trainrig.models.kernels.choice import CPU_CARD, Card


@functools.cache
def read_card(device: torch.device) -> Card:
    """Return what kernels of attention ask of `device`."""
    if device.type != "cuda":
        return CPU_CARD
    capability = torch.cuda.get_device_capability(device)
    return Card(capability, find_shared_memory(device), has_triton())


@functools.cache
def find_shared_memory(device: torch.device) -> int:
    """Return the most bytes of shared memory that a block of threads may have on the GPU
    `device`."""
    properties = torch.cuda.get_device_properties(device)
    # A device that lends no more than usual says only that.
    return int(
        getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    )
