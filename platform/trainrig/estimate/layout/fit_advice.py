"""Advice of `trainrig check` for a run that needs too much memory: settings with which it fits."""

from dataclasses import replace

from trainrig.estimate.fitting_layouts import RECOMPUTED
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layout_search import PLAIN, find_fitting_layout
from trainrig.estimate.layout.layout_settings import build_parallel
from trainrig.estimate.layout.run_placement import find_smallest_fit, place_run
from trainrig.estimate.layout.run_subject import FixedDegrees, Subject
from trainrig.estimate.layout.step_prediction import StepPrediction
from trainrig.estimate.step_memory import RESERVE
from trainrig.parallel.activation_budget import GIB


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
