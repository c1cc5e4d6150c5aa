import random

import numpy as np
import pytest
import torch

from trainrig.models.decoder import Decoder, initialise
from trainrig.parallel import numerics
from trainrig.parallel.mesh import find_local_device
from trainrig.parallel.sharding.fsdp import find_local_slice, list_units
from trainrig.tokens.batches import read_local_batch
from trainrig.train import state as state_module
from trainrig.train.state import build_fresh_state
from trainrig.train.step import Stepper


@pytest.mark.parametrize("world", [1, 2, 3])
def test_fresh_weights_are_the_same_bits_at_any_number_of_ranks(world, ranks, make_job, tmp_path):
    job = make_job(tmp_path, training={"seed": 7})
    model = Decoder(job.model)
    initialise(model, seed=7)
    for tensors in ranks(world, "tensors", job=job):
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(tensors[f"model.{name}"], value.numpy())


def test_ranks_share_the_weights_out_between_them(ranks, make_job, tmp_path):
    job = make_job(tmp_path)
    parts = ranks(3, "parts", job=job)
    for name, value in Decoder(job.model).named_parameters():
        held = [part[name] for part in parts]
        assert sum(held) == value.numel()
        assert max(held) <= -(-value.shape[0] // 3) * value[0].numel()


def test_a_state_is_all_that_a_model_and_its_optimizer_remember(ranks, make_job, tmp_path):
    job = make_job(tmp_path)
    (tensors,) = ranks(1, "tensors", job=job)
    names = {name for name, _ in Decoder(job.model).named_parameters()}
    memory = {f"{name}.{what}" for name in names for what in ("exp_avg", "exp_avg_sq", "step")}
    assert set(tensors) == {
        *(f"model.{name}" for name in names),
        *(f"optimizer.state.{name}" for name in memory),
        "counters",
    }
    assert tensors["counters"] == (0, 0, 0)


def test_another_seed_gives_other_weights(ranks, make_job, tmp_path):
    drawn = [
        ranks(1, "tensors", job=make_job(tmp_path / str(seed), training={"seed": seed}))[0]
        for seed in (0, 1)
    ]
    name = "model.embedding.weight"
    assert not np.array_equal(drawn[0][name], drawn[1][name])


@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
def test_a_step_draws_nothing_from_the_state_of_a_library(optimizer, alone, make_job, tmp_path):
    job = make_job(tmp_path, training={"optimizer": {"kind": optimizer}, "deterministic": False})
    numerics.settle(job.training.threads, deterministic=False)

    def states():
        numbers = np.random.get_state()[1]  # noqa: NPY002
        return torch.get_rng_state().numpy().tobytes(), random.getstate(), numbers.tobytes()

    before = states()
    batches = job.make_batches()
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, batches.sources, state, lambda: False)
    for step in range(2):
        assert stepper.take(read_local_batch(batches, 0, 1, step)).why_skipped is None
    assert states() == before


@pytest.mark.parametrize(
    ("deterministic", "virtual", "model"),  # 4 micro-batches
    [
        (True, 1, {}),
        (True, 3, {}),
        (True, 4, {}),
        (False, 1, {}),
        (True, 3, {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 2}}),
        (True, 3, {"tie_embeddings": False, "block": {"kind": "ParallelBlock"}}),
    ],
    ids=["1", "3", "4", "fast", "experts", "untied, parallel"],
)
@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
def test_a_rank_alone_steps_to_the_same_bits_without_fsdp(
    compute, deterministic, virtual, model, alone, make_job, tmp_path, monkeypatch
):
    training = {"deterministic": deterministic, "virtual_workers": virtual}
    training["precision"] = {"compute": compute}
    job = make_job(tmp_path, training=training, model=model)
    numerics.settle(job.training.threads, deterministic)
    batches = job.make_batches()
    share = read_local_batch(batches, 0, 1, 0, virtual=job.training.virtual_workers)
    found = []
    for wrapped in (False, True):
        if wrapped:
            monkeypatch.setattr(state_module, "needs_sharding", lambda *_: True)
        state = build_fresh_state(job, find_local_device())
        assert bool(list_units(state.model)) == wrapped
        stepper = Stepper(job, batches.sources, state, lambda: False)
        figures = [stepper.take(share) for _ in range(2)]
        weights = {
            name: find_local_slice(tensor)[0].clone()
            for name, tensor in state.list_tensors().items()
        }
        found.append(([(step.loss.total, step.grad_norm) for step in figures], weights))
    (steps, tensors), (steps_wrapped, tensors_wrapped) = found
    assert tensors.keys() == tensors_wrapped.keys()
    assert all(torch.equal(tensors[name], tensors_wrapped[name]) for name in tensors)
    assert steps == steps_wrapped


def test_a_rank_alone_has_fsdp_cast_its_weights_layer_by_layer(alone, make_job, tmp_path):
    training = {
        "precision": {"compute": "bfloat16"},
        "parallel": {"kind": "FSDP", "reshard": "layer"},
    }
    job = make_job(tmp_path, training=training)
    assert list_units(build_fresh_state(job, find_local_device()).model)
