"""Reports of `trainrig check` before a training or tuning run: sizes, memory, time and cost.

A report also describes the rows that the objectives make (places, their kinds, padding), and the
layouts that the run falls back to with fewer workers.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from trainrig import hardware, storage
from trainrig.errors import ClusterError
from trainrig.estimate import cost_estimate
from trainrig.estimate.activation_bytes import RowMasks, describe_budget
from trainrig.estimate.held_parameters import resolve_offload
from trainrig.estimate.layout import run_placement
from trainrig.estimate.layout.cluster_choice import build_rented_cluster
from trainrig.estimate.layout.run_subject import build_run_subject, list_uncounted_copies
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.step_memory import RESERVE, Memory, estimate_cache_memory
from trainrig.flops import count_flops_6nd, count_position_flops
from trainrig.hardware import Hardware
from trainrig.manifest import MANIFEST
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.kernels.kernel_choice import CPU_CARD, USUAL_GPU
from trainrig.objectives.denoising.row_shapes import compute_widest_row
from trainrig.objectives.objective_settings import Mixed, ObjectiveSettings
from trainrig.parallel.activation_budget import GIB
from trainrig.parallel.axes.pipeline_schedule import compute_idle_share, describe_cut
from trainrig.parallel.recompute import Full
from trainrig.tokens.rows.batch_stages import BatchSettings, StageSizes
from trainrig.tokens.tokenizer import TOKENIZER_FILE
from trainrig.train import pretrain
from trainrig.train.run_file.run_file_checks import check_sums
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training
from trainrig.train.run_file.worker_settings import Workers, parse_bounds


def describe_fallbacks(
    training: Training,
    workers: int | tuple[int, int],
    find_memory: Callable[[Training, int], float] | None = None,
) -> dict[str, str]:
    """Return a description of each fallback layout with the numbers of workers that it is for.

    `find_memory` gives the bytes of a device; they are reported for the fewest workers, which hold
    the most each. {} without fallback layouts.
    """
    found = dict[str, str]()
    sizes = training.bound_workers(workers).list_sizes()
    for number, laid_out in enumerate(training.layouts[1:], 1):
        least = sizes[number][0]
        most = sizes[number][-1]
        counts = f"{least} to {most} workers" if most > least else f"{least} workers"
        said = f"{laid_out.parallel.describe()}; on {counts if most > 1 else '1 worker'}"
        if laid_out.recompute:
            said += f"; recompute {laid_out.recompute.kind}"
        if find_memory:
            said += f"; {find_memory(laid_out, least) / GIB:.3f} GiB per device"
        found[f"fallback_{number}"] = said
    return found


def describe_memory_shortage(
    offers: Hardware, device: str, needed: float, training: Training
) -> dict[str, str]:
    """Return a warning if an accelerator `device` has less than `needed` bytes, or {}.

    The warning lists the settings of `training` that could reduce the need. CPUs never give one,
    because their memory is divided by the machine.
    """
    there = offers.devices[device]
    room = there.memory * (1 - RESERVE)
    if not there.accelerator or needed <= room:
        return {}
    offload = training.offload
    again = training.recompute
    sliced = training.parallel.sharded
    early = training.parallel.model_copy(update={"reduce": "micro_batch"})
    exact = not training.deterministic or early.inexact_by() is None
    less = (
        (sliced and training.parallel.reshard != "layer", "parallel.reshard = 'layer'"),
        (
            sliced and exact and not training.parallel.by_micro_batch,
            "parallel.reduce = 'micro_batch'",
        ),
        (not isinstance(again, Full) or again.every > 1, "recompute.kind = 'Full'"),
        (not offload.optimizer, "offload.optimizer"),
        (not offload.activations and again is None, "offload.activations"),
    )
    ways = [*(name for helps, name in less if helps), "a smaller micro_batch", "more workers"]
    return {
        "too_little_memory": f"this run needs {needed / GIB:.1f} GiB, but {device} has "
        f"{there.memory / GIB:.1f} GiB, of which {RESERVE:.0%} stay free; try "
        f"{', '.join(ways[:-1])} or {ways[-1]}"
    }


def describe_rows(objective: ObjectiveSettings, batches: BatchSettings) -> dict[str, str]:
    """Return a description of each kind of row that `objective` makes, at each sequence length.

    The share of padding is included if there is any. {} if rows stay as they are.
    """
    stages = batches.resolve_stages()
    lengths = sorted({stage.sequence_length for stage in stages})
    named = {"rows": objective}
    if isinstance(objective, Mixed):
        named = {f"rows_of_{part.name}": part.objective for part in objective.list_named()}
    described = {
        name: "; ".join(said for length in lengths if (said := part.describe_row(length)))
        for name, part in named.items()
    }
    described = {name: said for name, said in described.items() if said}
    if all(part.row_shape is None for part in named.values()):
        return described
    share = max(compute_padded_share(objective, stage) for stage in stages)
    apart = (
        ", plus the padding of rows with fewer documents" if batches.attend == "document" else ""
    )
    return described | {"padded": f"{share:.1%} of positions{apart}"}


def compute_padded_share(objective: ObjectiveSettings, stage: StageSizes) -> float:
    """Return the expected share of the places of `stage` that is padding.

    Rows are padded to the widest row of their micro-batch. 0 if all rows of a micro-batch are of
    one objective.
    """
    if not isinstance(objective, Mixed) or objective.one_per_micro_batch:
        return 0.0
    widths = [
        (share, part.compute_widths(stage.sequence_length)) for share, part in objective.parts()
    ]
    filled = sum(share * sum(of_row) for share, of_row in widths)
    places = sum(
        _compute_mean_widest([(share, of_row[side]) for share, of_row in widths], stage.micro_batch)
        for side in (0, 1)
    )
    return 1 - filled / places


def _compute_mean_widest(widths: Sequence[tuple[float, int]], rows: int) -> float:
    """Return the mean width of the widest of `rows` rows, given the share of each width."""
    mean = 0.0
    below = 0.0
    up_to = 0.0
    for share, width in sorted(widths, key=lambda pair: pair[1]):
        up_to = min(up_to + share, 1.0)
        mean += width * (up_to**rows - below)
        below = up_to**rows
    return mean


def estimate_pretraining(run: Pretraining, machine: cost_estimate.DeviceChoice) -> dict[str, Any]:
    """Return the sizes, the epochs and the cost of `run` on `machine`, for `check`.

    Without the run's tokens, only facts that the run file determines are returned. Raises
    InputError if the parts of the run file do not fit each other or the inputs.
    """
    stages = run.batches.resolve_stages()
    counts = [stage.global_batch // stage.micro_batch for stage in stages]
    check_sums(run.training, run.workers, counts)
    facts: dict[str, Any] = {"positions": run.batches.count_positions(run.training.steps)}
    facts |= describe_rows(run.objective, run.batches)
    if _is_readable(storage.join(run.tokens, MANIFEST)):
        batches = pretrain.open_batches(run.tokens, run.batches, run.cache)
        epochs = batches.check_epochs(run.training.steps)
        rounded = {f"epochs_of_{source}": round(n, 3) for source, n in epochs.items()}
        model = pretrain.prepare(run).model
        return describe_sizes(model) | facts | rounded | _estimate_needs(run, model, machine)
    if run.model is not None and run.model.vocabulary is not None:
        return describe_sizes(run.model) | facts | _estimate_needs(run, run.model, machine)
    missing = storage.join(run.tokens, TOKENIZER_FILE)
    return facts | {"parameters": f"unknown until {missing} exists or model.vocabulary is set"}


def _is_readable(path: str) -> bool:
    """Return whether the file `path` exists; False if it is in a bucket that refuses this machine.

    `check` names such a bucket among the problems, and still prints what the run file determines.
    """
    try:
        return storage.exists(path)
    except ClusterError:
        return False


def _estimate_needs(
    run: Pretraining, model: DecoderConfig, machine: cost_estimate.DeviceChoice
) -> dict[str, Any]:
    """Return the operations, memory per device, time, money and energy of `run`.

    They are for the largest number of workers that `run` may have.
    """
    offers = hardware.load(machine.table)
    workers = parse_bounds(run.workers).most
    device = machine.resolve_name(offers)
    training = run.training.resolve(offers.devices[device].computes_narrow, compiles=False)
    compute = training.precision.peak
    flops = _count_flops(run, model)
    on_cpu = device in hardware.CPUS
    training = resolve_offload(training, on_cpu)
    training.check_attention(model, CPU_CARD if on_cpu else USUAL_GPU)

    def find_memory(laid_out: Training, count: int) -> float:
        return max(
            estimate_worker_memory(
                model,
                laid_out,
                count,
                stage.global_batch,
                stage.micro_batch,
                compute_widest_row(run.objective, stage.sequence_length),
                RowMasks.of(run.objective, run.batches.attend == "document", on_cpu),
            ).total
            for stage in run.batches.resolve_stages()
        )

    largest = find_memory(training, workers)
    subject = build_run_subject(run, model, training, on_cpu, "check")
    cluster = build_rented_cluster(device, offers, workers)
    seconds = run_placement.predict_own_seconds(subject, cluster, run.batches.micro_batch)
    taken = cost_estimate.estimate_cost(
        flops, offers, device, workers, compute, machine.assumed, seconds=seconds
    )
    uncounted = list_uncounted_copies(training)
    reached = flops / (taken.hours * 3600 * workers * offers.devices[device].find_peak(compute))
    positions = run.batches.count_positions(run.training.steps)
    count = count_parameters(model)
    return {
        "flops": flops,
        "flops_by_6nd": float(count_flops_6nd(count.layers - count.idle, positions)),
        "device": f"{device} x {workers}, at {reached:.0%} of the peak",
        "compute": training.precision.compute,
        "at_work": _describe_at_work(run, taken),
        "memory_per_device_gib": round(largest / GIB, 3),
        "cache_of_a_sequence_gib": round(estimate_cache_memory(model, model.positions) / GIB, 3),
        **_describe_hours(taken),
        **({"hours_leave_out": "; ".join(uncounted)} if uncounted else {}),
        "kwh": taken.kwh,
        **({} if taken.usd is None else {"usd": taken.usd, "rented": _describe_rental(taken)}),
        **({"warning": hardware.NO_BFLOAT16} if machine.is_emulated(device, compute) else {}),
        **describe_memory_shortage(offers, device, largest, training),
        **run_placement.describe_what_fits(subject, cluster, largest),
        **describe_budget(model, training, pretrain.count_tokens_at_once(run)),
        **_describe_stages(run, model),
        **describe_fallbacks(training, run.workers, find_memory),
    }


def _describe_stages(run: Pretraining, model: DecoderConfig) -> dict[str, str]:
    """Return how a pipeline divides the layers and how long its stages wait.

    {} without a pipeline.
    """
    parallel = run.training.parallel
    if parallel.pipeline is None:
        return {}
    replicas = parallel.data_workers(parse_bounds(run.workers).most)
    batches = run.batches.resolve_stages()
    count = min(stage.global_batch // stage.micro_batch // replicas for stage in batches)
    share = compute_idle_share(parallel.pipeline_ranks, max(count, 1), parallel.pipeline_chunks)
    return {
        "stages": describe_cut(model, parallel.pipeline_ranks, parallel.pipeline_chunks),
        "bubble": f"{share:.1%} of a step, for {count} micro-batches per replica",
    }


def describe_cost(
    flops: float, training: Training, workers: Workers, machine: cost_estimate.DeviceChoice
) -> dict[str, Any]:
    """Return the operations, hours, energy and price of `flops` on the most of `workers`."""
    offers = hardware.load(machine.table)
    device = machine.resolve_name(offers)
    training = training.resolve(offers.devices[device].computes_narrow, compiles=False)
    most = parse_bounds(workers).most
    taken = cost_estimate.estimate_cost(
        flops, offers, device, most, training.precision.peak, machine.assumed
    )
    return {
        "flops": flops,
        **_describe_hours(taken),
        "kwh": taken.kwh,
        **({} if taken.usd is None else {"usd": taken.usd, "rented": _describe_rental(taken)}),
    }


def _describe_hours(taken: cost_estimate.Cost) -> dict[str, Any]:
    """Return the hours of a run, and the hours that published runs of such an estimate took."""
    if taken.hours_between is None:
        return {"hours": taken.hours}
    low, high = taken.hours_between
    return {"hours": taken.hours, "hours_between": [low, high]}


def _describe_at_work(run: Pretraining, taken: cost_estimate.Cost) -> str:
    """Return the busy share of workers or replicas, also after the loss of one and two nodes.

    It is that of the batch stage with the lowest share.
    """
    workers = parse_bounds(run.workers)
    of_a_node = -(-workers.most // taken.machines) if taken.machines else 1
    parallel = run.training.parallel
    left = cost_estimate.list_sizes_after_losses(workers.most, workers.least, of_a_node)
    sizes = [count for size in left if (count := parallel.data_workers(size))]
    stage = min(
        run.batches.resolve_stages(),
        key=lambda candidate: min(
            cost_estimate.compute_busy_share(candidate.global_batch // candidate.micro_batch, size)
            for size in sizes
        ),
    )
    unit = "workers" if parallel.replica == 1 else "replicas"
    return cost_estimate.describe_busy(stage.global_batch, stage.micro_batch, sizes, unit)


def _describe_rental(taken: cost_estimate.Cost) -> str:
    return f"{taken.machines} {taken.instance}, price of {taken.as_of}"


def _count_flops(run: Pretraining, model: DecoderConfig) -> float:
    """Return the operations of all steps, with the row length of each stage."""
    stages = run.batches.resolve_stages()
    ends = [
        run.batches.count_positions(min(stage.from_step, run.training.steps)) for stage in stages
    ]
    ends.append(run.batches.count_positions(run.training.steps))
    return sum(
        (end - begin)
        * count_position_flops(run.objective, model, stage.sequence_length, run.training.steps)
        for stage, (begin, end) in zip(stages, itertools.pairwise(ends), strict=True)
    )


def describe_adapters(lora: LoRA | None, model: DecoderConfig) -> dict[str, str]:
    """Return the layers of `model` that get an adapter; {} if it is trained whole."""
    return {} if lora is None else {"adapters": lora.describe_choice(model)}


def describe_sizes(model: DecoderConfig) -> dict[str, int]:
    """Return the numbers of parameters of `model`, by part."""
    count = count_parameters(model)
    idle = {"parameters_of_a_token": count.active} if count.idle else {}
    beside = {"parameters_of_generator": count.generator} if count.generator else {}
    if count.further_heads:
        beside["parameters_of_further_heads"] = count.further_heads
    return {"parameters": count.total, **beside, **idle, "parameters_of_embedding": count.embedding}


TuningFacts = dict[str, int | float | str]


def describe_tuning(
    model: DecoderConfig,
    training: Training,
    workers: Workers,
    machine: cost_estimate.DeviceChoice,
    find_memory: Callable[[Training, int, bool], Memory],
    tokens: int,
    lora: LoRA | None = None,
    left_out: Sequence[str] = (),
) -> TuningFacts:
    """Return what a device of `machine` needs with the most workers, and in fallback layouts.

    `find_memory` gives the memory of a layout and a number of workers, on a CPU or not. `tokens` is
    the size of the largest micro-batch. `left_out` lists what is not counted.
    """
    offers = hardware.load(machine.table)
    most = parse_bounds(workers).most
    device = machine.resolve_name(offers)
    training = training.resolve(offers.devices[device].computes_narrow, compiles=False)
    on_cpu = device in hardware.CPUS
    training = resolve_offload(training, on_cpu)
    training.check_attention(model, CPU_CARD if on_cpu else USUAL_GPU)

    def find_bytes(laid_out: Training, count: int) -> float:
        return find_memory(laid_out, count, on_cpu).total

    needed = find_bytes(training, most)
    facts: TuningFacts = {
        "device": f"{device} x {most}",
        "compute": training.precision.compute,
        "memory_per_device_gib": round(needed / GIB, 3),
        **describe_memory_shortage(offers, device, needed, training),
        **describe_budget(model, training, tokens, lora),
    }
    if left_out:
        facts["memory_leaves_out"] = "; ".join(left_out)
    speaks = model.head == "tokens" and not model.bidirectional
    if speaks and not isinstance(model, EncoderDecoderConfig):
        cache = estimate_cache_memory(model, model.positions)
        facts["cache_of_a_sequence_gib"] = round(cache / GIB, 3)
    if machine.is_emulated(device, training.precision.peak):
        facts["warning"] = hardware.NO_BFLOAT16
    parallel = training.parallel
    if parallel.pipeline is not None:
        facts["stages"] = describe_cut(model, parallel.pipeline_ranks, parallel.pipeline_chunks)
    return facts | describe_fallbacks(training, workers, find_bytes)
