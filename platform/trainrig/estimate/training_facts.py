"""Report before a training run: sizes, operations, memory, time and cost."""

import itertools
from typing import Any

from trainrig import hardware, storage
from trainrig.estimate.activations import describe_budget
from trainrig.estimate.busy_workers import (
    compute_busy_share,
    describe_busy,
    list_sizes_after_losses,
)
from trainrig.estimate.cost import Cost, estimate_cost
from trainrig.estimate.device_choice import DeviceChoice
from trainrig.estimate.device_room import describe_memory_shortage
from trainrig.estimate.fallback_facts import describe_fallbacks
from trainrig.estimate.masks import RowMasks
from trainrig.estimate.memory import estimate_cache_memory
from trainrig.estimate.objective_flops import count_position_flops
from trainrig.estimate.offload import resolve_offload
from trainrig.estimate.row_facts import describe_rows
from trainrig.estimate.worker_memory import estimate_worker_memory
from trainrig.flops import count_flops_6nd
from trainrig.manifest import MANIFEST
from trainrig.models.architecture.decoder_config import (
    DecoderConfig,
    count_parameters,
)
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.kernels.kernel_choice import (
    CPU_CARD,
    USUAL_GPU,
)
from trainrig.objectives.denoising.row_shapes import compute_widest_row
from trainrig.parallel.axes.pipeline_schedule import compute_idle_share, describe_cut
from trainrig.tokens.tokenizer import TOKENIZER_FILE
from trainrig.train import pretrain
from trainrig.train.run_file.run_file_checks import check_sums
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training
from trainrig.train.run_file.worker_settings import parse_bounds


def estimate_pretraining(run: Pretraining, machine: DeviceChoice) -> dict[str, Any]:
    """Return the sizes, the epochs and the cost of `run` on `machine`, for `check`.

    Without the run's tokens, only facts that the run file determines are returned. Raises
    InputError if the parts of the run file do not fit each other or the inputs.
    """
    stages = run.batches.resolve_stages()
    counts = [stage.global_batch // stage.micro_batch for stage in stages]
    check_sums(run.training, run.workers, counts)
    facts: dict[str, Any] = {"positions": run.batches.count_positions(run.training.steps)}
    facts |= describe_rows(run.objective, run.batches)
    if storage.exists(storage.join(run.tokens, MANIFEST)):
        batches = pretrain.open_batches(run.tokens, run.batches, run.cache)
        epochs = batches.check_epochs(run.training.steps)
        rounded = {f"epochs_of_{source}": round(n, 3) for source, n in epochs.items()}
        model = pretrain.prepare(run).model
        return describe_sizes(model) | facts | rounded | _estimate_needs(run, model, machine)
    if run.model is not None and run.model.vocabulary is not None:
        return describe_sizes(run.model) | facts | _estimate_needs(run, run.model, machine)
    missing = storage.join(run.tokens, TOKENIZER_FILE)
    return facts | {"parameters": f"unknown until {missing} exists or model.vocabulary is set"}


def _estimate_needs(
    run: Pretraining, model: DecoderConfig, machine: DeviceChoice
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
    taken = estimate_cost(flops, offers, device, workers, compute, machine.assumed)
    positions = run.batches.count_positions(run.training.steps)
    count = count_parameters(model)
    return {
        "flops": flops,
        "flops_by_6nd": float(count_flops_6nd(count.layers - count.idle, positions)),
        "device": f"{device} x {workers}, at {machine.assumed.utilisation:.0%} of the peak",
        "compute": training.precision.compute,
        "at_work": _describe_at_work(run, taken),
        "memory_per_device_gib": round(largest / 2**30, 3),
        "cache_of_a_sequence_gib": round(estimate_cache_memory(model, model.positions) / 2**30, 3),
        "hours": taken.hours,
        "kwh": taken.kwh,
        **({} if taken.usd is None else {"usd": taken.usd, "rented": _describe_rental(taken)}),
        **({"warning": hardware.NO_BFLOAT16} if machine.is_emulated(device, compute) else {}),
        **describe_memory_shortage(offers, device, largest, training),
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


def _describe_at_work(run: Pretraining, taken: Cost) -> str:
    """Return the busy share of workers or replicas, also after the loss of one and two nodes.

    It is that of the batch stage with the lowest share.
    """
    workers = parse_bounds(run.workers)
    of_a_node = -(-workers.most // taken.machines) if taken.machines else 1
    parallel = run.training.parallel
    left = list_sizes_after_losses(workers.most, workers.least, of_a_node)
    sizes = [count for size in left if (count := parallel.data_workers(size))]
    stage = min(
        run.batches.resolve_stages(),
        key=lambda candidate: min(
            compute_busy_share(candidate.global_batch // candidate.micro_batch, size)
            for size in sizes
        ),
    )
    unit = "workers" if parallel.replica == 1 else "replicas"
    return describe_busy(stage.global_batch, stage.micro_batch, sizes, unit)


def _describe_rental(taken: Cost) -> str:
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
