"""Check whether a device has the memory that a step needs."""

from trainrig.estimate.memory import RESERVE
from trainrig.hardware import Hardware
from trainrig.parallel.recompute import Full
from trainrig.train.run_file.training_settings import Training

GIB = 2**30


def describe_memory_shortage(
    offers: Hardware, device: str, needed: float, training: Training
) -> dict[str, str]:
    """Return a warning if an accelerator `device` has less than `needed` bytes, or {}.

    The warning lists the settings of `training` that could reduce the need. CPUs never give one,
    because their memory is divided by the machine.
    """
    there = offers.devices[device]
    room = there.memory * (1 - RESERVE)
    if not there.accelerator or needed <= room:
        return {}
    offload = training.offload
    again = training.recompute
    sliced = training.parallel.kind != "DDP"
    less = (
        (sliced and training.parallel.reshard != "layer", "parallel.reshard = 'layer'"),
        (not isinstance(again, Full) or again.every > 1, "recompute.kind = 'Full'"),
        (not offload.optimizer, "offload.optimizer"),
        (not offload.activations and again is None, "offload.activations"),
    )
    ways = [*(name for helps, name in less if helps), "a smaller micro_batch", "more workers"]
    return {
        "too_little_memory": f"this run needs {needed / GIB:.1f} GiB, but {device} has "
        f"{there.memory / GIB:.1f} GiB, of which {RESERVE:.0%} stay free; try "
        f"{', '.join(ways[:-1])} or {ways[-1]}"
    }
