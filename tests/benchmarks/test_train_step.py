"""A trainrig training step compared with plain loops of equal sizes on one thread."""

import pytest
from support import peers, side_by_side
from support.one_batch import SIZES, make_our_step, make_plain_step

from trainrig.train import state

pytestmark = pytest.mark.bench
ROUNDS = 5


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
