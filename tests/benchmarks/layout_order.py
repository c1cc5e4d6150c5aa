"""The layouts of two workers: what the planner predicts of a run in each, and how each is run."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from trainrig.hardware import Hardware
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.scaling.layout import terms
from trainrig.scaling.layout.layout_verb import (
    ClusterWanted,
    apply_layout,
    build_cluster,
    build_subject,
)
from trainrig.scaling.layout.layouts import Degrees, DeviceLayout, explain_refusal
from trainrig.scaling.layout.prediction import Predictor, StepPrediction
from trainrig.train.run_file.run_files import Pretraining

WORLD = 2
APART = 1.15  # predictions that differ by less are not said to be in an order
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
TILE = 16  # float32 numbers of a register of AVX-512: a core fills no larger pieces


def list_layouts(run: Pretraining) -> dict[str, DeviceLayout]:
    """Those of LAYOUTS that `run` can be trained in, by name."""
    subject, _ = build_subject(run, "run.toml")
    mixed = isinstance(subject.model.feedforward, MixtureOfExperts)
    return {
        name: layout
        for name, layout in LAYOUTS.items()
        if explain_refusal(subject.model, subject.batch, layout.degrees) is None
        and not (mixed and layout.degrees.context > 1)
    }


def write_table(rates: Mapping[str, Mapping[str, float]]) -> str:
    """A table of hardware of two devices that reach `rates`, as a user would write it. The planner
    takes shares (terms.py) of nominal bandwidths, so the nominal ones are what was reached over
    those."""
    device = rates["device"]
    link = rates["link"]
    reached = rates["reached"]
    every = ", ".join(f'"{name}" = {value:.6g}' for name, value in reached.items())
    return f"""\
[devices.core]
flops = {{ float32 = {device["flops"]:.6g} }}
bandwidth = {device["bandwidth"] / terms.MEMORY.value:.6g}
matmul = 1.0
processors = 1
tile = [{TILE}, {TILE}]
memory = 8e9
watts = 8
accelerator = false
link = "loopback"
source = "measured"

[links.loopback]
bandwidth = {reached["all-gather"] / terms.INSIDE.value:.6g}
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
    """What the planner says of each."""
    subject, _ = build_subject(run, "run.toml")
    cluster = build_cluster(ClusterWanted(device="core", devices=WORLD), offers, WORLD)
    predictor = Predictor(
        subject.model, subject.training, subject.batch, cluster, subject.predicted
    )
    return {name: predictor.predict(layout) for name, layout in layouts.items()}


def write_tasks(
    run: Pretraining, predictions: Mapping[str, StepPrediction]
) -> dict[str, dict[str, Any]]:
    """What ranks are told of each layout: the run file that the planner would write for it."""
    found = {}
    for name, prediction in predictions.items():
        laid = apply_layout(run, prediction)
        stage = laid.batches.resolve_stages()[0]
        training = laid.training.model_dump()
        if "ring" in name:  # sends as much, which the planner counts as gathered
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
    """The pairs that are predicted more than APART from each other, and those of them that were
    measured in the other order, the one said to be faster first."""
    names: Iterable[tuple[str, str]] = combinations(sorted(predicted, key=predicted.__getitem__), 2)
    apart = [(a, b) for a, b in names if predicted[b] > APART * predicted[a]]
    return apart, [(a, b) for a, b in apart if measured[b] <= measured[a]]


def format_rows(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The table of docs/layouts.md, of what was found of each model: predicted milliseconds, those
    measured and their quartiles."""
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
