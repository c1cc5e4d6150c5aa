"""Model of a plan, and its placement on devices: their kind, their number and the layout.

The model has the size that the law counts and the kind that its objective needs.
"""

import math
from dataclasses import dataclass

from trainrig.errors import ConfigError
from trainrig.estimate import fitting_layouts
from trainrig.estimate.activation_bytes import RowMasks
from trainrig.estimate.cost_estimate import USUAL_SHARE, compute_affordable_flops
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout import run_placement
from trainrig.estimate.layout.cluster_choice import build_rented_cluster
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.run_subject import Subject
from trainrig.hardware import Hardware
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.objectives.denoising import row_shapes
from trainrig.objectives.objective_settings import ObjectiveSettings, find_parts
from trainrig.parallel.precision import Precision
from trainrig.scaling import model_ladder
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_formats import parse_objective
from trainrig.scaling.plan.plan_schema import Placement, PlanRequest
from trainrig.train.run_file.training_settings import Training


def plan_model(
    law: Law, parameters: float, vocabulary: int, length: int
) -> model_ladder.LadderModel:
    """Return the model closest to `parameters`, as `law` counts them.

    Its positions suffice for the rows that the objective makes of `length` tokens of text. Raises
    ConfigError if there is no such model.
    """
    objective = parse_objective(law.objective)
    positions = row_shapes.compute_widest_row(objective, length)
    kind = row_shapes.find_model_kind(objective)
    if kind == "Decoder":
        ladder_model = model_ladder.find_ladder_model_by_count(
            parameters, law.parameters_count, vocabulary, positions
        )
        return model_ladder.with_further_heads(ladder_model, objective.further_heads)
    if law.parameters_count == "total":
        raise ConfigError(
            f"plan: the law of {objective.kind} counts embeddings among the parameters, and "
            f"sizes of {kind} models leave them out; fit the law with --counts non-embedding"
        )
    return model_ladder.find_ladder_model_of(kind, parameters, vocabulary, positions)


def count_parameters_for_law(law: Law, found: model_ladder.LadderModel) -> float:
    """Return the number of parameters of `found`, counted as `law` counts them."""
    return float(found.total if law.parameters_count == "total" else found.parameters)


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
            f"instance {request.instance} has devices '{offer.device}', not "
            f"'{request.device}'; leave out one of the two"
        )
    return PlanHardware(hardware, offer.device, request.instance)


@dataclass(frozen=True)
class PlacedModel:
    """Model placed on devices, with its layout and micro-batch."""

    devices: int
    sliced: int  # number of parts into which each replica's weights are sliced
    micro_batch: int
    seconds: float | None  # seconds of the whole run; None: they cannot be predicted
    placement: Placement


def place_model(
    model: DecoderConfig,
    objective: ObjectiveSettings,
    request: PlanRequest,
    where: PlanHardware,
    batch: BatchShape,
    flops: float,
    steps: int,
) -> PlacedModel:
    """Choose a layout of `model`, and the number of devices if the request leaves it open.

    An open number is that of a whole machine, or more if the model needs more to fit or to finish
    within MOST_DAYS. `flops` is the number of operations of the whole run of `steps`. If nothing
    fits, the layout is the one that needs the least memory. Raises ConfigError if there are more
    devices than sequences in a global batch.
    """
    device = where.hardware.find_device(where.device)
    offer = where.hardware.find_instance(where.instance) if where.instance else None
    per_machine = offer.devices if offer else 1
    subject = _build_subject(model, objective, request, batch, steps, not device.accelerator)

    def make_cluster(devices: int) -> Cluster:
        return build_rented_cluster(where.device, where.hardware, devices, where.instance)

    needed: int | None = None
    if request.devices is None:
        needed = run_placement.count_devices_needed(subject, make_cluster)
    devices = request.devices or min(
        batch.global_batch,
        max(per_machine, needed or 1, _count_devices_for_time(request, where, flops)),
    )
    if devices > batch.global_batch:
        raise ConfigError(
            f"{devices} devices cannot share a global batch of {batch.global_batch} sequences; use "
            f"{batch.global_batch} devices or fewer, or lower `sequence_length`"
        )
    placed = run_placement.place_run(subject, make_cluster(devices))
    if placed is None:
        raise ConfigError(
            f"{devices} devices cannot share {batch.global_batch} sequences of "
            f"{batch.sequence_length} tokens; use a power of two"
        )
    if not placed.fits and request.devices is not None:
        needed = run_placement.count_devices_needed(subject, make_cluster)
    micro_batch = placed.prediction.layout.micro_batch * placed.prediction.layout.degrees.expert
    return PlacedModel(
        devices=devices,
        sliced=placed.prediction.layout.degrees.shard,
        micro_batch=micro_batch,
        seconds=placed.seconds,
        placement=Placement(
            fits=placed.fits,
            parallel=placed.parallel,
            deterministic=placed.training.deterministic,
            recompute=placed.training.recompute,
            room=device.memory,
            memory=placed.prediction.memory.total,
            devices_needed=None if placed.fits else needed,
            table=fitting_layouts.build_memory_table(
                model, placed.training, batch, micro_batch, devices
            ),
        ),
    )


def _build_subject(
    model: DecoderConfig,
    objective: ObjectiveSettings,
    request: PlanRequest,
    batch: BatchShape,
    steps: int,
    on_cpu: bool,
) -> Subject:
    """Return the run that the plan describes, as `trainrig check` reads its run file."""
    training = Training(
        steps=steps, optimizer=request.optimizer, precision=Precision(compute=request.compute)
    )
    rate = sum(share * part.mean_rate(steps) for share, part in find_parts(objective))
    masks = RowMasks.of(objective, by_document=False, on_cpu=on_cpu)
    return Subject("plan", model, training, batch, rate, objective, masks)


def _count_devices_for_time(request: PlanRequest, where: PlanHardware, flops: float) -> int:
    """Return the least power of two of devices that finishes the run within MOST_DAYS."""
    share = request.assumptions.utilisation or USUAL_SHARE
    daily_flops = compute_affordable_flops(
        1.0, where.hardware, where.device, request.compute, share
    )
    return int(2 ** max(0, math.ceil(math.log2(flops / daily_flops / MOST_DAYS))))
