"""Search for the fastest layouts of a run, and for the fastest that its trainer supports."""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from trainrig.errors import ConfigError
from trainrig.estimate.cost_estimate import Assumptions, Cost, estimate_cost
from trainrig.estimate.fitting_layouts import MOST_DEVICES, RECOMPUTED, BatchShape
from trainrig.estimate.layout import layouts
from trainrig.estimate.layout.cluster_choice import is_timed
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout
from trainrig.estimate.layout.run_subject import (
    NEXT_TOKEN,
    FixedDegrees,
    RunStage,
    Subject,
    check_is_planned,
)
from trainrig.estimate.layout.step_prediction import Predictor, StepPrediction
from trainrig.estimate.step_memory import RESERVE
from trainrig.flops import count_position_flops
from trainrig.hardware import Hardware
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.parallel.activation_budget import GIB
from trainrig.parallel.axes.axis_settings import TensorSplit
from trainrig.parallel.layout import FSDP

SHOWN = 10
PLAIN = FixedDegrees(1, 1, 1, 1)  # each replica is one device
# Ways to recompute, in order of increasing memory savings.
SAVING = ("nothing", "selective", "full")


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
    own: Found | None  # the layout of the run file itself; None: it has none on these devices
    legal: int
    fitting: int
    cost: Cost  # cost of the whole run in the best layout
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class SearchedLayouts:
    """Best layouts of a run on a cluster, and counts of all legal ones."""

    fastest: Mapping[Degrees, StepPrediction]  # the fastest that fits, for each choice of degrees
    runnable: StepPrediction | None  # the fastest that fits and that the trainer supports
    nearest: StepPrediction | None  # the layout with the least memory; None: no layout is legal
    legal: int
    fitting: int


class RunPredictor:
    """Predictor of a whole run in a layout: memory over all stages, seconds of each."""

    def __init__(self, subject: Subject, cluster: Cluster, as_written: bool = False) -> None:
        """Prepare predictions, by an assumed share of the peak where times cannot be predicted.

        `as_written` is for the layout that the run file has: it keeps the run's virtual workers,
        which otherwise rise to the number of replicas.
        """
        self._as_written = as_written
        self.subject = subject
        self.cluster = cluster
        self.timed = is_timed(cluster) and not subject.lacking
        self._predictors: dict[BatchShape, Predictor] = {}
        self._flops = lru_cache(maxsize=None)(self._count_flops)  # the same in all layouts
        self.main = self._get(subject.batch)

    def _get(self, batch: BatchShape) -> Predictor:
        if batch not in self._predictors:
            subject = self.subject
            of_run = (subject.model, subject.training, batch, self.cluster)
            self._predictors[batch] = Predictor(
                *of_run, subject.predicted, subject.masks, self._as_written
            )
        return self._predictors[batch]

    def _predict_batch(self, batch: BatchShape, layout: DeviceLayout) -> StepPrediction:
        predictor = self._get(batch)
        if self.timed:
            return predictor.predict(layout)
        return predictor.assume(layout, self._flops(batch))

    def _count_flops(self, batch: BatchShape) -> float:
        """Return the operations of a step, the mean over the run."""
        subject = self.subject
        length = batch.sequence_length
        flops = count_position_flops(
            subject.objective, subject.model, length, subject.training.steps
        )
        return flops * (batch.global_batch * length)

    def predict(self, layout: DeviceLayout) -> StepPrediction:
        """Return the step of the largest stage, with the most memory that any stage needs."""
        found = self._predict_batch(self.subject.batch, layout)
        memory = found.memory
        for stage in self.subject.stages:
            other = self._predict_stage(stage, layout).memory
            memory = max(memory, other, key=lambda one: one.total)
        return found if memory is found.memory else replace(found, memory=memory)

    def sum_seconds(self, layout: DeviceLayout) -> float:
        """Return the seconds of all steps of the run."""
        return sum(
            stage.steps * self._predict_stage(stage, layout).seconds.total
            for stage in self.subject.list_stages()
        )

    def sum_flops(self, layout: DeviceLayout) -> float:
        """Return the operations of all steps of the run."""
        return sum(
            stage.steps * self._predict_stage(stage, layout).flops
            for stage in self.subject.list_stages()
        )

    def _predict_stage(self, stage: RunStage, layout: DeviceLayout) -> StepPrediction:
        if stage.micro_batch is not None:
            rows = max(1, stage.micro_batch // layout.degrees.expert)
            layout = replace(layout, micro_batch=rows)
        return self._predict_batch(stage.batch, layout)


def search_layouts(predictor: RunPredictor, fixed: FixedDegrees) -> SearchedLayouts:
    """Predict every legal layout with the degrees of `fixed`, and return the best ones."""
    subject = predictor.subject
    room = predictor.cluster.device.memory
    fastest: dict[Degrees, StepPrediction] = {}
    runnable: StepPrediction | None = None
    nearest: StepPrediction | None = None
    legal = fitting = 0
    for layout in subject.iterate_layouts(predictor.cluster.devices, fixed):
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
        if (runnable is None or _rank(found) < _rank(runnable)) and not list_needs(
            layout, predictor.main, subject.objective
        ):
            runnable = found
    return SearchedLayouts(fastest, runnable, nearest, legal, fitting)


def search(
    subject: Subject,
    cluster: Cluster,
    fixed: FixedDegrees,
    offers: Hardware,
    own: DeviceLayout | None = None,
) -> LayoutPlan:
    """Return the fastest layouts of `subject` on `cluster`, the fastest first.

    `own` is the layout that the run file has on that many devices, if it has one. Raises
    ConfigError if no layout is legal or none fits in memory; the message names a number of devices
    that works.
    """
    check_is_planned(subject)
    predictor = RunPredictor(subject, cluster)
    written = RunPredictor(subject, cluster, as_written=True)
    _check_fixed(subject, cluster.devices, fixed)
    found = search_layouts(predictor, fixed)
    if found.nearest is None:
        raise ConfigError(_explain_none_legal(subject, cluster, fixed))
    if not found.fastest:
        raise ConfigError(_explain_none_fits(subject, cluster, fixed, found.nearest))
    runnable = found.runnable
    best_ones = heapq.nsmallest(SHOWN, found.fastest.values(), key=_rank)
    shown = tuple(_weigh_prediction(prediction, predictor) for prediction in best_ones)
    return LayoutPlan(
        subject=subject,
        cluster=cluster,
        best=shown,
        runnable=_weigh_prediction(runnable, predictor) if runnable else None,
        own=_weigh_prediction(written.predict(own), written) if own else None,
        legal=found.legal,
        fitting=found.fitting,
        cost=_estimate_cost(best_ones[0], predictor, offers),
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


def _rank(found: StepPrediction) -> tuple[float, int, bool, bool, int, float]:
    """Return the key by which layouts are ordered: the fastest first.

    Where times are assumed they are all equal. Then the layout comes first that recomputes and
    sends the least, with the largest micro-batch.
    """
    layout = found.layout
    return (
        found.seconds.total,
        SAVING.index(layout.recompute),
        layout.reshard != "step",
        layout.reduce != "step",
        -layout.micro_batch,
        found.memory.total,
    )


def _weigh_prediction(prediction: StepPrediction, predictor: RunPredictor) -> Found:
    return Found(
        prediction,
        list_needs(prediction.layout, predictor.main, predictor.subject.objective),
        _estimate_spanning_seconds(prediction, predictor),
    )


def _estimate_spanning_seconds(prediction: StepPrediction, predictor: RunPredictor) -> float | None:
    """Return the seconds that a step loses to tensor groups that span machines.

    Returns None if no tensor group spans machines.
    """
    cluster = predictor.cluster
    layout = prediction.layout
    if cluster.group(layout.degrees, ["tensor"]).machines == 1:
        return None
    whole = replace(cluster, devices_per_machine=cluster.devices, across=None)
    inside = RunPredictor(predictor.subject, whole).predict(layout)
    micro_batches = layout.count_micro_batches(predictor.subject.batch.global_batch)
    share = 1 + (layout.degrees.pipeline - 1) / layout.chunks / micro_batches
    return (prediction.seconds.tensor - inside.seconds.tensor) * share


def _check_fixed(subject: Subject, devices: int, fixed: FixedDegrees) -> None:
    """Raise ConfigError if the fixed degrees do not suit the model, batch or device count."""
    asked = Degrees(1, 1, **fixed.given)
    reason = layouts.explain_refusal(subject.model, subject.batch, asked)
    if reason is not None:
        raise ConfigError(f"plan: {subject.name}: {reason}")
    if devices % asked.replica_devices:
        given = " x ".join(f"{name} {value}" for name, value in fixed.given.items())
        several = asked.replica_devices * max(1, devices // asked.replica_devices)
        raise ConfigError(
            f"plan: {subject.name}: a replica takes {asked.replica_devices} devices "
            f"({given}), and {devices} is not a multiple of that; use {several}"
        )


def _explain_none_legal(subject: Subject, cluster: Cluster, fixed: FixedDegrees) -> str:
    devices = cluster.devices
    fewer = [devices // 2**n for n in range(1, devices.bit_length())]
    more = [devices * 2**n for n in range(1, 5)]
    near = [
        next((n for n in counts if next(subject.iterate_layouts(n, fixed), None) is not None), None)
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
        if fits_somewhere(subject, replace(cluster, devices=devices), fixed):
            return devices
    return None


def fits_somewhere(subject: Subject, cluster: Cluster, fixed: FixedDegrees) -> bool:
    """Return whether any legal layout of `subject` fits the memory of the devices."""
    return next(_iterate_fitting_layouts(subject, cluster, fixed), None) is not None


def find_fitting_layout(
    subject: Subject, cluster: Cluster, fixed: FixedDegrees
) -> StepPrediction | None:
    """Return the first layout that fits and that the trainer supports, or None.

    It is not the fastest one: the search ends at the first fit, and costs a fraction of
    `search_layouts`.
    """
    found = _iterate_fitting_layouts(subject, cluster, fixed)
    return next(
        (
            prediction
            for prediction, predictor in found
            if not list_needs(prediction.layout, predictor, subject.objective)
        ),
        None,
    )


def _iterate_fitting_layouts(
    subject: Subject, cluster: Cluster, fixed: FixedDegrees
) -> Iterator[tuple[StepPrediction, Predictor]]:
    """Yield the layouts that fit, each with its predictor, of those that need the least memory."""
    predictor = RunPredictor(subject, replace(cluster, across=cluster.across or cluster.inside))
    room = cluster.device.memory
    for layout in subject.iterate_layouts(cluster.devices, fixed):
        if not _saves_most(layout, subject.batch):
            continue
        found = predictor.predict(layout)
        if found.memory.fits(room):
            yield found, predictor.main


def _saves_most(layout: DeviceLayout, batch: BatchShape) -> bool:
    """Return whether `layout` may need the least memory of the layouts with its degrees.

    Such a layout recomputes everything, in the smallest micro-batches or in a single one. It slices
    over all replicas, gathers and reduces as often as possible, and its pipeline is not GPipe.
    """
    degrees = layout.degrees
    if layout.recompute != "full" or degrees.replicate > 1 or layout.schedule == "GPipe":
        return False
    # A single micro-batch accumulates no gradients, which can outweigh its larger activations.
    once = layout.count_micro_batches(batch.global_batch) == 1
    if layout.micro_batch > 1 and not once:
        return False
    if degrees.shard * degrees.context * degrees.expert == 1:
        return True
    return layout.reshard == "layer" and (once or layout.reduce == "micro_batch")


def _estimate_cost(best: StepPrediction, predictor: RunPredictor, offers: Hardware) -> Cost:
    """Return the cost of all steps of the run at the pace of `best`."""
    subject = predictor.subject
    cluster = predictor.cluster
    return estimate_cost(
        predictor.sum_flops(best.layout),
        offers,
        cluster.name,
        cluster.devices,
        subject.training.precision.peak,
        Assumptions(),
        cluster.instance,
        predictor.sum_seconds(best.layout),
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
