"""Report of `check` on the memory of tuning, with the same fields as for pretraining."""

from collections.abc import Callable, Sequence

from trainrig import hardware
from trainrig.estimate.activations import describe_budget
from trainrig.estimate.device_choice import DeviceChoice
from trainrig.estimate.device_room import describe_memory_shortage
from trainrig.estimate.fallback_facts import describe_fallbacks
from trainrig.estimate.memory import Memory, estimate_cache_memory
from trainrig.estimate.offload import resolve_offload
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.kernels.kernel_choice import (
    CPU_CARD,
    USUAL_GPU,
)
from trainrig.parallel.axes.pipeline_schedule import describe_cut
from trainrig.train.run_file.training_settings import Training
from trainrig.train.run_file.worker_settings import (
    Workers,
    parse_bounds,
)

GIB = 2**30
TuningFacts = dict[str, int | float | str]


def describe_tuning(
    model: DecoderConfig,
    training: Training,
    workers: Workers,
    machine: DeviceChoice,
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
