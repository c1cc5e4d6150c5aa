"""Finds the layouts that a run goes on in when it has lost part of its last replica.

For half, a quarter and an eighth of the devices that its own layout needs at least, the fastest
that its trainer runs and that fits, also on as few of them as it can be of.
"""

from collections.abc import Iterator
from dataclasses import replace

from trainrig.scaling.layout import layouts
from trainrig.scaling.layout.cluster import Cluster
from trainrig.scaling.layout.layouts import Degrees, DeviceLayout
from trainrig.scaling.layout.prediction import Predictor, StepPrediction
from trainrig.scaling.layout.search import Subject, list_needs

HALVINGS = 3
SAVING = ("nothing", "selective", "full")  # ways to recompute, the one that keeps the most first


def count_unit(degrees: Degrees) -> int:
    """Devices that come and go together: a replica, or one of each copy in slices."""
    sliced = degrees.shard * degrees.context * degrees.expert > 1
    return degrees.of_a_replica * (degrees.replicate if sliced else 1)


def find_fallbacks(
    subject: Subject, cluster: Cluster, own: DeviceLayout
) -> tuple[StepPrediction, ...]:
    """What to fall back on from the layout `own` of `subject`, the larger first; () where one
    device is enough for it, and where nothing fits fewer."""
    unit = count_unit(own.degrees)
    found: list[StepPrediction] = []
    for devices in (unit // 2**n for n in range(1, HALVINGS + 1)):
        below = count_unit(found[-1].layout.degrees) if found else unit
        if not 0 < devices < below:
            continue
        across = cluster.across if devices > cluster.of_a_machine else None
        smaller = replace(cluster, devices=devices, across=across)
        predictor = Predictor(
            subject.model, subject.training, subject.batch, smaller, subject.predicted
        )
        fitting = _list_fitting(subject, predictor, own, below)
        best = min(fitting, key=lambda each: (each.seconds.total, each.memory.total), default=None)
        if best is not None:
            found.append(best)
    return tuple(found)


def _list_fitting(
    subject: Subject, predictor: Predictor, own: DeviceLayout, below: int
) -> Iterator[StepPrediction]:
    """The layouts of the devices of `predictor` that a run in `own` can change to, for fewer
    devices than `below`."""
    training, room = predictor.training, predictor.cluster.device.memory
    virtual = max(training.virtual_workers, own.degrees.data)
    for layout in layouts.iterate_legal_layouts(
        subject.model, subject.batch, predictor.cluster.devices
    ):
        degrees = layout.degrees
        most = (below - 1) // degrees.of_a_replica  # replicas that it may come to be of
        if degrees.replicate > 1 or not _goes_with(layout, own, subject, most):
            continue
        if training.deterministic and most > virtual:
            continue
        if list_needs(layout, predictor, subject.objective):
            continue
        alone = replace(layout, degrees=replace(degrees, shard=1))
        prediction = predictor.predict(layout)
        if prediction.memory.fits(room) and predictor.predict(alone).memory.fits(room):
            yield prediction


def _goes_with(layout: DeviceLayout, own: DeviceLayout, subject: Subject, most: int) -> bool:
    """Whether a run laid out as `own` can go on in `layout`, of `most` replicas at the most: with
    the same micro-batches, and as much computed again, or more."""
    rows = layout.micro_batch * layout.degrees.expert
    whole = layout.degrees.pipeline * rows * most
    return (
        most > 0
        and rows == own.micro_batch * own.degrees.expert
        and SAVING.index(layout.recompute) >= SAVING.index(own.recompute)
        and (layout.schedule != "interleaved" or subject.batch.global_batch % whole == 0)
    )
