"""Properties of the current device that attention kernels depend on."""

import functools

import torch

from trainrig.hardware import is_triton_installed
from trainrig.models.kernels.choice import CPU_CARD, Card


@functools.cache
def read_card(device: torch.device) -> Card:
    """Return the properties of `device` that attention kernels depend on."""
    if device.type != "cuda":
        return CPU_CARD
    capability = torch.cuda.get_device_capability(device)
    return Card(capability, find_shared_memory(device), is_triton_installed())


@functools.cache
def find_shared_memory(device: torch.device) -> int:
    """Return the most bytes of shared memory for a thread block on the GPU `device`."""
    properties = torch.cuda.get_device_properties(device)
    # A device without an opt-in limit reports only the usual limit.
    return int(
        getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    )
