"""What is known of a training run before it starts: sizes, operations, memory, time and cost."""

import itertools
from typing import Any

from trainrig import hardware, storage
from trainrig.estimate.busy_workers import busy_share, describe_busy, sizes_after_losses
from trainrig.estimate.cost import Cost, cost
from trainrig.estimate.device_choice import DeviceChoice
from trainrig.estimate.memory import cache_memory
from trainrig.estimate.worker_memory import worker_memory
from trainrig.flops import encoder_decoder_flops, six_n_d, token_flops
from trainrig.manifest import MANIFEST
from trainrig.models.decoder_config import DecoderConfig, count_parameters
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig
from trainrig.objectives import CausalLM, MaskedLM, PrefixLM, SpanCorruption
from trainrig.objectives.contract import find_parts
from trainrig.parallel.pipeline.cut import describe_cut
from trainrig.parallel.pipeline.schedule import idle_share
from trainrig.tokens.tokenizer import TOKENIZER_FILE
from trainrig.train import pretrain
from trainrig.train.run_file import Pretraining
from trainrig.train.worker_bounds import bounds


def estimate_pretraining(run: Pretraining, machine: DeviceChoice) -> dict[str, Any]:
    """Sizes, epochs and what `run` takes of `machine`; without its tokens, what the run file says.

    Raises InputError if its parts do not fit each other or its inputs.
    """
    facts: dict[str, Any] = {"positions": run.batches.positions(run.training.steps)}
    if storage.exists(storage.join(run.tokens, MANIFEST)):
        batches = pretrain.open_batches(run.tokens, run.batches, run.cache)
        epochs = batches.check_epochs(run.training.steps)
        rounded = {f"epochs_of_{source}": round(n, 3) for source, n in epochs.items()}
        model = pretrain.prepare(run).model
        return sizes_of(model) | facts | rounded | _takes(run, model, machine)
    if run.model is not None and run.model.vocabulary is not None:
        return sizes_of(run.model) | facts | _takes(run, run.model, machine)
    missing = storage.join(run.tokens, TOKENIZER_FILE)
    return facts | {"parameters": f"not known before {missing} is there, or model.vocabulary set"}


def _takes(run: Pretraining, model: DecoderConfig, machine: DeviceChoice) -> dict[str, Any]:
    """Operations, memory a device, time, money and energy, for the most workers that `run` may
    have."""
    offers, workers = hardware.load(machine.table), bounds(run.workers).most
    device, compute = machine.named(offers), run.training.precision.peak
    flops = _flops(run, model)
    largest = max(
        worker_memory(
            model,
            run.training,
            workers,
            stage.global_batch,
            stage.micro_batch,
            stage.sequence_length,
        ).total
        for stage in run.batches.resolved()
    )
    taken = cost(flops, offers, device, workers, compute, machine.assumed)
    positions, count = run.batches.positions(run.training.steps), count_parameters(model)
    return {
        "flops": flops,
        "flops_by_6nd": float(six_n_d(count.layers - count.idle, positions)),
        "device": f"{device} x {workers}, at {machine.assumed.utilisation:.0%} of the peak",
        "at_work": _at_work(run, taken),
        "memory_per_device_gib": round(largest / 2**30, 3),
        "cache_of_a_sequence_gib": round(cache_memory(model, model.positions) / 2**30, 3),
        "hours": taken.hours,
        "kwh": taken.kwh,
        **({} if taken.usd is None else {"usd": taken.usd, "rented": _rented(taken)}),
        **({"warning": hardware.NO_BFLOAT16} if _emulated(machine, device, compute) else {}),
        **_stages(run, model),
    }


def _stages(run: Pretraining, model: DecoderConfig) -> dict[str, str]:
    """How a pipeline cuts the layers, and how long its stages wait; {} without one."""
    parallel = run.training.parallel
    if parallel.pipeline is None:
        return {}
    replicas = parallel.data_workers(bounds(run.workers).most)
    batches = run.batches.resolved()
    count = min(each.global_batch // each.micro_batch // replicas for each in batches)
    share = idle_share(parallel.stages, max(count, 1))
    return {
        "stages": describe_cut(model, parallel.stages),
        "bubble": f"{share:.1%} of a step, of {count} micro-batches of a replica",
    }


def _emulated(machine: DeviceChoice, device: str, compute: str) -> bool:
    """Whether a core of this machine would compute in numbers that it has no hardware for."""
    here = machine.device is None and device in (hardware.CPU, hardware.CPU_WITHOUT_BFLOAT16)
    return here and compute == "bfloat16" and not hardware.cpu_has_bfloat16()


def _at_work(run: Pretraining, taken: Cost) -> str:
    """How many of the workers are, or of the replicas that several are together, also without one
    and two of the nodes that are rented; of the stage that keeps the fewest."""
    workers = bounds(run.workers)
    of_a_node = -(-workers.most // taken.machines) if taken.machines else 1
    parallel = run.training.parallel
    left = sizes_after_losses(workers.most, workers.least, of_a_node)
    sizes = [count for each in left if (count := parallel.data_workers(each))]
    virtual = run.training.virtual_workers if run.training.deterministic else None
    stage = min(
        run.batches.resolved(),
        key=lambda each: min(
            busy_share(each.global_batch // each.micro_batch, virtual, size) for size in sizes
        ),
    )
    unit = "workers" if parallel.replica == 1 else "replicas"
    return describe_busy(stage.global_batch, stage.micro_batch, virtual, sizes, unit)


def _rented(taken: Cost) -> str:
    return f"{taken.machines} {taken.instance}, price of {taken.as_of}"


def _flops(run: Pretraining, model: DecoderConfig) -> float:
    """Of all steps, each stage's rows as long as they are; of several objectives, by their
    shares."""
    stages = run.batches.resolved()
    ends = [run.batches.positions(min(stage.from_step, run.training.steps)) for stage in stages]
    ends.append(run.batches.positions(run.training.steps))
    return sum(
        (end - begin)
        * share
        * _position_flops(objective, model, stage.sequence_length, run.training.steps)
        for stage, (begin, end) in zip(stages, itertools.pairwise(ends), strict=True)
        for share, objective in find_parts(run.objective)
    )


def _position_flops(objective: CausalLM, model: DecoderConfig, length: int, steps: int) -> float:
    """Of one position of rows of `length` in a run of `steps`."""
    if isinstance(model, EncoderDecoderConfig) and isinstance(objective, SpanCorruption):
        return encoder_decoder_flops(model, *objective.lengths(length)) / length
    if isinstance(objective, PrefixLM):
        predicted, ahead = objective.trained_share(length), objective.keys_ahead(length)
        return token_flops(model, length, predicted=predicted, keys_ahead=ahead).training
    predicted = objective.mean_rate(steps) if isinstance(objective, MaskedLM) else 1.0
    return token_flops(model, length, predicted=predicted).training


def sizes_of(model: DecoderConfig) -> dict[str, int]:
    """The parameters of `model`."""
    count = count_parameters(model)
    idle = {"parameters_of_a_token": count.active} if count.idle else {}
    return {"parameters": count.total, **idle, "parameters_of_embedding": count.embedding}
