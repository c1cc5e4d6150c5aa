"""A trainrig training step compared with plain loops of equal sizes on one thread."""

import numpy as np
import peers
import pytest
import side_by_side
import torch
import torch.nn.functional as F

from trainrig.models.decoder import DecoderConfig
from trainrig.optim import Constant
from trainrig.parallel import numerics
from trainrig.parallel.mesh import find_local_device
from trainrig.parallel.precision import set_products
from trainrig.tokens.batches import TOKENS, MicroBatch, build_token_arrays, read_local_batch
from trainrig.train import state
from trainrig.train.run_file.training_settings import Training
from trainrig.train.state import build_fresh_state
from trainrig.train.step import Stepper
from trainrig.train.training_job import TrainingJob

pytestmark = pytest.mark.bench
SEQUENCES = 8
LENGTH = 256
VOCABULARY = 4096
SIZES = DecoderConfig(layers=6, channels=384, heads=6, vocabulary=VOCABULARY, positions=LENGTH)
ROUNDS = 5


class OneBatch:
    """Batches that repeat one micro-batch at every step."""

    def __init__(self, vocabulary=VOCABULARY):
        ids = np.random.default_rng(0).integers(0, vocabulary, (SEQUENCES, LENGTH + 1))
        rows = np.arange(SEQUENCES)
        pieces = np.zeros((0, 3), dtype=np.int64)
        self._batch = MicroBatch(
            build_token_arrays(ids[:, :-1].copy(), ids[:, 1:].copy()), rows, rows * 0, pieces
        )

    def micro_batches(self, step):
        return 1

    def denominators(self, step):
        return {TOKENS: SEQUENCES * LENGTH}

    def micro_batch(self, step, index):
        return self._batch


def make_our_step(sizes=SIZES, **settings):
    """Return a step as the training loop takes it: deterministic, clipped."""
    training = Training(steps=10**6, schedule=Constant(warmup=0), **settings)
    numerics.settle(training.threads, training.deterministic)
    set_products(training.precision)
    job = TrainingJob(
        folder="",
        model=sizes,
        training=training,
        make_batches=lambda: OneBatch(sizes.vocabulary),
        tokenizer="",
    )
    stepper = Stepper(job, ("web",), build_fresh_state(job, find_local_device()), lambda: False)
    batch = OneBatch(sizes.vocabulary)
    share = read_local_batch(batch, 0, 1, 0, virtual=training.virtual_workers)
    return lambda: stepper.take(share)


def make_plain_step(model, compute, vocabulary=VOCABULARY):
    """Return a step of a handwritten plain loop, with torch's fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    batch = OneBatch(vocabulary).micro_batch(0, 0)
    ids = torch.from_numpy(batch.ids)
    targets = torch.from_numpy(batch.targets)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=compute == "bfloat16"):
            loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# Ratios of CPU seconds, ours over theirs: above these is a regression on any machine.
@pytest.mark.parametrize(
    ("peer", "compute", "most"),
    [
        ("GPT", "float32", 1.25),
        ("Llama", "float32", 1.15),
        ("GPT", "bfloat16", 1.25),
        ("Llama", "bfloat16", 1.15),
    ],
)
def test_a_step_costs_little_more_than_in_a_plain_loop(alone, peer, compute, most):
    ratio = side_by_side.compare(
        f"training step, 12M parameters, 2,048 tokens, {compute}, one thread, against {peer}",
        make_our_step(precision={"compute": compute}),
        make_plain_step(getattr(peers, peer)(SIZES), compute),
        rounds=ROUNDS,
    )
    assert ratio < most


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_rank_alone_is_no_slower_without_fsdp(alone, compute, monkeypatch):
    precision = {"compute": compute}
    without = make_our_step(precision=precision)
    with monkeypatch.context() as patched:
        patched.setattr(state, "needs_sharding", lambda *_: True)
        wrapped = make_our_step(precision=precision)
    ratio = side_by_side.compare(
        f"training step, 12M parameters, {compute}, one rank, without FSDP against with it",
        without,
        wrapped,
        rounds=2 * ROUNDS,
    )
    assert ratio < 1.05


@pytest.mark.parametrize("kind", ["Full", "Selective"])
def test_computing_again_costs_no_more_than_a_forward_pass(alone, kind):
    ratio = side_by_side.compare(
        f"training step that computes again ({kind}), against one that keeps all",
        make_our_step(recompute={"kind": kind}),
        make_our_step(),
        rounds=ROUNDS,
    )
    assert ratio < {"Full": 1.45, "Selective": 1.15}[kind]


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_compiled_step_costs_no_more_than_a_plain_one(alone, compute, tmp_path):
    precision = {"compute": compute}
    ratio = side_by_side.compare(
        f"compiled training step, {compute}, against a plain one",
        make_our_step(precision=precision, compile={"cache": str(tmp_path)}),
        make_our_step(precision=precision),
        rounds=ROUNDS,
    )
    assert ratio < 1.05


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_fused_projections_take_about_as_long_on_a_cpu(alone, compute, compiled, tmp_path):
    few_keys = SIZES.model_copy(update={"kv_heads": 2})
    settings = {"precision": {"compute": compute}}
    settings |= {"compile": {"cache": str(tmp_path)}} if compiled else {}
    ratio = side_by_side.compare(
        f"training step with fused projections, {compute}, {'compiled' if compiled else 'eager'}, "
        "two key heads, against one without",
        make_our_step(few_keys, **settings, fuse_projections=True),
        make_our_step(few_keys, **settings),
        rounds=2 * ROUNDS,
    )
    assert ratio < 1.15
