"""Search for the layouts that a run continues in after losing part of its last replica.

For a half, a quarter and an eighth of the devices that the run's own layout needs at least, the
search finds the fastest layout that fits and that its trainer supports. The layout must also fit
when it runs on its least possible number of devices.
"""

from collections.abc import Iterator
from dataclasses import replace

from trainrig.estimate.layout import layouts
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layout_search import SAVING, list_needs
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout
from trainrig.estimate.layout.run_subject import Subject
from trainrig.estimate.layout.step_prediction import Predictor, StepPrediction

HALVINGS = 3


def count_unit(degrees: Degrees) -> int:
    """Return the number of devices by which a run can grow or shrink.

    It is a replica, or with sliced parameters one replica of each copy.
    """
    sliced = degrees.shard * degrees.context * degrees.expert > 1
    return degrees.replica_devices * (degrees.replicate if sliced else 1)


def find_fallbacks(
    subject: Subject, cluster: Cluster, own: DeviceLayout
) -> tuple[StepPrediction, ...]:
    """Return the fallback layouts of a run, those on the most devices first.

    `own` is the layout of `subject` on all devices. The result is empty where one device suffices
    for a replica, and where no layout fits on fewer devices.
    """
    unit = count_unit(own.degrees)
    found: list[StepPrediction] = []
    for devices in (unit // 2**n for n in range(1, HALVINGS + 1)):
        below = count_unit(found[-1].layout.degrees) if found else unit
        if not 0 < devices < below:
            continue
        across = cluster.across if devices > cluster.devices_per_machine else None
        smaller = replace(cluster, devices=devices, across=across)
        predictor = Predictor(
            subject.model,
            subject.training,
            subject.batch,
            smaller,
            subject.predicted,
            subject.masks,
        )
        fitting = _list_fitting(subject, predictor, own, below)
        best = min(
            fitting,
            key=lambda prediction: (prediction.seconds.total, prediction.memory.total),
            default=None,
        )
        if best is not None:
            found.append(best)
    return tuple(found)


def _list_fitting(
    subject: Subject, predictor: Predictor, own: DeviceLayout, below: int
) -> Iterator[StepPrediction]:
    """Yield predictions of the layouts to which a run in `own` can change.

    The layouts use all devices of `predictor`, and each must fit with one shard as well. `below` is
    the number of devices at which the next larger layout takes over.
    """
    training = predictor.training
    room = predictor.cluster.device.memory
    virtual = max(training.virtual_workers, own.degrees.data)
    for layout in layouts.iterate_legal_layouts(
        subject.model, subject.batch, predictor.cluster.devices
    ):
        degrees = layout.degrees
        # the most replicas that the run may grow to in this layout
        most = (below - 1) // degrees.replica_devices
        if degrees.replicate > 1 or not _is_compatible(layout, own, subject, most):
            continue
        if training.deterministic and most > virtual:
            continue
        if list_needs(layout, predictor, subject.objective):
            continue
        alone = replace(layout, degrees=replace(degrees, shard=1))
        prediction = predictor.predict(layout)
        if prediction.memory.fits(room) and predictor.predict(alone).memory.fits(room):
            yield prediction


def _is_compatible(layout: DeviceLayout, own: DeviceLayout, subject: Subject, most: int) -> bool:
    """Return whether a run in `own` can change to `layout` without changing its micro-batches.

    It must recompute as much as `own` or more, and its pipeline schedule must be possible with up
    to `most` replicas.
    """
    rows = layout.micro_batch * layout.degrees.expert
    largest_round = layout.degrees.pipeline * rows * most
    return (
        most > 0
        and rows == own.micro_batch * own.degrees.expert
        and SAVING.index(layout.recompute) >= SAVING.index(own.recompute)
        and (layout.schedule != "interleaved" or subject.batch.global_batch % largest_round == 0)
    )
