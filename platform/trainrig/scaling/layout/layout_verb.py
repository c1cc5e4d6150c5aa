"""What `trainrig plan --layout` answers: the fastest layouts of a run, and a run file of one."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainrig import config, hardware, manifest, storage
from trainrig.config import to_toml
from trainrig.errors import ConfigError
from trainrig.estimate.fallback_facts import describe_fallbacks
from trainrig.estimate.layouts import BatchShape
from trainrig.estimate.offload import resolve_offload
from trainrig.hardware import Hardware
from trainrig.manifest import MANIFEST
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig
from trainrig.objectives import MaskedLM
from trainrig.objectives.contract import find_parts
from trainrig.objectives.denoising.row_shapes import compute_widest_row
from trainrig.parallel.fallback import Fallback
from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.scaling.layout import layout_text
from trainrig.scaling.layout.cluster import Cluster
from trainrig.scaling.layout.fallbacks import count_unit, find_fallbacks
from trainrig.scaling.layout.layouts import RECOMPUTED, DeviceLayout
from trainrig.scaling.layout.prediction import StepPrediction
from trainrig.scaling.layout.search import GIB, Fixed, LayoutPlan, Subject, search
from trainrig.storage.writable import check_file
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.worker_bounds import parse_bounds


@dataclass(frozen=True)
class ClusterWanted:
    """What a run is to be laid out over."""

    device: str | None = None  # None: that of `instance`, or h100
    nodes: int | None = None  # machines; None: by `devices`
    devices: int | None = None  # None: by `nodes`, or as many as the run's workers
    instance: str | None = None  # None: the cheapest with such devices
    interconnect: str | None = None  # None: that of the instance


USUAL_DEVICE = "h100"


def answer(
    path: str, wanted: ClusterWanted, fixed: Fixed, table: str | None, out: str | None
) -> tuple[LayoutPlan, list[str]]:
    """The plan of the run file at `path`, and lines that tell it; `out`: where to write the run
    file of the best layout that can be trained, its page beside it.

    Raises ConfigError, one line, for what cannot be, before anything is written.
    """
    if out is not None:
        check_file(out)
    run = config.load(Pretraining, path)
    offers = hardware.load(table)
    cluster = build_cluster(wanted, offers, parse_bounds(run.workers).most)
    # Of the layouts some cannot be compiled, so unless the run file says so none is.
    on_devices = run.training.resolve(cluster.device.computes_narrow, compiles=False)
    on_devices = resolve_offload(on_devices, not cluster.device.accelerator)
    subject, notes = build_subject(run.model_copy(update={"training": on_devices}), path)
    found = search(subject, cluster, fixed, offers)
    lines = [*notes, *layout_text.describe_layouts(found)]
    if out is not None:
        lines += _write(out, run, found)
    return found, lines


def build_subject(run: Pretraining, name: str) -> tuple[Subject, list[str]]:
    """What of `run` is laid out, and what is to be said of that. Raises ConfigError if its model is
    not known yet, or is none that layouts are planned for."""
    model = run.model
    if model is None:
        raise ConfigError(f"plan: {name}: [model] is missing; a layout is planned for its sizes")
    if isinstance(model, EncoderDecoderConfig):
        raise ConfigError(
            f"plan: {name}: layouts are planned for decoders and encoders; model.kind is "
            f"'{model.kind}'"
        )
    if model.generator_model is not None or model.further_heads:
        beside = "further_heads" if model.further_heads else "a generator"
        raise ConfigError(
            f"plan: {name}: layouts are planned for models that are trained alone; this one has "
            f"{beside}"
        )
    notes = []
    if run.training.offload.optimizer:
        notes.append(
            "Step times leave out the way of the optimizer's memory from the host and back, which "
            "offload.optimizer has it take."
        )
    if run.training.offload.activations:
        notes.append("Step times leave out the way of activations to the host and back.")
    stages = run.batches.resolve_stages()
    ends = [
        run.batches.count_positions(min(stage.from_step, run.training.steps)) for stage in stages
    ]
    ends.append(run.batches.count_positions(run.training.steps))
    positions = [end - begin for begin, end in itertools.pairwise(ends)]
    stage = stages[positions.index(max(positions))]
    if len(stages) > 1:
        notes.append(
            f"Planned for the batches from step {stage.from_step} on, of the {len(stages)} stages "
            "the one with the most tokens."
        )
    rate = sum(
        share * (each.mean_rate(run.training.steps) if isinstance(each, MaskedLM) else 1.0)
        for share, each in find_parts(run.objective)
    )
    places = compute_widest_row(run.objective, stage.sequence_length)
    if places != stage.sequence_length:
        notes.append(
            f"Planned for rows of {places} places, the widest that objective {run.objective.kind} "
            f"makes of {stage.sequence_length} tokens; tokens a second are places."
        )
    return Subject(
        name=name,
        model=_settle_vocabulary(model, run),
        training=run.training,
        batch=BatchShape(stage.global_batch, places),
        predicted=rate,
        objective=run.objective.kind,
    ), notes


def _settle_vocabulary(model: DecoderConfig, run: Pretraining) -> DecoderConfig:
    """`model` with the vocabulary of the run's tokens, where it names none."""
    if model.vocabulary is not None:
        return model
    if not storage.exists(storage.join(run.tokens, MANIFEST)):
        raise ConfigError(
            f"plan: model.vocabulary is not set, and {run.tokens} has no tokens yet; set it, or "
            "run `trainrig tokenize` first"
        )
    counts = manifest.read_input(run.tokens, "tokenize").counts
    return model.for_tokenizer(int(counts["vocabulary"]))


def build_cluster(wanted: ClusterWanted, offers: Hardware, workers: int) -> Cluster:
    """The devices that are `wanted`, `workers` of them where no number is.

    Raises ConfigError, naming what would work.
    """
    name = _choose_device(wanted, offers)
    device, instance = offers.find_device(name), wanted.instance or offers.find_cheapest(name)
    if device.link is None:
        linked = ", ".join(sorted(n for n, each in offers.devices.items() if each.link))
        raise ConfigError(
            f"plan: the table of hardware names no link of '{name}', and layouts are "
            f"priced by it; add it, or choose --device {linked or 'that has one'}"
        )
    of_a_machine = offers.find_instance(instance).devices if instance else 1
    devices = wanted.devices or (wanted.nodes * of_a_machine if wanted.nodes else workers)
    if wanted.nodes and wanted.devices and wanted.nodes * of_a_machine != wanted.devices:
        raise ConfigError(
            f"plan: --nodes {wanted.nodes} of {of_a_machine} {name} are "
            f"{wanted.nodes * of_a_machine} devices, not {wanted.devices}; leave out one of the two"
        )
    if devices > of_a_machine and devices % of_a_machine:
        below = devices // of_a_machine * of_a_machine
        raise ConfigError(
            f"plan: {devices} {name} are no whole machines of {of_a_machine}; "
            f"{below} or {below + of_a_machine} would do"
        )
    across = None
    if wanted.interconnect is not None:
        across = offers.find_interconnect(wanted.interconnect)
    elif devices > of_a_machine:
        across = offers.find_interconnect(_find_usual_interconnect(instance, offers))
    inside = offers.links[device.link]
    return Cluster(name, device, devices, of_a_machine, inside, across, instance)


def _choose_device(wanted: ClusterWanted, offers: Hardware) -> str:
    if wanted.instance is None:
        return wanted.device or USUAL_DEVICE
    held = offers.find_instance(wanted.instance).device
    if wanted.device not in (None, held):
        raise ConfigError(
            f"plan: --instance {wanted.instance} has devices '{held}', not '{wanted.device}'; "
            "leave out one of the two"
        )
    return held


def _find_usual_interconnect(instance: str | None, offers: Hardware) -> str:
    own = offers.instances[instance].interconnect if instance else None
    if own is None:
        there = ", ".join(n for n, each in offers.links.items() if each.between == "machines")
        raise ConfigError(
            f"plan: the table of hardware does not say what joins machines of {instance}; give "
            f"--interconnect, one of {there}"
        )
    return own


def lay_out(layout: DeviceLayout) -> FSDP | HSDP | DDP:
    """`layout` as the run file has it."""
    degrees = layout.degrees
    axes: dict[str, Any] = {
        axis: {"ranks": getattr(degrees, axis)}
        for axis in ("tensor", "pipeline", "context", "expert")
        if getattr(degrees, axis) > 1
    }
    if "pipeline" in axes:
        axes["pipeline"] |= {"schedule": layout.schedule, "chunks": layout.chunks}
    if "tensor" in axes:
        axes["tensor"]["sequence_parallel"] = layout.in_places
    if "context" in axes:
        axes["context"]["kind"] = "Gathered"  # what the planner counts
    if degrees.replicate == 1:
        return FSDP.model_validate({"reshard": layout.reshard, **axes})
    if degrees.shard * degrees.context * degrees.expert == 1:
        return DDP.model_validate(axes)
    return HSDP.model_validate({"replicas": degrees.replicate, "reshard": layout.reshard, **axes})


def apply_layout(
    run: Pretraining, prediction: StepPrediction, smaller: Sequence[StepPrediction] = ()
) -> Pretraining:
    """`run` with the workers, batches and layout of `prediction`, which the trainer can run, and
    with those of `smaller` to fall back on."""
    layout = prediction.layout
    degrees = layout.degrees
    training = run.training.model_copy(
        update={
            "parallel": lay_out(layout),
            "fallbacks": tuple(
                Fallback(parallel=lay_out(each.layout), recompute=RECOMPUTED[each.layout.recompute])
                for each in smaller
            ),
            "recompute": RECOMPUTED[layout.recompute],
            "virtual_workers": max(run.training.virtual_workers, degrees.data),
        }
    )
    fewest = min((count_unit(each.layout.degrees) for each in smaller), default=degrees.devices)
    micro_batch = layout.micro_batch * degrees.expert  # of all workers that divide its rows
    changes = {
        "workers": (fewest, degrees.devices) if smaller else degrees.devices,
        "batches": run.batches.model_copy(update={"micro_batch": micro_batch}),
        "training": training,
    }
    changed = Pretraining.model_validate(dict(run) | changes)
    changed.training.check_workers(changed.workers)
    return changed


def _describe_fallbacks(run: Pretraining, smaller: Sequence[StepPrediction]) -> Iterator[str]:
    """What the run file falls back on, a line each."""
    found = describe_fallbacks(run.training, run.workers).values()
    for said, each in zip(found, smaller, strict=True):
        yield (
            f"falls back on {said}; {each.seconds.total:.4g} s a step on "
            f"{each.layout.degrees.devices}, {each.memory.total / GIB:.1f} GiB a device"
        )


def _write(path: str, run: Pretraining, found: LayoutPlan) -> list[str]:
    """Write the run file and the page beside it; what to say of them."""
    if found.runnable is None:
        raise ConfigError(f"plan: no run file: {found.warnings[-1]}")
    best = found.runnable.prediction
    smaller = find_fallbacks(found.subject, found.cluster, best.layout)
    try:
        written = apply_layout(run, best, smaller)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"plan: no run file: {said}") from None
    text = to_toml(written).encode()
    if storage.exists(path) and storage.read(path) != text:
        raise ConfigError(f"{path}: is there already, and another; remove it, or choose another")
    # Here, as it draws: a refused plan should not wait for that.
    from trainrig.scaling.layout.layout_page import build_layout_page

    page = f"{path.removesuffix('.toml')}.layouts.html"
    storage.write(path, text)
    storage.write(page, build_layout_page(found, path).encode())
    runs = f"{path}: `trainrig pretrain` runs it; the layouts: {page}"
    return [*_describe_fallbacks(written, smaller), runs]
