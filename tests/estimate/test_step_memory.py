"""Estimated memory of a training step, by formula and compared with real steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.one_batch import OneBatch, draw_micro_batch

from trainrig.estimate import activation_bytes
from trainrig.estimate.activation_bytes import estimate_per_token
from trainrig.estimate.fitting_layouts import (
    BatchShape,
    build_memory_table,
)
from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.models.decoder import Decoder, DecoderConfig, count_parameters, initialise
from trainrig.objectives import chunked_head
from trainrig.optim import Constant
from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.parallel.recompute import Full, Selective
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import TrainingJob

MODEL = DecoderConfig(layers=4, channels=128, heads=4, vocabulary=512, positions=128)
LARGE = DecoderConfig(layers=32, channels=4096, heads=32, vocabulary=32_768)


@pytest.fixture
def peak(measure_peak: Callable[..., int]) -> Callable[..., int]:
    def measure(training: Training, rows: int, count: int, length: int = 128) -> int:
        batches = OneBatch(draw_micro_batch(rows, length, 512), count)
        return measure_peak(
            TrainingJob(
                folder="",
                model=MODEL,
                training=training,
                make_batches=lambda: batches,
                tokenizer="",
            )
        )

    return measure


def test_a_real_step_takes_the_estimated_memory(peak: Callable[..., int]) -> None:
    """Check one setting; tests/benchmarks/test_step_memory.py checks the others."""
    training = Training(
        steps=10, schedule=Constant(warmup=0), deterministic=False, recompute=Full()
    )
    estimated = estimate_step_memory(MODEL, training, 1, 16, 8, 128).total
    assert estimated == pytest.approx(peak(training, rows=8, count=2), rel=0.12)


def test_an_exact_step_holds_the_estimated_partial_sums(
    peak: Callable[..., int],
) -> None:
    """Eight virtual workers keep three partial sums that wait for their other half.

    The tokens are so few that weights, gradients and their sums dominate. docs/training.md lists
    the same terms.
    """
    training = Training(steps=10, schedule=Constant(warmup=0), virtual_workers=8)
    estimated = estimate_step_memory(MODEL, training, 1, 8, 1, 8).total
    assert estimated == pytest.approx(peak(training, rows=1, count=8, length=8), rel=0.12)


def states(parallel: Any, workers: int) -> float:
    training = Training(steps=1, parallel=parallel, deterministic=False)
    memory = estimate_step_memory(LARGE, training, workers, 64, 1, 2048)
    return memory.weights + memory.optimizer


def test_slices_are_of_the_states() -> None:
    total = count_parameters(LARGE).total
    assert states(DDP(), 8) == 12 * total
    assert states(FSDP(), 8) == 12 * total / 8
    assert states(HSDP(replicas=4), 8) == 12 * total / 2


def test_recomputed_activations_are_not_kept() -> None:
    kept = [
        estimate_step_memory(
            LARGE, Training(steps=1, recompute=again, deterministic=False), 8, 8, 1, 2048
        ).activations
        for again in (None, Selective(), Full(every=2), Full())
    ]
    assert kept[0] > kept[1] > kept[2] > kept[3] > 0


def compare_kept(changes: dict[str, Any]) -> tuple[float, float]:
    """Return the estimated and the real bytes per token that a changed `MODEL` keeps."""
    config = DecoderConfig.model_validate(MODEL.model_dump() | changes)
    model = Decoder(config)
    kept = {}
    initialise(model, 0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(1, 64, dtype=torch.int64))
    estimated, _ = estimate_per_token(config, Training(steps=1))
    return estimated, sum(size for _, size in kept.values()) / 64


@pytest.mark.parametrize("heads", [{}, {"kv_heads": 2, "head_channels": 48}])
def test_a_gates_estimate_equals_autograds_memory(heads: dict[str, int]) -> None:
    (plain, plain_kept) = compare_kept(heads)
    (gated, gated_kept) = compare_kept(heads | {"attention": {"kind": "GatedAttention"}})
    assert gated - plain == gated_kept - plain_kept > 0


EXPERTS = {"kind": "MixtureOfExperts", "experts": 4, "active": 2, "shared_experts": 1}
LATENT = {
    "kind": "LatentAttention", "latent_channels": 24, "rotated_channels": 8, "value_channels": 12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"feedforward": {"kind": "ClampedSwiGLU"}}),
        ({}, {"feedforward": {"kind": "GEGLU"}}),
        ({"feedforward": EXPERTS}, {"feedforward": EXPERTS | {"shared_gate": True}}),
        ({"feedforward": EXPERTS}, {"feedforward": EXPERTS, "biases": {"feedforward": True}}),
        (
            {"feedforward": EXPERTS},
            {"feedforward": EXPERTS | {"network": {"kind": "ClampedSwiGLU"}}},
        ),
        (
            {"feedforward": EXPERTS},
            {
                "feedforward": EXPERTS
                | {"router_bias": True, "groups": {"count": 2, "active": 1, "best": 1}}
            },
        ),
    ],
)
def test_a_parts_estimate_equals_autograds_memory(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    (plain, plain_kept) = compare_kept(before)
    (changed, changed_kept) = compare_kept(after)
    assert changed - plain == changed_kept - plain_kept


@pytest.mark.parametrize("own", [{}, {"query_channels": 40}, {"value_channels": 16}])
def test_latent_attentions_estimate_is_near_autograds_memory(own: dict[str, int]) -> None:
    """The difference is in the rotary tables, and in one number for each norm and token."""
    (plain, plain_kept) = compare_kept({})
    (latent, latent_kept) = compare_kept({"attention": LATENT | own})
    tables = 2 * 4 * (MODEL.shape.head_channels - 8)
    scales = 4 * (2 if "query_channels" in own else 1) * MODEL.layers
    assert latent - plain == latent_kept - plain_kept + tables - scales


def test_memory_falls_with_each_stage() -> None:
    rows = {
        row.layout: row
        for row in build_memory_table(LARGE, Training(steps=1), BatchShape(64, 2048), 1, 8)
    }
    assert [row.offered for row in rows.values()] == [True, False, False, True, True, True, True]
    for again in ("nothing", "selective", "full"):
        column = [rows[stage].bytes_by_recompute[again] for stage in
                  ("0 (DDP)", "1", "2", "3 (FSDP)", "3 (FSDP, by layer)",
                   "3 (FSDP, by layer and micro-batch)")]  # fmt: skip
        assert column == sorted(column, reverse=True)


def test_the_block_of_logits_equals_the_heads():
    assert activation_bytes.HEAD_BLOCK == chunked_head.BLOCK_ELEMENTS_ELSEWHERE
