"""Placement of a run on devices: the layout that is taken, its memory, and the seconds of the run.

`check`, `plan` and `plan --layout` all come here, so that they give the same answer for the same
run on the same devices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainrig.estimate.fitting_layouts import MOST_DEVICES, RECOMPUTED
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layout_search import (
    PLAIN,
    RunPredictor,
    find_fitting_layout,
    search_layouts,
)
from trainrig.estimate.layout.layout_settings import build_parallel, read_layout
from trainrig.estimate.layout.run_subject import FixedDegrees, Subject
from trainrig.estimate.layout.step_prediction import StepPrediction
from trainrig.estimate.step_memory import RESERVE
from trainrig.parallel.activation_budget import GIB
from trainrig.parallel.layout import Layout
from trainrig.train.run_file.training_settings import Training


@dataclass(frozen=True)
class Placed:
    """A layout of a run on a cluster."""

    prediction: StepPrediction
    parallel: Layout
    training: Training  # the run's settings with the layout's recomputation and exactness
    seconds: float | None  # seconds of the whole run; None: they cannot be predicted
    fits: bool  # False: the layout is the one that needs the least memory


def place_run(subject: Subject, cluster: Cluster, divided: bool = True) -> Placed | None:
    """Return the fastest layout of `subject` that fits and that its trainer supports.

    Layouts in which each replica is one device come first: bit-exact ones if the run asks for that,
    then others. Layouts that divide replicas over devices are tried only if `divided`, and if no
    other fits. If none does at all, the layout with the least memory is returned; None if no layout
    is legal.
    """
    nearest: tuple[StepPrediction, RunPredictor] | None = None
    for wanted, fixed in _iterate_searches(subject):
        predictor = RunPredictor(wanted, cluster)
        if fixed is not PLAIN and not (divided and predictor.timed):
            break
        found = search_layouts(predictor, fixed)
        if found.runnable is not None:
            return _place(found.runnable, predictor, fits=True)
        least = found.nearest
        if least and (nearest is None or least.memory.total < nearest[0].memory.total):
            nearest = least, predictor
    return _place(*nearest, fits=False) if nearest else None


def _iterate_searches(subject: Subject) -> Iterator[tuple[Subject, FixedDegrees]]:
    free = replace(subject, training=subject.training.model_copy(update={"deterministic": False}))
    if subject.training.deterministic:
        yield subject, PLAIN
    yield free, PLAIN
    yield free, FixedDegrees()


def _place(prediction: StepPrediction, predictor: RunPredictor, fits: bool) -> Placed:
    layout = prediction.layout
    seconds = predictor.sum_seconds(layout) if predictor.timed else None
    return Placed(
        prediction, build_parallel(layout), predictor.main.build_training(layout), seconds, fits
    )


def predict_own_seconds(subject: Subject, cluster: Cluster, micro_batch: int) -> float | None:
    """Return the seconds of the whole run in the layout of its run file.

    `micro_batch` is that of the run file. None if no time can be predicted for the model, the
    devices or the layout.
    """
    layout = read_layout(subject.training, cluster.devices, micro_batch)
    predictor = RunPredictor(subject, cluster, as_written=True)
    if layout is None or not predictor.timed:
        return None
    return predictor.sum_seconds(layout)


def count_devices_needed(
    subject: Subject, make_cluster: Callable[[int], Cluster], fixed: FixedDegrees = PLAIN
) -> int | None:
    """Return the fewest devices, a power of two, for which some supported layout fits.

    None if not even one sequence for each device fits, however many devices there are.
    """
    found = find_smallest_fit(subject, make_cluster, fixed)
    return found.layout.degrees.devices if found else None


def find_smallest_fit(
    subject: Subject,
    make_cluster: Callable[[int], Cluster],
    fixed: FixedDegrees = PLAIN,
    least: int = 1,
) -> StepPrediction | None:
    """Return a supported layout that fits on the fewest devices, a power of two and >= `least`.

    The layout need not be bit-exact. None if no number of devices has one.
    """
    free = replace(subject, training=subject.training.model_copy(update={"deterministic": False}))
    devices = 2 ** (least - 1).bit_length()
    while devices <= min(MOST_DEVICES, subject.batch.global_batch):
        found = find_fitting_layout(free, make_cluster(devices), fixed)
        if found is not None:
            return found
        devices *= 2
    return None


def describe_what_fits(subject: Subject, cluster: Cluster, needed: float) -> dict[str, str]:
    """Return settings, or a number of devices, with which a run fits that needs too much memory.

    {} if the run fits with the `needed` bytes, or is for CPUs. The result is the fastest layout
    whose replicas are single devices. If none fits, it is the first layout found that does, because
    `check` must answer at once. `trainrig plan --layout` is named only for runs that it can plan.
    """
    if not cluster.device.accelerator or needed <= cluster.device.memory * (1 - RESERVE):
        return {}
    planned = not subject.lacking and cluster.device.link is not None
    placed = place_run(subject, cluster, divided=False)
    if placed is not None and placed.fits:
        said = _describe_settings(subject, placed.prediction, placed.training.deterministic)
        return {"would_fit": said + ("; `trainrig plan --layout` writes the run file" * planned)}
    fixed = FixedDegrees() if planned else PLAIN
    further = "; `trainrig plan --layout` finds the fastest" * planned
    free = replace(subject, training=subject.training.model_copy(update={"deterministic": False}))
    divided = find_fitting_layout(free, cluster, fixed) if planned else None
    if divided is not None:
        return {"would_fit": _describe_settings(subject, divided) + further}
    larger = find_smallest_fit(
        subject,
        lambda count: replace(cluster, devices=count),
        fixed,
        # A number of devices without a legal layout may be larger than one that fits.
        least=1 if placed is None else cluster.devices + 1,
    )
    if larger is None:
        return {"would_fit": "no layout on any number of these devices; use shorter sequences"}
    count = larger.layout.degrees.devices
    return {"would_fit": f"{count:,} devices, {_describe_settings(subject, larger)}{further}"}


def _describe_settings(
    subject: Subject, prediction: StepPrediction, deterministic: bool = False
) -> str:
    """Return the settings that give the layout of `prediction`, and the memory it needs."""
    layout = prediction.layout
    again = RECOMPUTED[layout.recompute]
    words = [build_parallel(layout).describe()]
    words += [f"reshard = '{layout.reshard}'"] if layout.reshard != "step" else []
    words += [f"reduce = '{layout.reduce}'"] if layout.reduce != "step" else []
    words += [f"recompute {again.kind}"] if again else []
    words += [f"micro_batch {layout.micro_batch * layout.degrees.expert}"]
    if layout.degrees.data > subject.training.virtual_workers:
        words += [f"virtual_workers {layout.degrees.data}"]
    if subject.training.deterministic and not deterministic:
        words += ["deterministic = false"]
    return f"{', '.join(words)}: {prediction.memory.total / GIB:.1f} GiB"
