"""Fused projections in the sharded step: the same bits at any number of ranks.

Unsupported combinations are rejected.
"""

import pytest

from trainrig.config import build, extract_identity
from trainrig.errors import ConfigError
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.train.run_file.training_settings import Training

STEPS = 3
FUSED = {"steps": STEPS, "fuse_projections": True}
LAYOUTS = {
    "plain": {},
    "by layer, computed again": {
        "parallel": {"kind": "FSDP", "reshard": "layer"},
        "recompute": {"kind": "Full"},
    },
    "bfloat16, compiled, selective": {
        "precision": {"compute": "bfloat16"},
        "compile": {"backend": "aot_eager"},
        "recompute": {"kind": "Selective"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_fused_projections_have_the_same_bits_at_any_number_of_ranks(
    name, ranks, make_job, tmp_path
):
    apart = make_job(tmp_path / "apart", training={"steps": STEPS, **LAYOUTS[name]})
    (expected,) = ranks(1, "steps", job=apart, count=STEPS)
    job = make_job(tmp_path / "fused", training=FUSED | LAYOUTS[name])
    found = [
        answer for world in (1, 2, 3) for answer in ranks(world, "steps", job=job, count=STEPS)
    ]
    assert all(answer == found[0] for answer in found)
    assert found[0]["digest"] != expected["digest"]
    narrow = "bfloat16" in name
    assert found[0]["losses"] == pytest.approx(expected["losses"], rel=5e-3 if narrow else 1e-5)
    assert found[0]["losses"][-1] < found[0]["losses"][0]


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["context", "expert", "pipeline"])
def test_workers_that_share_micro_batches_train_to_the_same_losses(axis, ranks, make_job, tmp_path):
    experts = {"kind": "MixtureOfExperts", "experts": 4, "active": 2, "shared_experts": 1}
    model = {"feedforward": experts} if axis == "expert" else {}
    kind = {"kind": "Gathered"} if axis == "context" else {}
    shared = {"parallel": {"kind": "FSDP", axis: {"ranks": 2, **kind}}}
    found = {}
    for world, changes in ((1, {}), (2, shared)):
        job = make_job(tmp_path / str(world), world, model=model, training=FUSED | changes)
        found[world], *_ = ranks(world, "steps", job=job, count=STEPS)
    assert found[2]["losses"] == pytest.approx(found[1]["losses"], rel=1e-5)


def test_a_run_with_them_is_another_run():
    apart, fused = (build(Training, settings, "run.toml") for settings in ({"steps": STEPS}, FUSED))
    assert extract_identity(apart) != extract_identity(fused)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            {"parallel": {"kind": "FSDP", "tensor": {"ranks": 2}}},
            r"remove training.fuse_projections or \[training.parallel.tensor\]",
        ),
        ({"precision": {"compute": "float8"}}, "leave out training.fuse_projections, or use 'bf"),
    ],
    ids=["tensor", "float8"],
)
def test_unsupported_combinations_are_rejected_by_the_run_file(said, told):
    with pytest.raises(ConfigError, match=told):
        build(Training, FUSED | said, "run.toml")


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (
            FineTuning,
            {
                "conversations": "rows",
                "batches": {"sequence_length": 8, "global_batch": 2, "micro_batch": 2},
            },
        ),
        (
            ReinforcementLearning,
            {
                "prompts": {"paths": ["rows"]},
                "rollouts": {"prompts": 2, "samples": 2, "micro_batch": 2},
                "rewards": [{"kind": "ExactAnswer"}],
            },
        ),
    ],
    ids=["posttrain", "rl"],
)
def test_adapters_are_refused_when_the_file_is_read(kind, inputs):
    run = {"checkpoint": "run", "output": "out", "training": FUSED, "lora": {"rank": 2}}
    with pytest.raises(ConfigError, match=r"fuse_projections.*\[lora\].*leave out"):
        build(kind, {"stage": kind.verb, **run, **inputs}, "run.toml")
