"""Pipeline schedules: activations that a device keeps, and the time that it waits for others.

Stages are assigned to devices in turn: device p of P has the stages p, p + P, … GPipe (Huang et al.
2019, arXiv:1811.06965) runs the forward passes of all micro-batches of a step, then the backward
passes. 1F1B (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1) starts the backward passes as
early as possible. The interleaved schedule (section 2.2.2) has several stages on each device. In
all three schedules a device is idle for the time of (P - 1) / chunks of its micro-batches.
"""

import math
from typing import TypeVar

from trainrig.scaling.layout.layouts import DeviceLayout

Device = TypeVar("Device")


def count_in_flight(device: int, layout: DeviceLayout, micro_batches: int) -> float:
    """Return the number of micro-batches whose activations one device keeps at the same time.

    The number counts all layers of the device, so that it is a fraction where the device has
    several stages. `device` is its index in the pipeline, and `micro_batches` the number of
    micro-batches of a replica in a step.
    """
    pipeline = layout.degrees.pipeline
    chunks = layout.chunks
    if layout.schedule is None:
        return 1.0
    if layout.schedule == "GPipe":
        return float(micro_batches)
    if layout.schedule == "1F1B":
        return float(min(micro_batches, pipeline - device))
    # The stages that the device runs forward before its first backward pass, and the current one.
    warm_up = 2 * (pipeline - device - 1) + (chunks - 1) * pipeline + 1
    return min(micro_batches * chunks, warm_up) / chunks


def count_waiting(layout: DeviceLayout) -> float:
    """Return the time that a device is idle in a step, in micro-batches of that device."""
    return (layout.degrees.pipeline - 1) / layout.chunks


def compute_bubble(layout: DeviceLayout, micro_batches: int) -> float:
    """Return the ratio of a device's idle time in a step to its computing time.

    The ratio is infinite where a step has no micro-batches.
    """
    return count_waiting(layout) / micro_batches if micro_batches else math.inf


def select_largest(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices of a pipeline that may need the most memory.

    The first devices keep the most micro-batches and the last one holds the logits. The neighbour
    of either may have one layer more, so that the first two and the last two are returned.
    """
    return devices if len(devices) <= 4 else devices[:2] + devices[-2:]
