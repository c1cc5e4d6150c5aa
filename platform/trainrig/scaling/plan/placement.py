"""Placement of a planned model on devices: their kind, their number and the layout."""

import math
from dataclasses import dataclass

from trainrig.errors import ConfigError
from trainrig.estimate import layouts
from trainrig.estimate.cost import compute_affordable_flops
from trainrig.estimate.layouts import BatchShape
from trainrig.estimate.memory import count_slices
from trainrig.hardware import Hardware
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.parallel.precision import Precision
from trainrig.scaling.plan.plan import MemoryRow, Placement
from trainrig.scaling.plan.plan_request import PlanRequest
from trainrig.train.run_file.training_settings import Training

USUAL_DEVICE = "h100"
# Most days that a run should take, if the plan chooses the number of devices.
MOST_DAYS = 30.0


@dataclass(frozen=True)
class PlanHardware:
    """Kind of device and machine that a run is planned for."""

    hardware: Hardware
    device: str
    instance: str | None


def choose_hardware(request: PlanRequest, hardware: Hardware) -> PlanHardware:
    """Return the device and instance that `request` names, or the usual ones.

    Raises ConfigError if the request names an instance that has other devices.
    """
    if request.instance is None:
        usual = USUAL_DEVICE if USUAL_DEVICE in hardware.devices else next(iter(hardware.devices))
        device = request.device or usual
        hardware.find_device(device)
        return PlanHardware(hardware, device, hardware.find_cheapest(device))
    offer = hardware.find_instance(request.instance)
    if request.device not in (None, offer.device):
        raise ConfigError(
            f"--instance {request.instance} has devices '{offer.device}', not "
            f"'{request.device}'; leave out one of the two"
        )
    return PlanHardware(hardware, offer.device, request.instance)


@dataclass(frozen=True)
class PlacedModel:
    """Model placed on devices, with its layout and micro-batch."""

    devices: int
    sliced: int  # number of parts into which each replica's weights are sliced
    micro_batch: int
    placement: Placement


def place_model(
    model: DecoderConfig, request: PlanRequest, where: PlanHardware, batch: BatchShape, flops: float
) -> PlacedModel:
    """Choose a layout of `model`, and the number of devices if the request leaves it open.

    An open number is that of a whole machine, or more if the model needs more to fit or to finish
    within MOST_DAYS. `flops` is the number of operations of the whole run. If nothing fits, the
    layout is the one that needs the least memory. Raises ConfigError if there are more devices than
    sequences in a global batch.
    """
    room = where.hardware.find_device(where.device).memory
    offer = where.hardware.find_instance(where.instance) if where.instance else None
    per_machine = offer.devices if offer else 1
    precision = Precision(compute=request.compute)
    base = Training(steps=1, optimizer=request.optimizer, precision=precision)
    needed = layouts.count_devices_needed(model, base, batch, per_machine, room)
    devices = request.devices or min(
        batch.global_batch,
        max(per_machine, needed or 1, _count_devices_for_time(request, where, flops)),
    )
    if devices > batch.global_batch:
        raise ConfigError(
            f"{devices} devices cannot share a global batch of {batch.global_batch} sequences; use "
            f"{batch.global_batch} devices or fewer, or lower --sequence-length"
        )
    machines = math.ceil(devices / per_machine)
    found = layouts.find_fitting(model, base, batch, devices, machines, room)
    nearest = found or layouts.find_least_memory(model, base, batch, devices, machines)
    rows = layouts.build_memory_table(model, base, batch, nearest.micro_batch, devices)
    return PlacedModel(
        devices=devices,
        sliced=count_slices(nearest.training, devices),
        micro_batch=nearest.micro_batch,
        placement=Placement(
            fits=found is not None,
            parallel=nearest.training.parallel,
            deterministic=nearest.training.deterministic,
            recompute=nearest.training.recompute,
            room=room,
            memory=nearest.memory.total,
            devices_needed=None if found else needed,
            table=tuple(
                MemoryRow(
                    layout=row.layout,
                    offered=row.offered,
                    bytes_by_recompute=row.bytes_by_recompute,
                )
                for row in rows
            ),
        ),
    )


def _count_devices_for_time(request: PlanRequest, where: PlanHardware, flops: float) -> int:
    """Return the least power of two of devices that finishes the run within MOST_DAYS."""
    share = request.assumptions.utilisation
    daily_flops = compute_affordable_flops(
        1.0, where.hardware, where.device, request.compute, share
    )
    return int(2 ** max(0, math.ceil(math.log2(flops / daily_flops / MOST_DAYS))))
