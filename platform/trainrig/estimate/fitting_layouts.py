"""Search for a parallel layout whose step fits the memory of a device."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainrig.estimate.activation_bytes import MASTER
from trainrig.estimate.step_memory import Memory, estimate_step_memory
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.optim.named_groups import count_state_bytes, count_trained
from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.parallel.recompute import Full, Recompute, Selective
from trainrig.train.run_file.training_settings import Training

# Tokens of a micro-batch beyond which larger products are no faster.
ENOUGH_TOKENS = 16_384
MOST_DEVICES = 65_536
RecomputeChoice = Literal["nothing", "selective", "full"]
RECOMPUTED: dict[RecomputeChoice, Recompute | None] = {
    "nothing": None,
    "selective": Selective(),
    "full": Full(),
}


@dataclass(frozen=True)
class BatchShape:
    """Numbers of sequences and tokens of a step."""

    global_batch: int
    sequence_length: int


@dataclass(frozen=True)
class Fitting:
    """A way to train: settings of a run file, and the memory of a step."""

    training: Training
    micro_batch: int
    memory: Memory


def find_fitting(
    model: DecoderConfig,
    training: Training,
    batch: BatchShape,
    devices: int,
    machines: int,
    room: float,
) -> Fitting | None:
    """Return the first layout whose step fits `room` bytes of a device, or None if none does.

    Tried in this order: deterministic FSDP that keeps all activations, then with recomputation;
    then deterministic FSDP that reduces gradients after each micro-batch; then layouts whose bits
    depend on the number of workers and which need less memory: whole models on each machine, FSDP
    over all devices, FSDP that frees each layer after use, and the same with gradients reduced
    after each micro-batch. In each, the largest micro-batch that fits is taken.
    """
    for way in _iterate_ways(training, devices, machines):
        for micro_batch in _iterate_micro_batches(batch, devices):
            memory = estimate_step_memory(
                model, way, devices, batch.global_batch, micro_batch, batch.sequence_length
            )
            if memory.fits(room):
                return Fitting(way, micro_batch, memory)
    return None


def find_least_memory(
    model: DecoderConfig, training: Training, batch: BatchShape, devices: int, machines: int
) -> Fitting:
    """Return the layout that needs the least memory, whether it fits or not."""
    found = []
    for way in _iterate_ways(training, devices, machines):
        memory = estimate_step_memory(
            model, way, devices, batch.global_batch, 1, batch.sequence_length
        )
        found.append(Fitting(way, 1, memory))
    return min(found, key=lambda fitting: fitting.memory.total)


def count_devices_needed(
    model: DecoderConfig, training: Training, batch: BatchShape, per_machine: int, room: float
) -> int | None:
    """Return the fewest devices, a power of two, for which some layout fits.

    None if not even one sequence for each device fits, however many devices there are.
    """
    devices = 1
    while devices <= min(MOST_DEVICES, batch.global_batch):
        machines = math.ceil(devices / per_machine)
        if find_fitting(model, training, batch, devices, machines, room):
            return devices
        devices *= 2
    return None


def _iterate_ways(training: Training, devices: int, machines: int) -> Iterator[Training]:
    same_bits = {"deterministic": True, "virtual_workers": devices, "parallel": FSDP()}
    yield from _vary_recompute(training, same_bits)
    by_layer = FSDP(reshard="layer", reduce="micro_batch")
    if devices > 1:
        yield from _vary_recompute(training, same_bits | {"parallel": by_layer})
    layouts: list[FSDP | HSDP] = [FSDP(), FSDP(reshard="layer")]
    if devices > 1:
        layouts.append(by_layer)
    if machines > 1 and devices % machines == 0:
        layouts.insert(0, HSDP(replicas=machines))
    for layout in layouts:
        yield from _vary_recompute(training, {"deterministic": False, "parallel": layout})


def _vary_recompute(training: Training, changes: dict[str, object]) -> Iterator[Training]:
    for again in RECOMPUTED.values():
        yield training.model_copy(update={**changes, "recompute": again})


def _iterate_micro_batches(batch: BatchShape, devices: int) -> Iterator[int]:
    """Yield the micro-batch sizes to try, largest first.

    They are the powers of two that divide the global batch and give each device a micro-batch.
    """
    most = min(batch.global_batch // devices, max(1, ENOUGH_TOKENS // batch.sequence_length))
    size = 2 ** int(math.log2(max(1, most)))
    while size >= 1:
        if batch.global_batch % size == 0:
            yield size
        size //= 2


@dataclass(frozen=True)
class LayoutMemory:
    """Memory of one way to shard a model, by kind of recomputation."""

    layout: str
    offered: bool  # run files can ask for this layout
    bytes_by_recompute: dict[str, float]


def build_memory_table(
    model: DecoderConfig, training: Training, batch: BatchShape, micro_batch: int, devices: int
) -> list[LayoutMemory]:
    """Return the bytes of a device by ZeRO stage and recomputation.

    Stages (Rajbhandari et al. 2020, arXiv:1910.02054) 1 and 2, which shard the optimizer state and
    then also gradients, are for comparison only; run files cannot ask for them.
    """
    offered = {
        "0 (DDP)": {"deterministic": False, "parallel": DDP()},
        "3 (FSDP, deterministic)": {
            "deterministic": True,
            "parallel": FSDP(),
            "virtual_workers": devices,
        },
        "3 (FSDP)": {"deterministic": False, "parallel": FSDP()},
        "3 (FSDP, by layer)": {"deterministic": False, "parallel": FSDP(reshard="layer")},
        "3 (FSDP, by layer and micro-batch)": {
            "deterministic": False,
            "parallel": FSDP(reshard="layer", reduce="micro_batch"),
        },
    }
    rows = {}
    for name, changes in offered.items():
        found: dict[str, float] = {}
        for again, settings in RECOMPUTED.items():
            way = training.model_copy(update={**changes, "recompute": settings})
            found[again] = estimate_step_memory(
                model, way, devices, batch.global_batch, micro_batch, batch.sequence_length
            ).total
        rows[name] = LayoutMemory(name, True, found)
    whole = rows.pop("0 (DDP)")
    shapes = parameter_shapes(model)
    elsewhere = 1 - 1 / devices
    kept = count_state_bytes(shapes, training.optimizer, training.groups) * elsewhere
    gradients = MASTER * count_trained(shapes, training.groups) * elsewhere
    saved = {"1": kept, "2": kept + gradients}
    compared = [
        LayoutMemory(stage, False, {k: v - less for k, v in whole.bytes_by_recompute.items()})
        for stage, less in saved.items()
    ]
    return [whole, *compared, *rows.values()]
