"""Search for the fastest layouts of a run, and for the fastest that its trainer supports."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainrig.errors import ConfigError
from trainrig.estimate.fitting_layouts import MOST_DEVICES, RECOMPUTED, BatchShape
from trainrig.estimate.layout import layouts
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout
from trainrig.estimate.layout.step_prediction import Predictor, StepPrediction
from trainrig.estimate.run_cost import Assumptions, Cost, estimate_cost
from trainrig.estimate.step_memory import RESERVE
from trainrig.hardware import Hardware
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.parallel.activation_budget import GIB
from trainrig.parallel.axes.axis_settings import TensorSplit
from trainrig.parallel.layout import FSDP
from trainrig.train.run_file.training_settings import Training

SHOWN = 10
NEXT_TOKEN = CausalLM()


@dataclass(frozen=True)
class Subject:
    """A run whose layout is planned."""

    name: str  # path of its run file
    model: DecoderConfig
    training: Training
    batch: BatchShape
    predicted: float = 1.0  # share of tokens for which logits are computed
    objective: ObjectiveSettings = NEXT_TOKEN


@dataclass(frozen=True)
class FixedDegrees:
    """Degrees that the user fixed; None leaves a degree to the search."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """The fixed degrees, keyed by axis."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def allows(self, degrees: Degrees) -> bool:
        """Return whether `degrees` have the fixed values."""
        return all(getattr(degrees, name) == value for name, value in self.given.items())


@dataclass(frozen=True)
class Found:
    """A layout with its prediction, and what the run lacks to be trained in that layout."""

    prediction: StepPrediction
    # features that are missing; empty if the trainer supports the layout for this run
    needs: tuple[str, ...]
    # seconds that a step loses because tensor groups span machines; None if they do not
    spans: float | None


@dataclass(frozen=True)
class LayoutPlan:
    """Result of a layout search."""

    subject: Subject
    cluster: Cluster
    # the fastest layout for each choice of degrees; at most ten, the fastest first
    best: tuple[Found, ...]
    runnable: Found | None  # the fastest layout that the trainer supports for this run
    legal: int
    fitting: int
    cost: Cost  # cost of the whole run in the best layout
    warnings: tuple[str, ...]


def search(subject: Subject, cluster: Cluster, fixed: FixedDegrees, offers: Hardware) -> LayoutPlan:
    """Return the fastest layouts of `subject` on `cluster`, the fastest first.

    Raises ConfigError if no layout is legal or none fits in memory; the message names a number of
    devices that works.
    """
    predictor = Predictor(
        subject.model, subject.training, subject.batch, cluster, subject.predicted
    )
    _check_fixed(subject, cluster.devices, fixed)
    room = cluster.device.memory
    fastest: dict[Degrees, StepPrediction] = {}
    runnable: StepPrediction | None = None
    nearest: StepPrediction | None = None
    legal = fitting = 0
    for layout in _iterate_allowed_layouts(subject, cluster.devices, fixed):
        legal += 1
        found = predictor.predict(layout)
        if nearest is None or found.memory.total < nearest.memory.total:
            nearest = found
        if not found.memory.fits(room):
            continue
        fitting += 1
        best = fastest.get(layout.degrees)
        if best is None or _rank(found) < _rank(best):
            fastest[layout.degrees] = found
        if not list_needs(layout, predictor, subject.objective) and (
            runnable is None or _rank(found) < _rank(runnable)
        ):
            runnable = found
    if nearest is None:
        raise ConfigError(_explain_none_legal(subject, cluster, fixed))
    if not fastest:
        raise ConfigError(_explain_none_fits(subject, cluster, fixed, nearest))
    best_ones = heapq.nsmallest(SHOWN, fastest.values(), key=_rank)
    shown = tuple(
        _weigh_prediction(prediction, predictor, subject.objective) for prediction in best_ones
    )
    return LayoutPlan(
        subject=subject,
        cluster=cluster,
        best=shown,
        runnable=_weigh_prediction(runnable, predictor, subject.objective) if runnable else None,
        legal=legal,
        fitting=fitting,
        cost=_estimate_cost(best_ones[0], subject, cluster, offers),
        warnings=tuple(_find_warnings(shown, runnable, subject)),
    )


def list_needs(
    layout: DeviceLayout, predictor: Predictor, objective: ObjectiveSettings = NEXT_TOKEN
) -> tuple[str, ...]:
    """Return what the trainer or the run lacks for `layout`, as short phrases for a table.

    The phrases name axes that `training.parallel` has no key for, axes that cannot be combined with
    each other, with other settings or with `objective`, and `deterministic = false` where the run
    asks for bit-exact results that the layout cannot give.
    """
    degrees = layout.degrees
    axes = [
        name for name in ("tensor", "pipeline", "context", "expert") if getattr(degrees, name) > 1
    ]
    lacking = [axis for axis in axes if axis not in FSDP.model_fields]
    lacking += [
        f"{axis} for {objective.kind}" for axis in axes if axis not in {*lacking, *objective.axes}
    ]
    if degrees.tensor > 1 and _lacks_tensor_axis(degrees.tensor, predictor):
        lacking.append("tensor for this kind of model or training")
    if degrees.context > 1 and isinstance(predictor.model.feedforward, MixtureOfExperts):
        lacking.append("context with experts")
    if degrees.expert > 1 and layout.recompute == "selective":
        lacking.append("expert with selective recomputation")
    if degrees.expert > 1 and not predictor.training.optimizer.elementwise:
        lacking.append(f"expert with {predictor.training.optimizer.kind}")
    if degrees.tensor * degrees.context * degrees.expert > 1 and predictor.training.compile:
        lacking.append("compiled layers that communicate")
    recomputation = RECOMPUTED[layout.recompute]
    sequence_parallel = degrees.tensor > 1 and layout.sequence_parallel
    try:
        predictor.training.offload.check_beside(recomputation, sequence_parallel)
    except ValueError:
        lacking.append("offloaded activations without full recomputation")
    if degrees.tensor > 1 and predictor.training.fuse_projections:
        lacking.append("tensor with fused projections")
    if predictor.training.deterministic and not predictor.build_training(layout).deterministic:
        lacking.append("deterministic = false")
    return tuple(lacking)


def _lacks_tensor_axis(ranks: int, predictor: Predictor) -> bool:
    """Return whether the model, its dtype or its optimizers have no tensor-parallel version."""
    training = predictor.training
    split = TensorSplit(ranks=ranks)
    own = [group.optimizer for group in training.groups if group.optimizer]
    try:
        split.check_model(predictor.model)
        split.check_training(training.precision.compute, [training.optimizer, *own])
    except ValueError:
        return True
    return False


def _iterate_allowed_layouts(
    subject: Subject, devices: int, fixed: FixedDegrees
) -> Iterator[DeviceLayout]:
    for layout in layouts.iterate_legal_layouts(subject.model, subject.batch, devices):
        if fixed.allows(layout.degrees):
            yield layout


def _rank(found: StepPrediction) -> tuple[float, float]:
    return found.seconds.total, found.memory.total


def _weigh_prediction(
    prediction: StepPrediction, predictor: Predictor, objective: ObjectiveSettings
) -> Found:
    return Found(
        prediction,
        list_needs(prediction.layout, predictor, objective),
        _estimate_spanning_seconds(prediction, predictor),
    )


def _estimate_spanning_seconds(prediction: StepPrediction, predictor: Predictor) -> float | None:
    """Return the seconds that a step loses to tensor groups that span machines.

    Returns None if no tensor group spans machines.
    """
    cluster = predictor.cluster
    layout = prediction.layout
    if cluster.group(layout.degrees, ["tensor"]).machines == 1:
        return None
    whole = replace(cluster, devices_per_machine=cluster.devices, across=None)
    inside = Predictor(
        predictor.model, predictor.training, predictor.batch, whole, predictor.predicted
    ).predict(layout)
    micro_batches = layout.count_micro_batches(predictor.batch.global_batch)
    share = 1 + (layout.degrees.pipeline - 1) / layout.chunks / micro_batches
    return (prediction.seconds.tensor - inside.seconds.tensor) * share


def _check_fixed(subject: Subject, devices: int, fixed: FixedDegrees) -> None:
    """Raise ConfigError if the fixed degrees do not suit the model, batch or device count."""
    asked = Degrees(1, 1, **fixed.given)
    reason = layouts.explain_refusal(subject.model, subject.batch, asked)
    if reason is not None:
        raise ConfigError(f"plan: {subject.name}: {reason}")
    if devices % asked.replica_devices:
        several = asked.replica_devices * max(1, devices // asked.replica_devices)
        raise ConfigError(
            f"plan: {subject.name}: a replica takes {asked.replica_devices} devices "
            f"({_format_fixed(fixed)}), and {devices} is not a multiple of that; use {several}"
        )


def _format_fixed(fixed: FixedDegrees) -> str:
    return " x ".join(f"{name} {value}" for name, value in fixed.given.items())


def _explain_none_legal(subject: Subject, cluster: Cluster, fixed: FixedDegrees) -> str:
    devices = cluster.devices
    fewer = [devices // 2**n for n in range(1, devices.bit_length())]
    more = [devices * 2**n for n in range(1, 5)]
    near = [
        next(
            (
                n
                for n in counts
                if next(_iterate_allowed_layouts(subject, n, fixed), None) is not None
            ),
            None,
        )
        for counts in (fewer, more)
    ]
    would = " or ".join(f"{n:,}" for n in near if n is not None) or "no number near it"
    return (
        f"plan: {subject.name}: no layout divides {subject.batch.global_batch:,} sequences of "
        f"{subject.batch.sequence_length:,} tokens and the model over {devices:,} devices; {would} "
        "would work"
    )


def _explain_none_fits(
    subject: Subject, cluster: Cluster, fixed: FixedDegrees, nearest: StepPrediction
) -> str:
    room = cluster.device.memory * (1 - RESERVE) / GIB
    enough = _find_enough_devices(subject, cluster, fixed)
    would = (
        f"{enough:,} devices are enough"
        if enough
        else f"up to {MOST_DEVICES:,} devices are not enough either; shorten "
        "batches.sequence_length, or choose a device with more memory"
    )
    return (
        f"plan: {subject.name}: no layout fits {cluster.devices:,} {cluster.name}: a device needs "
        f"{nearest.memory.total / GIB:,.1f} GiB at least and has {room:,.1f}; {would}"
    )


def _find_enough_devices(subject: Subject, cluster: Cluster, fixed: FixedDegrees) -> int | None:
    """Return the least number of devices that holds a step, or None if MOST_DEVICES do not.

    The number is doubled up to one machine, and above that rounded to whole machines.
    """
    devices = cluster.devices
    while devices < MOST_DEVICES:
        whole = (
            2 * devices if devices >= cluster.devices_per_machine else cluster.devices_per_machine
        )
        devices = min(2 * devices, whole)
        across = cluster.across or cluster.inside
        larger = replace(cluster, devices=devices, across=across)
        predictor = Predictor(subject.model, subject.training, subject.batch, larger)
        for layout in _iterate_allowed_layouts(subject, devices, fixed):
            smallest = layout.recompute == "full"  # full recomputation needs the least memory
            if smallest and predictor.predict(layout).memory.fits(cluster.device.memory):
                return devices
    return None


def _estimate_cost(
    best: StepPrediction, subject: Subject, cluster: Cluster, offers: Hardware
) -> Cost:
    """Return the cost of all steps of the run at the pace of `best`."""
    return estimate_cost(
        best.flops * subject.training.steps,
        offers,
        cluster.name,
        cluster.devices,
        subject.training.precision.peak,
        Assumptions(utilisation=best.mfu),
        cluster.instance,
    )


def _find_warnings(
    shown: tuple[Found, ...], runnable: StepPrediction | None, subject: Subject
) -> Iterator[str]:
    best = shown[0]
    if best.spans is not None:
        yield (
            f"The best layout has tensor groups across machines, which cost {best.spans:.3g} s of "
            f"each step of {best.prediction.seconds.total:.3g} s."
        )
    if best.needs and runnable is not None:
        slower = runnable.seconds.total / best.prediction.seconds.total
        yield (
            f"The best layout needs {', '.join(best.needs)}, which the trainer does not support "
            f"for this run. The best supported layout takes {slower:.2f} times as long per step."
        )
    if runnable is None:
        yield (
            "The trainer supports none of the layouts that fit: each of them needs an axis "
            "without a key in training.parallel, or deterministic = false."
        )
    if subject.training.deterministic and runnable is not None:
        data = runnable.layout.degrees.data
        if data > subject.training.virtual_workers:
            yield (
                f"training.virtual_workers rises from {subject.training.virtual_workers} to "
                f"{data}. This makes it a new run, whose results differ in their last bits."
            )
