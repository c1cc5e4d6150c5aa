"""Implementation of `trainrig plan --layout`: the fastest layouts, and a run file of the best."""

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from trainrig import config, hardware, manifest, storage
from trainrig.config import to_toml
from trainrig.errors import ConfigError
from trainrig.estimate.fitting_layouts import RECOMPUTED
from trainrig.estimate.held_parameters import resolve_offload
from trainrig.estimate.layout.cluster_choice import ClusterWanted, build_cluster
from trainrig.estimate.layout.layout_fallbacks import count_unit, find_fallbacks
from trainrig.estimate.layout.layout_search import LayoutPlan, search
from trainrig.estimate.layout.layout_settings import build_parallel, read_layout
from trainrig.estimate.layout.run_subject import (
    FixedDegrees,
    Subject,
    build_run_subject,
    check_is_planned,
    list_uncounted_copies,
)
from trainrig.estimate.layout.step_prediction import StepPrediction
from trainrig.estimate.training_check import describe_fallbacks
from trainrig.manifest import MANIFEST
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.parallel.activation_budget import GIB
from trainrig.parallel.layout import Fallback
from trainrig.scaling.plan import layout_text
from trainrig.scaling.plan.plan_verb import check_run_file
from trainrig.storage.writable import check_file
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.worker_settings import parse_bounds


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
    own = None
    if cluster.devices == parse_bounds(run.workers).most:
        own = read_layout(on_devices, cluster.devices, run.batches.micro_batch)
    found = search(subject, cluster, fixed, offers, own)
    lines = [*notes, *layout_text.describe_layouts(found)]
    if out is not None:
        lines += _write(out, run, found)
    return found, lines


def build_subject(run: Pretraining, name: str) -> tuple[Subject, list[str]]:
    """Return `run` as the subject of a layout search, and notes for the user.

    Raises ConfigError if the run file has no model, or a model that layouts cannot be planned for.
    """
    model = run.model
    if model is None:
        raise ConfigError(
            f"plan: {name}: [model] is missing, and a layout depends on its sizes; add it"
        )
    on_cpu = False  # only accelerators have links
    subject = build_run_subject(run, _settle_vocabulary(model, run), run.training, on_cpu, name)
    check_is_planned(subject)
    return subject, list(_list_notes(run, subject))


def _list_notes(run: Pretraining, subject: Subject) -> Iterator[str]:
    """Yield notes on the costs that step times leave out, and on the rows of the plan."""
    for copies in list_uncounted_copies(run.training):
        yield f"Step times do not include {copies}."
    stages = run.batches.resolve_stages()
    if len(stages) > 1:
        number = next(n for n, part in enumerate(subject.stages) if part.batch == subject.batch)
        yield (
            f"Step times are for the batches from step {stages[number].from_step} on: the stage "
            f"with the most tokens of {len(stages)} stages. Memory and cost count all stages."
        )
    places = subject.batch.sequence_length
    if places not in {stage.sequence_length for stage in stages}:
        yield (
            f"The plan is for rows of {places} positions, the widest that the objective "
            f"{run.objective.kind} makes from {run.batches.sequence_length} tokens. Tokens per "
            "second count positions."
        )


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
    check_run_file(path, written)
    # Imported here because plotting is slow to import, and a refused plan needs none.
    from trainrig.scaling.plan.layout_page import build_layout_page

    page = f"{path.removesuffix('.toml')}.layouts.html"
    storage.write(path, to_toml(written).encode())
    storage.write(page, build_layout_page(found, path).encode())
    runs = f"run file: {path}; start it with `trainrig pretrain`. Page of the layouts: {page}"
    return [*_describe_fallbacks(written, smaller), runs]
