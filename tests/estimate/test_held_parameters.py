"""Device memory of models that are fine-tuned, compared with hand counts.

Shapes: C = 64 channels, F = 128 feed-forward channels, 4 heads and 2 key heads of 16 channels each,
V = 320 vocabulary entries.
"""

import pytest

from trainrig.estimate.activation_bytes import estimate_at_head, estimate_per_token
from trainrig.estimate.held_parameters import (
    EndParts,
    ModelBeside,
    ModelRole,
    hold_beside,
    hold_model,
)
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.rollout_check import estimate_batch_making_memory
from trainrig.estimate.step_memory import PRETRAINING, TuningStep, estimate_step_memory
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.decoder import DecoderConfig, count_parameters
from trainrig.models.lora import count_adapter
from trainrig.optim import SGD, AdamW
from trainrig.rl.reinforcement_run_file import SampledRows
from trainrig.train.run_file.training_settings import Training

MODEL = DecoderConfig(
    layers=2, channels=64, heads=4, kv_heads=2, feedforward_channels=128, vocabulary=320,
    positions=64, tie_embeddings=False,
)  # fmt: skip
TRAINING = Training(steps=1, deterministic=False, optimizer=AdamW())
TABLE = 320 * 64
MATRICES = 2 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 128)  # elements of all layers' matrices
NORMS = 5 * 64
# Rank 4: A and B for query and output; for key and value; for gate, up and down.
ADAPTER = 2 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128))
ROWS = 2 * (64 * 2 + 32 * 2 + 128 * 2 + 64) + 320  # rows that have their own scale in int8
LORA = LoRA(rank=4)


def step(tuning=PRETRAINING, training=TRAINING, workers=1, micro_batch=2):
    return estimate_step_memory(MODEL, training, workers, 2 * micro_batch, micro_batch, 16,
                                tuning=tuning)  # fmt: skip


def test_full_fine_tuning_holds_the_memory_of_pretraining():
    total = 2 * TABLE + MATRICES + NORMS
    assert total == count_parameters(MODEL).total
    found = step()
    assert (found.weights, found.optimizer, found.summing) == (4 * total, 8 * total, 4 * total)
    assert found.gathered == found.gradients == 0  # two micro-batches are added up in place


@pytest.mark.parametrize(
    ("base", "frozen"),
    [
        ("float32", 4 * (2 * TABLE + MATRICES + NORMS)),
        ("bfloat16", 2 * (2 * TABLE + MATRICES) + 4 * NORMS),
        # The embedding table stays in bfloat16. The head's table is int8, like other matrices.
        ("int8", 2 * TABLE + TABLE + MATRICES + 4 * ROWS + 4 * NORMS),
    ],
)
def test_only_an_adapter_has_gradients_and_optimizer_state(base, frozen):
    lora = LoRA(rank=4, base=base)
    assert count_adapter(MODEL, lora) == ADAPTER
    found = step(TuningStep(lora))
    assert found.weights == frozen + 4 * ADAPTER
    assert (found.optimizer, found.summing) == (8 * ADAPTER, 4 * ADAPTER)


@pytest.mark.parametrize("workers", [1, 2])
def test_frozen_weights_are_gathered_as_they_are_held(workers):
    narrow = Training.model_validate(
        {"steps": 1, "deterministic": False, "precision": {"compute": "bfloat16"}}
    )
    found = step(TuningStep(LoRA(rank=4, base="int8")), narrow, workers)
    # Quantised matrices stay integers; everything else is cast to bfloat16. With one worker, the
    # remaining tensors are cast in place.
    cast = 2 * (ROWS + NORMS + ADAPTER)
    assert found.gathered == cast + (TABLE + MATRICES + 2 * TABLE if workers > 1 else 0)
    whole = step(training=narrow)
    assert whole.gathered == 2 * count_parameters(MODEL).total


def test_layers_with_adapters_keep_ranks_and_no_products_of_norms():
    plain, _ = estimate_per_token(MODEL, TRAINING)
    adapted, _ = estimate_per_token(MODEL, TRAINING, LORA)
    assert plain - adapted == 2 * 4 * (2 * 64 - 7 * 4)
    # Without adapters, the inputs of the feed-forward parts, 64 and 128 channels, are not kept
    # either.
    attention, _ = estimate_per_token(MODEL, TRAINING, LoRA(rank=4, targets=("attention.*",)))
    assert adapted - attention == 2 * 4 * (3 * 4 + 64 + 128)


def test_logits_of_both_answers_coexist_with_their_gradients():
    """Count 2 micro-batches of 1 preference pair: 16 positions, 5 of them trained, per answer."""
    places = 10
    assert estimate_at_head(MODEL, 4, 32, places) == 4 * (
        2 * places * 320 + 3 * places * 64 + 32 * 64 + 320 * 64
    )
    adapted = estimate_at_head(MODEL, 4, 32, places, LORA)
    assert estimate_at_head(MODEL, 4, 32, places) - adapted == 4 * 320 * 64


def test_a_reference_model_is_held_in_float32_and_gathered_for_steps():
    total = count_parameters(MODEL).total
    alone = step(TuningStep(places=10), workers=2)
    for in_steps in (False, True):
        held = hold_beside(ModelBeside(MODEL, in_steps=in_steps), TRAINING, 2)
        found = step(TuningStep(places=10, beside=held), workers=2)
        assert found.weights - alone.weights == 4 * total / 2
        assert (found.optimizer, found.summing) == (alone.optimizer, alone.summing)
        assert found.gathered - alone.gathered == (4 * total if in_steps else 0)


def test_a_critic_has_its_own_optimizer():
    critic = MODEL.with_score_head()
    total = count_parameters(MODEL).total
    of_critic = count_parameters(critic).total
    assert of_critic == total - TABLE + 64
    held = hold_beside(ModelBeside(critic, SGD(momentum=0.0)), TRAINING, 1)
    found = step(TuningStep(places=10, beside=held))
    assert (found.weights, found.summing) == (4 * (total + of_critic), 4 * (total + of_critic))
    assert found.optimizer == 8 * total


def test_sampling_happens_next_to_the_optimizer_state():
    rows = SampledRows(rows=256, prompts=64, prompt_tokens=8, new_tokens=1, scaled=False)
    found = estimate_batch_making_memory(MODEL, TRAINING, 1, rows, others=[ModelBeside(MODEL)])
    total = count_parameters(MODEL).total
    assert (found.weights, found.optimizer, found.gradients) == (8 * total, 8 * total, 0)
    # A read covers 256 x 8 positions: three tensors of 128 channels and three of 64, which is more
    # than the keys and values of 2 layers of 2 x 32 channels.
    assert (found.activations, found.fleeting) == (0, 4 * 256 * 8 * (3 * 128 + 3 * 64))
    deep = MODEL.model_copy(update={"layers": 32})
    found = estimate_batch_making_memory(deep, TRAINING, 1, rows)
    assert found.activations == 4 * 256 * 8 * 32 * 2 * 32
    # Prefilling keeps the keys and values of 64 prompts, before 4 completions are sampled from
    # each.
    assert found.fleeting == 4 * 64 * 8 * 32 * 2 * 32


def test_workers_that_share_layers_have_their_part_of_base_and_adapters():
    def memory(tensor, workers):
        parallel = {"kind": "FSDP", **({"tensor": {"ranks": tensor}} if tensor > 1 else {})}
        given = Training.model_validate({"steps": 1, "virtual_workers": 4, "parallel": parallel})
        tuning = TuningStep(LoRA(rank=4, base="bfloat16"))
        return estimate_worker_memory(MODEL, given, workers, 8, 2, 16, tuning=tuning)

    sliced = memory(1, 2)
    shared = memory(2, 2)
    # Both keep norms whole, and for each adapter the matrix on the side that is not cut: B of
    # output and down, A of the other five, 4 x 64 elements each.
    alike = 4 * NORMS + 4 * 2 * 7 * 4 * 64
    assert shared.weights - sliced.weights == alike / 2
    assert shared.optimizer - sliced.optimizer == 2 * 4 * 2 * 7 * 4 * 64 / 2


def test_a_frozen_model_has_no_gradient_to_send():
    held = hold_model(MODEL, TRAINING, 1, ModelRole(None))
    assert (held.trained, held.ends, held.layer) == (0, EndParts(0), 0)
    assert (held.optimizer, held.gradients) == (0, 0)
