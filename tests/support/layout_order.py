"""Layouts of two workers: the planner's prediction for each, and how to run each."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from trainrig.estimate.layout import planner_terms
from trainrig.estimate.layout.cluster_choice import ClusterWanted, build_cluster
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout, explain_refusal
from trainrig.estimate.layout.step_prediction import Predictor, StepPrediction
from trainrig.hardware import Hardware
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.scaling.plan.layout_verb import apply_layout, build_subject
from trainrig.train.run_file.run_files import Pretraining

WORLD = 2
APART = 1.15  # a smaller ratio of predictions does not count as an order
PIPELINE = Degrees(pipeline=WORLD)
LAYOUTS = {
    "FSDP": DeviceLayout(Degrees(shard=WORLD), 2),
    "FSDP, micro-batches of 1": DeviceLayout(Degrees(shard=WORLD), 1),
    "FSDP, layer by layer": DeviceLayout(Degrees(shard=WORLD), 1, reshard="layer"),
    "FSDP, recomputed": DeviceLayout(Degrees(shard=WORLD), 2, "full"),
    "DDP": DeviceLayout(Degrees(replicate=WORLD), 2),
    "tensor, sequence parallel": DeviceLayout(Degrees(tensor=WORLD), 4),
    "tensor": DeviceLayout(Degrees(tensor=WORLD), 4, sequence_parallel=False),
    "context, gathered": DeviceLayout(Degrees(context=WORLD), 4),
    "context, by ring": DeviceLayout(Degrees(context=WORLD), 4),
    "1F1B, 2 micro-batches": DeviceLayout(PIPELINE, 2, schedule="1F1B"),
    "1F1B, 4 micro-batches": DeviceLayout(PIPELINE, 1, schedule="1F1B"),
    "GPipe, 4 micro-batches": DeviceLayout(PIPELINE, 1, schedule="GPipe"),
    "interleaved, 4 micro-batches": DeviceLayout(PIPELINE, 1, schedule="interleaved", chunks=2),
    "expert": DeviceLayout(Degrees(expert=WORLD), 2),
}
TILE = 16  # float32 elements of an AVX-512 register: a core needs no larger tiles


def list_layouts(run: Pretraining) -> dict[str, DeviceLayout]:
    """Return the layouts of LAYOUTS that `run` can be trained in, keyed by name."""
    subject, _ = build_subject(run, "run.toml")
    mixed = isinstance(subject.model.feedforward, MixtureOfExperts)
    return {
        name: layout
        for name, layout in LAYOUTS.items()
        if explain_refusal(subject.model, subject.batch, layout.degrees) is None
        and not (mixed and layout.degrees.context > 1)
    }


def write_table(rates: Mapping[str, Mapping[str, float]]) -> str:
    """Return a hardware table of two devices that reach `rates`, as a user would write it.

    The planner takes shares (terms.py) of nominal bandwidths, so this writes each measured
    bandwidth divided by its share.
    """
    device = rates["device"]
    link = rates["link"]
    reached = rates["reached"]
    every = ", ".join(f'"{name}" = {value:.6g}' for name, value in reached.items())
    return f"""\
[devices.core]
flops = {{ float32 = {device["flops"]:.6g} }}
bandwidth = {device["bandwidth"] / planner_terms.MEMORY.value:.6g}
matmul = 1.0
processors = 1
tile = [{TILE}, {TILE}]
memory = 8e9
watts = 8
accelerator = false
link = "loopback"
source = "measured"

[links.loopback]
bandwidth = {reached["all-gather"] / planner_terms.INSIDE.value:.6g}
latency = {link["latency"]:.6g}
takes = {link["takes"]:.6g}
reached = {{ {every} }}
between = "devices"
source = "measured"

[instances.this]
device = "core"
devices = {WORLD}
vcpus = {WORLD}
memory = 16e9
usd = 1.0
as_of = "never"
source = "none: it is not rented"
"""


def predict_steps(
    run: Pretraining, layouts: Mapping[str, DeviceLayout], offers: Hardware
) -> dict[str, StepPrediction]:
    """Return the planner's prediction for each layout."""
    subject, _ = build_subject(run, "run.toml")
    cluster = build_cluster(ClusterWanted(device="core", devices=WORLD), offers, WORLD)
    predictor = Predictor(
        subject.model, subject.training, subject.batch, cluster, subject.predicted
    )
    return {name: predictor.predict(layout) for name, layout in layouts.items()}


def write_tasks(
    run: Pretraining, predictions: Mapping[str, StepPrediction]
) -> dict[str, dict[str, Any]]:
    """Return the run file of each layout that the planner would write, as tasks for the ranks."""
    found = {}
    for name, prediction in predictions.items():
        laid = apply_layout(run, prediction)
        stage = laid.batches.resolve_stages()[0]
        training = laid.training.model_dump()
        if "ring" in name:  # a ring sends as much as the planner counts as gathered
            training["parallel"]["context"]["kind"] = "RingAttention"
        micro_batch = laid.batches.micro_batch
        found[name] = {
            "training": training,
            "count": stage.global_batch // micro_batch,
            "shape": (micro_batch, stage.sequence_length),
        }
    return found


def count_pairs(
    predicted: Mapping[str, float], measured: Mapping[str, float]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the pairs of layouts predicted to be APART, and those measured in the opposite order.

    In each pair the layout that is predicted to be faster comes first.
    """
    names: Iterable[tuple[str, str]] = combinations(sorted(predicted, key=predicted.__getitem__), 2)
    apart = [(a, b) for a, b in names if predicted[b] > APART * predicted[a]]
    return apart, [(a, b) for a, b in apart if measured[b] <= measured[a]]


def format_rows(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the table of docs/evidence/layouts.md.

    For each model, the table has predicted and measured milliseconds and their quartiles.
    """
    models = " | ".join(f"{name}: predicted | measured" for name in found)
    rows = [f"| layout | {models} |", "|---|" + "---|---|" * len(found)]
    for name in LAYOUTS:
        cells = ["| – | –" for _ in found]
        for number, model in enumerate(found.values()):
            if (row := model["layouts"].get(name)) is not None:
                low, high = row["quartiles_ms"]
                measured = f"{row['measured_ms']:.0f} ({low:.0f} to {high:.0f})"
                cells[number] = f"| {row['predicted_ms']:.0f} | {measured}"
        rows.append(f"| {name} {' '.join(cells)} |")
    return rows
