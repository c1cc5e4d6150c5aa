"""Published runs of large models with their layouts, and the planner's prediction of each.

All runs are predicted with the same constants, with the devices and links that their authors name.
A figure that was published as FLOP/s is converted to seconds per step with the authors' own count
of operations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from trainrig import hardware
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout import planner_terms
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout, RecomputeChoice
from trainrig.estimate.layout.step_prediction import Predictor, StepPrediction
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.optim import AdamW
from trainrig.parallel.layer_compilation import Compile
from trainrig.parallel.precision import Precision
from trainrig.train.run_file.training_settings import Training

LLAMA = "Llama 3 (arXiv:2407.21783), table 4"
MEGATRON = "Narayanan et al. 2021 (arXiv:2104.04473), table 1"
TORCHTITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
MPT = "llm-foundry, scripts/train/benchmarking/README.md"
DEVICES_PER_MACHINE = 8
FLASH_2 = planner_terms.ATTENTION.value  # FlashAttention-2 on an H100, as published
# FlashAttention of 2022 in Triton on an H100, calibrated on rows of 8,192 tokens and more. There
# attention takes up to four fifths of the step. Plans do not use it.
TRITON_2022 = 0.22


@dataclass(frozen=True)
class PublishedRun:
    """Published run of a large model, from one row of a table."""

    name: str
    source: str
    model: DecoderConfig
    device: str
    interconnect: str
    batch: BatchShape
    layout: DeviceLayout
    step_seconds: float  # seconds as published, or computed from the published FLOP/s
    assumed: str = ""  # settings that the source does not state
    compiled: bool = False
    memory_bandwidth: float | None = None  # bytes/s, where the devices differ from the usual ones
    # share of the usual power; the clock follows its cube root (power is C V^2 f, V grows as f)
    power: float = 1.0
    # share of the peak that the attention kernel of the source reaches; None: that of the device
    attention: float | None = None

    @property
    def predicted(self) -> StepPrediction:
        """The planner's prediction for this run."""
        table = hardware.load()
        device = table.find_device(self.device)
        if self.memory_bandwidth is not None:
            device = device.model_copy(update={"bandwidth": self.memory_bandwidth})
        clock = self.power ** (1 / 3)
        slower = {kind: peak * clock for kind, peak in device.flops.items()}
        attention = self.attention or device.attention
        device = device.model_copy(update={"flops": slower, "attention": attention})
        assert device.link is not None, "devices of published runs have links"
        cluster = Cluster(
            self.device,
            device,
            self.layout.degrees.devices,
            DEVICES_PER_MACHINE,
            table.links[device.link],
            table.find_interconnect(self.interconnect),
        )
        training = Training(
            steps=1,
            optimizer=AdamW(),
            precision=Precision(compute="bfloat16"),
            deterministic=False,
            compile=Compile() if self.compiled else None,
        )
        return Predictor(self.model, training, self.batch, cluster).predict(self.layout)

    @property
    def error(self) -> float:
        """Relative error of the predicted speed; 0.1 means that the prediction is 10% too fast."""
        return self.step_seconds / self.predicted.seconds.total - 1


def read_published_runs() -> Iterator[PublishedRun]:
    """Yield all published runs, by source."""
    yield from _list_llama_runs()
    yield from _list_megatron_runs()
    yield from _list_torchtitan_runs()
    yield from _list_mpt_runs()


def _list_llama_runs() -> Iterator[PublishedRun]:
    model = DecoderConfig(preset="llama-3-405b")  # type: ignore[call-arg]
    for devices, data, context, length, sequences, teraflops in (
        (8_192, 64, 1, 8_192, 2_048, 430),
        (16_384, 128, 1, 8_192, 2_048, 400),
        (16_384, 8, 16, 131_072, 128, 380),
    ):
        positions = sequences * length
        # The authors count causal attention as half of all pairs of positions.
        attention = 6 * model.layers * model.shape.heads * model.shape.head_channels * length
        count = count_parameters(model)
        flops = (6 * (count.total - count.embedding) + attention) * positions
        degrees = Degrees(1, data, 8, 16, context)
        yield PublishedRun(
            f"405B, {devices:,} H100, TP8 CP{context} PP16 DP{data}, T {length:,}",
            LLAMA,
            model,
            "h100",
            "roce-3200",
            BatchShape(sequences, length),
            DeviceLayout(degrees, 1, "nothing", "step", "interleaved", 4),
            flops / (devices * teraflops * 1e12),
            "micro-batch 1, 4 stages a device; attention counted causally",
        )


def _list_megatron_runs() -> Iterator[PublishedRun]:
    for size, heads, channels, layers, tensor, pipeline, devices, sequences, teraflops in (
        ("1.7B", 24, 2_304, 24, 1, 1, 32, 512, 137),
        ("3.6B", 32, 3_072, 30, 2, 1, 64, 512, 138),
        ("7.5B", 32, 4_096, 36, 4, 1, 128, 512, 142),
        ("18.4B", 48, 6_144, 40, 8, 1, 256, 1_024, 135),
        ("39.1B", 64, 8_192, 48, 8, 2, 512, 1_536, 138),
        ("76.1B", 80, 10_240, 60, 8, 4, 1_024, 1_792, 140),
        ("145.6B", 96, 12_288, 80, 8, 8, 1_536, 2_304, 148),
        ("310.1B", 128, 16_384, 96, 8, 16, 1_920, 2_160, 155),
        ("529.6B", 128, 20_480, 105, 8, 35, 2_520, 2_520, 163),
        ("1008B", 160, 25_600, 128, 8, 64, 3_072, 3_072, 163),
    ):
        length = 2_048
        entries = 51_200
        pairs = 1 + length / (6 * channels) + entries / (16 * layers * channels)
        flops = 96 * sequences * length * layers * channels**2 * pairs  # equation 3 of the paper
        data = devices // tensor // pipeline
        yield PublishedRun(
            f"{size}, {devices:,} A100, TP{tensor} PP{pipeline} DP{data}",
            MEGATRON,
            _build_gpt(layers, channels, heads, entries, length, "LayerNorm"),
            "a100-80gb",
            "infiniband-hdr",
            BatchShape(sequences, length),
            DeviceLayout(
                Degrees(data, 1, tensor, pipeline),
                1,
                "full",
                "step",
                "1F1B" if pipeline > 1 else None,
            ),
            flops / (devices * teraflops * 1e12),
            "micro-batch 1, plain 1F1B",
        )


def _list_torchtitan_runs() -> Iterator[PublishedRun]:
    small = DecoderConfig(preset="llama-3.1-8b")  # type: ignore[call-arg]
    for devices, compiled, rate in (
        (8, False, 5_762),
        (8, True, 6_667),
        (128, False, 5_605),
        (128, True, 6_514),
    ):
        batch = BatchShape(2 * devices, 8_192)
        yield PublishedRun(
            f"8B, {devices} H100, FSDP{', compiled' if compiled else ''}",
            TORCHTITAN,
            small,
            "h100",
            "roce-3200",
            batch,
            DeviceLayout(Degrees(1, devices), 2, "selective", "layer"),
            batch.global_batch * batch.sequence_length / (rate * devices),
            "500 of 700 W",
            compiled,
            2.4e12,
            500 / 700,
            FLASH_2,
        )
    for size, devices, degrees, rate, schedule, chunks, micro_batch, sequences in (
        ("70b", 256, Degrees(1, 32, 8), 829, None, 1, 16, 512),
        ("405b", 512, Degrees(1, 8, 8, 8), 100, "1F1B", 1, 1, 256),
        ("405b", 512, Degrees(1, 8, 8, 8), 128, "interleaved", 4, 1, 256),
    ):
        preset = "llama-3-405b" if size == "405b" else "llama-3.1-70b"
        batch = BatchShape(sequences, 8_192)
        yield PublishedRun(
            f"{size.upper()}, {devices} H100, FSDP TP8{' PP8 ' + schedule if schedule else ''}, "
            "float8",
            TORCHTITAN,
            DecoderConfig(preset=preset),  # type: ignore[call-arg]
            "h100",
            "roce-3200",
            batch,
            DeviceLayout(degrees, micro_batch, "full", "layer", schedule, chunks),  # type: ignore[arg-type]
            batch.global_batch * batch.sequence_length / (rate * devices),
            "published in float8, predicted in bfloat16; 500 W; T 8,192"
            + (", 4 stages a device" if chunks > 1 else ""),
            True,
            2.4e12,
            500 / 700,
            FLASH_2,
        )


# Layers, channels and heads of MPT models.
MPT_SIZES = {
    "760m": (24, 1_536, 12),
    "1b": (24, 2_048, 16),
    "3b": (32, 2_560, 20),
    "7b": (32, 4_096, 32),
    "13b": (40, 5_120, 40),
    "30b": (48, 7_168, 56),
    "70b": (80, 8_192, 64),
}


def _list_mpt_runs() -> Iterator[PublishedRun]:
    """Yield all rows of the table for H100s in bfloat16."""
    for size, length, devices, micro_batch, micro_batches, recomputation, rate in (
        ("70b", 2_048, 64, 8, 4, "full", 1_039),
        ("70b", 2_048, 32, 2, 16, "full", 882),
        ("30b", 8_192, 8, 1, 21, "full", 1_384),
        ("30b", 4_096, 8, 1, 21, "full", 1_802),
        ("30b", 2_048, 32, 14, 3, "full", 2_308),
        ("30b", 2_048, 16, 10, 3, "full", 2_263),
        ("30b", 2_048, 8, 3, 21, "full", 2_002),
        ("30b", 1_024, 8, 6, 21, "full", 2_084),
        ("13b", 32_768, 8, 1, 3, "full", 1_976),
        ("13b", 16_384, 8, 3, 3, "full", 2_985),
        ("13b", 4_096, 8, 10, 3, "full", 4_717),
        ("13b", 2_048, 64, 2, 1, "nothing", 4_800),
        ("13b", 2_048, 32, 2, 1, "nothing", 4_811),
        ("13b", 2_048, 16, 2, 1, "nothing", 4_767),
        ("13b", 2_048, 8, 2, 1, "nothing", 4_792),
        ("13b", 1_024, 8, 40, 3, "full", 5_502),
        ("7b", 65_536, 8, 1, 2, "full", 1_956),
        ("7b", 32_768, 8, 2, 2, "full", 3_318),
        ("7b", 8_192, 8, 8, 2, "full", 6_935),
        ("7b", 4_096, 8, 16, 2, "full", 8_611),
        ("7b", 2_048, 8, 6, 1, "nothing", 10_643),
        ("7b", 1_024, 8, 64, 2, "full", 10_203),
        ("3b", 65_536, 8, 1, 2, "full", 3_262),
        ("3b", 32_768, 8, 3, 6, "full", 5_873),
        ("3b", 16_384, 8, 1, 6, "nothing", 11_152),
        ("3b", 8_192, 8, 3, 6, "nothing", 16_578),
        ("3b", 4_096, 8, 5, 6, "nothing", 20_964),
        ("3b", 2_048, 64, 6, 3, "nothing", 22_525),
        ("3b", 2_048, 32, 6, 3, "nothing", 23_021),
        ("3b", 2_048, 16, 10, 3, "nothing", 24_142),
        ("3b", 1_024, 8, 20, 6, "nothing", 27_046),
        ("3b", 512, 8, 40, 6, "nothing", 27_965),
        ("1b", 65_536, 8, 1, 2, "full", 5_506),
        ("1b", 32_768, 8, 1, 4, "nothing", 12_025),
        ("1b", 16_384, 8, 2, 4, "nothing", 19_649),
        ("1b", 8_192, 8, 3, 4, "nothing", 29_157),
        ("1b", 4_096, 8, 7, 4, "nothing", 38_535),
        ("1b", 2_048, 64, 20, 1, "nothing", 44_402),
        ("1b", 2_048, 32, 20, 1, "nothing", 45_130),
        ("1b", 2_048, 16, 20, 1, "nothing", 46_037),
        ("1b", 2_048, 8, 14, 1, "nothing", 45_455),
        ("1b", 1_024, 8, 18, 4, "nothing", 48_910),
        ("1b", 512, 8, 56, 4, "nothing", 52_275),
        ("760m", 32_768, 8, 1, 2, "nothing", 16_291),
        ("760m", 16_384, 8, 3, 2, "nothing", 27_815),
        ("760m", 8_192, 8, 6, 2, "nothing", 41_825),
        ("760m", 4_096, 8, 12, 2, "nothing", 55_459),
        ("760m", 2_048, 32, 24, 1, "nothing", 67_971),
        ("760m", 2_048, 16, 24, 1, "nothing", 68_551),
        ("760m", 2_048, 8, 24, 2, "nothing", 63_147),
        ("760m", 1_024, 8, 48, 2, "nothing", 78_581),
        ("760m", 512, 8, 96, 2, "nothing", 83_749),
    ):
        layers, channels, heads = MPT_SIZES[size]
        batch = BatchShape(devices * micro_batch * micro_batches, length)
        chosen: RecomputeChoice = "full" if recomputation == "full" else "nothing"
        yield PublishedRun(
            f"MPT-{size}, {devices} H100, FSDP, T {length:,}",
            MPT,
            _build_gpt(layers, channels, heads, 50_368, length, "LayerNorm"),
            "h100",
            "infiniband-ndr",
            batch,
            DeviceLayout(Degrees(1, devices), micro_batch, chosen, "layer"),
            batch.global_batch * length / (rate * devices),
            "attention in Triton, the default of scripts/train/benchmarking/submit_benchmarks.py",
            attention=TRITON_2022,
        )


@cache
def _build_gpt(
    layers: int, channels: int, heads: int, entries: int, length: int, norm: str
) -> DecoderConfig:
    sizes: dict[str, Any] = {
        "layers": layers,
        "channels": channels,
        "heads": heads,
        "vocabulary": entries,
        "positions": length,
        "norm": {"kind": norm},
        "feedforward": {"kind": "GELU"},
        "position_embedding": {"kind": "LearnedPositions"},
    }
    return DecoderConfig.model_validate(sizes)


def compute_band(runs: Sequence[PublishedRun], share: float = 0.8) -> tuple[float, float]:
    """Return between which shares of the predicted time the middle `share` of `runs` ended.

    Each source has the same weight, whatever its number of rows.
    """
    found = sorted((1 + run.error, run.source) for run in runs)
    sources = [source for _, source in found]
    weights = np.array([1 / sources.count(source) for source in sources])
    below = (np.cumsum(weights) - weights / 2) / weights.sum()
    low, high = np.interp([(1 - share) / 2, (1 + share) / 2], below, [one for one, _ in found])
    return float(low), float(high)


def compute_error_without(run: PublishedRun, term: str) -> float:
    """Return the error of the predicted speed of `run` if `term` of StepSeconds is left out."""
    seconds = replace(run.predicted.seconds, **{term: 0.0})
    rest = planner_terms.REST.value * seconds.explained
    return run.step_seconds / replace(seconds, rest=rest).total - 1


def format_table_rows(runs: Sequence[PublishedRun]) -> Iterator[str]:
    """Yield one line of Markdown for each run.

    Its columns are the published and the predicted seconds of a step, the published and the
    predicted utilisation of the peak (MFU), and the error of the predicted speed.
    """
    for run in runs:
        found = run.predicted
        theirs = found.flops / (run.step_seconds * found.peak)
        yield (
            f"| {run.name} | {run.step_seconds:.3g} | {found.seconds.total:.3g} | {theirs:.1%} | "
            f"{found.mfu:.1%} | {run.error:+.0%} |"
        )
