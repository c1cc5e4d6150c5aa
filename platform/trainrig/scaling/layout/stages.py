"""A pipeline: which device holds which stages, and what waits meanwhile.

Stages go round the devices: device p of P has the stages p, p + P, … GPipe (Huang et al. 2019,
arXiv:1811.06965) goes forward with all micro-batches of a step, then backward; 1F1B (Narayanan et
al. 2021, arXiv:2104.04473, section 2.2.1) begins to go backward as soon as it can; interleaved
(section 2.2.2) has several stages a device. A device waits for (P - 1) / chunks of its own
micro-batches in each of the three.
"""

import math
from typing import TypeVar

from trainrig.scaling.layout.layouts import DeviceLayout

Device = TypeVar("Device")


def count_in_flight(device: int, layout: DeviceLayout, turns: int) -> float:
    """Micro-batches whose activations `device` of the pipeline keeps at once, of all its layers."""
    pipeline, chunks = layout.degrees.pipeline, layout.chunks
    if layout.schedule is None:
        return 1.0
    if layout.schedule == "GPipe":
        return float(turns)
    if layout.schedule == "1F1B":
        return float(min(turns, pipeline - device))
    # Stages that it goes forward through before it first goes backward, and the one it is at.
    warming = 2 * (pipeline - device - 1) + (chunks - 1) * pipeline + 1
    return min(turns * chunks, warming) / chunks


def count_waiting(layout: DeviceLayout) -> float:
    """Micro-batches' time that a device waits in a step."""
    return (layout.degrees.pipeline - 1) / layout.chunks


def compute_bubble(layout: DeviceLayout, turns: int) -> float:
    """The share of a step's computing that a device waits beside it."""
    return count_waiting(layout) / turns if turns else math.inf


def select_largest(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Those of a pipeline that may need the most memory: the first keep the most micro-batches, the
    last has the logits, and one of either may have a layer less than the one beside it."""
    return devices if len(devices) <= 4 else devices[:2] + devices[-2:]
