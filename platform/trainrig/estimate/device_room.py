"""Whether a device has the memory that a step takes."""

from trainrig.estimate.memory import RESERVE
from trainrig.hardware import Hardware

GIB = 2**30


def describe_room(offers: Hardware, device: str, needed: float) -> dict[str, str]:
    """What is said of a step of `needed` bytes that an accelerator `device` does not hold, with
    what would help; {} where it fits, and of CPUs, whose memory is the machine's to divide."""
    there = offers.devices[device]
    room = there.memory * (1 - RESERVE)
    if not there.accelerator or needed <= room:
        return {}
    return {
        "too_little_memory": f"{device} has {there.memory / GIB:.1f} GiB, {RESERVE:.0%} of it kept "
        f"free, and a step takes {needed / GIB:.1f}; parallel.reshard = 'layer', "
        "recompute.kind = 'Full', offload.optimizer, a smaller micro_batch or more workers "
        "make it less"
    }
