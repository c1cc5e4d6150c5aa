"""Implementation of `trainrig plan --layout`: the fastest layouts, and a run file of the best."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainrig import config, hardware, manifest, storage
from trainrig.config import to_toml
from trainrig.errors import ConfigError
from trainrig.estimate.fitting_layouts import RECOMPUTED, BatchShape
from trainrig.estimate.held_parameters import resolve_offload
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layout_fallbacks import count_unit, find_fallbacks
from trainrig.estimate.layout.layout_search import FixedDegrees, LayoutPlan, Subject, search
from trainrig.estimate.layout.layouts import DeviceLayout
from trainrig.estimate.layout.step_prediction import StepPrediction
from trainrig.estimate.training_check import describe_fallbacks
from trainrig.hardware import Hardware
from trainrig.manifest import MANIFEST
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.objectives.denoising.row_shapes import compute_widest_row
from trainrig.objectives.objective_settings import find_parts
from trainrig.parallel.activation_budget import GIB
from trainrig.parallel.layout import DDP, FSDP, HSDP, Fallback, Layout
from trainrig.scaling.plan import layout_text
from trainrig.storage.writable import check_file
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.worker_settings import parse_bounds


@dataclass(frozen=True)
class ClusterWanted:
    """Devices that a run is planned for, as the options name them."""

    device: str | None = None  # None: the device of `instance`, or h100
    nodes: int | None = None  # number of machines; None: derived from `devices`
    devices: int | None = None  # None: derived from `nodes`, or the number of the run's workers
    instance: str | None = None  # None: the cheapest instance type with such devices
    interconnect: str | None = None  # None: the interconnect of the instance type


USUAL_DEVICE = "h100"


def answer(
    path: str, wanted: ClusterWanted, fixed: FixedDegrees, table: str | None, out: str | None
) -> tuple[LayoutPlan, list[str]]:
    """Return the layout plan of the run file at `path`, and the lines that describe it.

    `table` is the path of a table of hardware, or None for the built-in one. `out` is the path of a
    run file to write, with the best layout that the trainer supports; its page is written next to
    it. Raises ConfigError, in one line, before anything is written.
    """
    if out is not None:
        check_file(out)
    run = config.load(Pretraining, path)
    offers = hardware.load(table)
    cluster = build_cluster(wanted, offers, parse_bounds(run.workers).most)
    # Some layouts cannot be compiled, so none is unless the run file asks for it.
    on_devices = run.training.resolve(cluster.device.computes_narrow, compiles=False)
    on_devices = resolve_offload(on_devices, not cluster.device.accelerator)
    subject, notes = build_subject(run.model_copy(update={"training": on_devices}), path)
    found = search(subject, cluster, fixed, offers)
    lines = [*notes, *layout_text.describe_layouts(found)]
    if out is not None:
        lines += _write(out, run, found)
    return found, lines


def build_subject(run: Pretraining, name: str) -> tuple[Subject, list[str]]:
    """Return the part of `run` that a layout is planned for, and notes for the user.

    Raises ConfigError if the run file has no model, or a model that layouts cannot be planned for.
    """
    model = run.model
    if model is None:
        raise ConfigError(
            f"plan: {name}: [model] is missing, and a layout depends on its sizes; add it"
        )
    if isinstance(model, EncoderDecoderConfig):
        raise ConfigError(
            f"plan: {name}: layouts can only be planned for decoders and encoders, and model.kind "
            f"is '{model.kind}'"
        )
    if model.generator_model is not None or model.further_heads:
        unsupported = "further_heads" if model.further_heads else "a generator"
        raise ConfigError(
            f"plan: {name}: layouts can only be planned for models that are trained alone, and "
            f"this one has {unsupported}"
        )
    notes = []
    if run.training.offload.optimizer:
        notes.append(
            "Step times do not include the copies of the optimizer state from the host and back, "
            "which offload.optimizer causes."
        )
    if run.training.offload.activations:
        notes.append("Step times do not include the copies of activations to the host and back.")
    stages = run.batches.resolve_stages()
    ends = [
        run.batches.count_positions(min(stage.from_step, run.training.steps)) for stage in stages
    ]
    ends.append(run.batches.count_positions(run.training.steps))
    positions = [end - begin for begin, end in itertools.pairwise(ends)]
    stage = stages[positions.index(max(positions))]
    if len(stages) > 1:
        notes.append(
            f"The plan is for the batches from step {stage.from_step} on: the stage with the "
            f"most tokens of {len(stages)} stages."
        )
    rate = sum(
        share * objective.mean_rate(run.training.steps)
        for share, objective in find_parts(run.objective)
    )
    places = compute_widest_row(run.objective, stage.sequence_length)
    if places != stage.sequence_length:
        notes.append(
            f"The plan is for rows of {places} positions, the widest that the objective "
            f"{run.objective.kind} makes from {stage.sequence_length} tokens. Tokens per second "
            "count positions."
        )
    return Subject(
        name=name,
        model=_settle_vocabulary(model, run),
        training=run.training,
        batch=BatchShape(stage.global_batch, places),
        predicted=rate,
        objective=run.objective,
    ), notes


def _settle_vocabulary(model: DecoderConfig, run: Pretraining) -> DecoderConfig:
    """Return `model` with the vocabulary size of the run's tokens, if its own is not set."""
    if model.vocabulary is not None:
        return model
    if not storage.exists(storage.join(run.tokens, MANIFEST)):
        raise ConfigError(
            f"plan: model.vocabulary is not set, and {run.tokens} has no tokens yet; set the "
            "vocabulary, or run `trainrig tokenize` first"
        )
    counts = manifest.read_input(run.tokens, "tokenize").counts
    return model.for_tokenizer(int(counts["vocabulary"]))


def build_cluster(wanted: ClusterWanted, offers: Hardware, workers: int) -> Cluster:
    """Return the cluster that the options name.

    Without a number of devices or machines, it has as many devices as the run has `workers`. Raises
    ConfigError if the options contradict each other; the message names what works.
    """
    name = _choose_device(wanted, offers)
    device = offers.find_device(name)
    instance = wanted.instance or offers.find_cheapest(name)
    if device.link is None:
        linked = ", ".join(
            sorted(other for other, other_device in offers.devices.items() if other_device.link)
        )
        raise ConfigError(
            f"plan: the table of hardware has no link of '{name}', which planning a layout needs; "
            f"add it, or choose one of these with --device: {linked or 'none has a link'}"
        )
    devices_per_machine = offers.find_instance(instance).devices if instance else 1
    devices = wanted.devices or (wanted.nodes * devices_per_machine if wanted.nodes else workers)
    if wanted.nodes and wanted.devices and wanted.nodes * devices_per_machine != wanted.devices:
        raise ConfigError(
            f"plan: {wanted.nodes} nodes with {devices_per_machine} {name} each have "
            f"{wanted.nodes * devices_per_machine} devices, and `devices` is {wanted.devices}; "
            "leave out one of the two"
        )
    if devices > devices_per_machine and devices % devices_per_machine:
        below = devices // devices_per_machine * devices_per_machine
        raise ConfigError(
            f"plan: {devices} {name} are not a whole number of machines of {devices_per_machine}; "
            f"use {below} or {below + devices_per_machine}"
        )
    across = None
    if wanted.interconnect is not None:
        across = offers.find_interconnect(wanted.interconnect)
    elif devices > devices_per_machine:
        across = offers.find_interconnect(_find_usual_interconnect(instance, offers))
    inside = offers.links[device.link]
    return Cluster(name, device, devices, devices_per_machine, inside, across, instance)


def _choose_device(wanted: ClusterWanted, offers: Hardware) -> str:
    if wanted.instance is None:
        return wanted.device or USUAL_DEVICE
    held = offers.find_instance(wanted.instance).device
    if wanted.device not in (None, held):
        raise ConfigError(
            f"plan: instance {wanted.instance} has devices '{held}', not '{wanted.device}'; "
            "leave out one of the two"
        )
    return held


def _find_usual_interconnect(instance: str | None, offers: Hardware) -> str:
    own = offers.instances[instance].interconnect if instance else None
    if own is None:
        there = ", ".join(name for name, link in offers.links.items() if link.between == "machines")
        raise ConfigError(
            f"plan: the table of hardware has no interconnect for machines of {instance}; choose "
            f"one as `layout.interconnect`: {there}"
        )
    return own


def build_parallel(layout: DeviceLayout) -> Layout:
    """Return `layout` as the value of `training.parallel` in a run file."""
    degrees = layout.degrees
    axes: dict[str, Any] = {
        axis: {"ranks": getattr(degrees, axis)}
        for axis in ("tensor", "pipeline", "context", "expert")
        if getattr(degrees, axis) > 1
    }
    if "pipeline" in axes:
        axes["pipeline"] |= {"schedule": layout.schedule, "chunks": layout.chunks}
    if "tensor" in axes:
        axes["tensor"]["sequence_parallel"] = layout.sequence_parallel
    if "context" in axes:
        axes["context"]["kind"] = "Gathered"  # the only kind that the planner models
    if degrees.replicate == 1:
        return FSDP.model_validate({"reshard": layout.reshard, "reduce": layout.reduce, **axes})
    if degrees.shard * degrees.context * degrees.expert == 1:
        return DDP.model_validate(axes)
    sliced = {"replicas": degrees.replicate, "reshard": layout.reshard, "reduce": layout.reduce}
    return HSDP.model_validate({**sliced, **axes})


def apply_layout(
    run: Pretraining, prediction: StepPrediction, smaller: Sequence[StepPrediction] = ()
) -> Pretraining:
    """Return `run` with the workers, batches and layout of `prediction`, and its fallbacks.

    The trainer must support the layout. `smaller` are the predictions of the layouts to fall back
    on, those on the most devices first.
    """
    layout = prediction.layout
    degrees = layout.degrees
    training = run.training.model_copy(
        update={
            "parallel": build_parallel(layout),
            "fallbacks": tuple(
                Fallback(
                    parallel=build_parallel(fallback.layout),
                    recompute=RECOMPUTED[fallback.layout.recompute],
                )
                for fallback in smaller
            ),
            "recompute": RECOMPUTED[layout.recompute],
            "virtual_workers": max(run.training.virtual_workers, degrees.data),
        }
    )
    fewest = min(
        (count_unit(fallback.layout.degrees) for fallback in smaller), default=degrees.devices
    )
    # Rows of all the workers that share one micro-batch.
    micro_batch = layout.micro_batch * degrees.expert
    changes = {
        "workers": (fewest, degrees.devices) if smaller else degrees.devices,
        "batches": run.batches.model_copy(update={"micro_batch": micro_batch}),
        "training": training,
    }
    changed = Pretraining.model_validate(dict(run) | changes)
    changed.training.check_workers(changed.workers)
    return changed


def _describe_fallbacks(run: Pretraining, smaller: Sequence[StepPrediction]) -> Iterator[str]:
    """Yield one line for each layout that the run file falls back on."""
    descriptions = describe_fallbacks(run.training, run.workers).values()
    for description, fallback in zip(descriptions, smaller, strict=True):
        yield (
            f"falls back to {description}; {fallback.seconds.total:.4g} s per step on "
            f"{fallback.layout.degrees.devices} devices, {fallback.memory.total / GIB:.1f} GiB "
            "per device"
        )


def _write(path: str, run: Pretraining, found: LayoutPlan) -> list[str]:
    """Write the run file and its page, and return the lines that describe them.

    Raises ConfigError if no layout is supported by the trainer, or if `path` has other contents.
    """
    if found.runnable is None:
        raise ConfigError(f"plan: no run file: {found.warnings[-1]}")
    best = found.runnable.prediction
    smaller = find_fallbacks(found.subject, found.cluster, best.layout)
    try:
        written = apply_layout(run, best, smaller)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"plan: no run file: {reason}") from None
    text = to_toml(written).encode()
    if storage.exists(path) and storage.read(path) != text:
        raise ConfigError(
            f"{path} exists already with other contents; remove it, or choose another path"
        )
    # Imported here because plotting is slow to import, and a refused plan needs none.
    from trainrig.scaling.plan.layout_page import build_layout_page

    page = f"{path.removesuffix('.toml')}.layouts.html"
    storage.write(path, text)
    storage.write(page, build_layout_page(found, path).encode())
    runs = f"run file: {path}; start it with `trainrig pretrain`. Page of the layouts: {page}"
    return [*_describe_fallbacks(written, smaller), runs]
