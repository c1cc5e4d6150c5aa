"""Layers that are shared by workers, against one process that has each of them whole."""

import dataclasses
import functools
import re

import numpy as np
import pytest
from support import compare_runs
from support.attempts import continue_run, read_whole
from support.compare_runs import assert_same, read_losses
from support.remembered import remember

from trainrig.errors import ConfigError
from trainrig.parallel.axes.axis_settings import Gathered, TensorSplit
from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

STEPS = 10
# For runs with experts: no token's second and third expert are equal up to rounding. With seed 0
# one token's are, at step 7 (scores 8e-7 apart), and it may go to either: if the experts' outputs
# are multiplied by 1 +- 6e-8, one process also gets that step's other loss, 5e-5 apart.
NO_TIES = 4
SHARED = FSDP(tensor=TensorSplit(ranks=2))
IN_PLACES = FSDP(tensor=TensorSplit(ranks=2, sequence_parallel=True))
MODELS = {
    "grouped": {},
    "one key head, untied": {
        "kv_heads": 1,
        "tie_embeddings": False,
        "biases": {"qkv": True, "output": True, "feedforward": True, "head": True},
        "attention": {"qk_norm": "head"},
        "norm": {"kind": "LayerNorm"},
        "feedforward": {"kind": "GELU"},
        "logit_cap": 5.0,
    },
    "gated, with sinks": {
        "kv_heads": 4,
        "block": {"kind": "ParallelBlock"},
        "position_embedding": {"kind": "LearnedPositions"},
        "attention": {"kind": "GatedAttention", "sinks": True, "qk_norm": "head"},
    },
    "mixture": {
        "feedforward": {
            "kind": "MixtureOfExperts",
            "experts": 4,
            "active": 2,
            "shared_experts": 1,
            "dense_layers": 1,
            "balance_bias": True,
            "router_z_loss": 0.01,
        },
    },
    # No two of 3 slices of a worker's share of 42 have the same size.
    "uneven": {"channels": 20, "feedforward_channels": 42, "heads": 2},
}


@pytest.fixture(scope="module")
def trained(make_job, ranks, tmp_path_factory):
    """Return `trained(world, "grouped", layout)`: a run of 10 steps.

    It returns the job, and the contents of its last checkpoint as one process reads it. `again`:
    the kind of recomputation.
    """

    @remember
    def train(world, model="grouped", layout=None, again=None):
        layout = layout or FSDP()
        training = {
            "steps": STEPS,
            "parallel": layout.model_dump(),
            "deterministic": layout.inexact_by() is None,
            "averaging": {"horizons": (4,)},
            "metrics": {"layers_every": 5},
            "recompute": again and {"kind": again},
        }
        sizes = {"batches": {"attend": "document"}, "model": MODELS[model]}
        if model == "mixture":
            sizes["batches"] |= {"micro_batch": 4, "global_batch": 16}
            training["seed"] = NO_TIES
            # The last micro-batch of each source has one row, which 2 workers divide.
            training["held_out"] = {"rows": 5, "every": 5}
        folder = tmp_path_factory.mktemp("run")
        job = make_job(folder, world, training=training, **sizes)
        ranks(world, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return job, read_whole(ranks, job)

    return train


def lay_out(job, layout):
    training = job.training.model_copy(update={"parallel": layout})
    return dataclasses.replace(job, training=training)


def read_expert_shares(job):
    """Return the shares of the first step's tokens that go to each expert."""
    first = metrics.read_series(job.folder)[0]
    return {name: value for name, value in first.items() if name.startswith("experts/")}


assert_close = functools.partial(compare_runs.assert_close, norms=1e-5, layers=1e-3, prefix="")


def mark_soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize("model", list(MODELS)[:4])
def test_workers_that_share_layers_train_as_one_process_does(model, trained):
    assert_close(trained(2, model, SHARED), trained(1, model))


@pytest.mark.slow
@pytest.mark.parametrize("model", list(MODELS)[:4])
def test_so_do_workers_that_divide_what_flows_between_layers(model, trained):
    assert_close(trained(2, model, IN_PLACES), trained(1, model))


@pytest.mark.soak
def test_more_workers_than_key_heads_share_them(trained):
    found = trained(4, "one key head, untied", FSDP(tensor=TensorSplit(ranks=4)))
    assert_close(found, trained(1, "one key head, untied"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        SHARED,
        HSDP(tensor=TensorSplit(ranks=2), replicas=2),
        DDP(tensor=TensorSplit(ranks=2)),
        mark_soak(FSDP(tensor=TensorSplit(ranks=2), context={"kind": "Gathered", "ranks": 2})),
        FSDP(tensor=IN_PLACES.tensor, context={"kind": "RingAttention", "ranks": 2}),
    ],
    ids=["FSDP", "HSDP", "DDP", "context", "places and context"],
)
def test_beside_data_and_rows(layout, trained):
    assert_close(trained(4, layout=layout), trained(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sequence_parallel"),
    [("FSDP", True), ("DDP", False), mark_soak("FSDP", False), mark_soak("DDP", True)],
)
def test_beside_experts(kind, sequence_parallel, trained):
    """Workers that share each expert's channels divide the experts with others, two of each."""
    tensor = TensorSplit(ranks=2, sequence_parallel=sequence_parallel)
    layout = {"FSDP": FSDP, "DDP": DDP}[kind](tensor=tensor, expert={"ranks": 2})
    found = trained(4, "mixture", layout)
    alone = trained(1, "mixture")
    assert_close(found, alone)
    tokens = [read_expert_shares(run) for run, _ in (found, alone)]
    assert tokens[0] == tokens[1] and tokens[0]


@pytest.mark.chaos
@pytest.mark.parametrize("again", ["Full", "Selective"])
@pytest.mark.parametrize("layout", [SHARED, IN_PLACES], ids=["shared", "in places"])
def test_shared_experts_that_are_computed_again(layout, again, trained):
    """Compare with one process that keeps everything, and to the bit with such workers that do."""
    found = trained(2, "mixture", layout, again)
    assert_close(found, trained(1, "mixture"))
    assert_same(found, trained(2, "mixture", layout))


@pytest.mark.slow
def test_tokens_that_experts_are_sent_are_counted_once(trained, ranks):
    (job, _) = trained(2, "mixture", IN_PLACES)
    (alone, _) = trained(1, "mixture")
    found = [ranks(n, "steps", job=run, count=1)[0] for n, run in ((2, job), (1, alone))]
    assert found[0]["counts"] == found[1]["counts"] != [{}]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [SHARED, IN_PLACES], ids=["shared", "in places"])
def test_the_number_of_replicas_does_not_change_a_bit(layout, trained):
    assert_same(trained(4, layout=layout), trained(2, layout=layout))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [SHARED, pytest.param(IN_PLACES, marks=pytest.mark.chaos)],
    ids=["shared", "in places"],
)
def test_replicas_may_come_and_go(layout, trained, ranks, tmp_path):
    """One, two, one replicas: each stops within a step after about three steps."""
    straight = trained(2, layout=layout)
    training = straight[0].training
    # Ranks ask before each micro-batch.
    hurried = training.faults.model_copy(update={"grace": 1e-6})
    training = training.model_copy(update={"faults": hurried})
    job = dataclasses.replace(straight[0], folder=str(tmp_path), training=training)
    continue_run(job, 2, ranks, told=(1, "train", 14))
    continue_run(job, 4, ranks, told=(2, "train", 7))
    continue_run(job, 2, ranks)
    assert [a.resumed_step for a in RunFolder(job.folder).read_attempts()] == [0, 3, 6]
    assert_same((job, read_whole(ranks, job)), straight)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("world", "model", "layout"),
    [
        (2, "grouped", SHARED),
        (4, "mixture", FSDP(tensor=IN_PLACES.tensor, expert={"ranks": 2})),
    ],
    ids=["shared", "experts"],
)
def test_a_rank_that_was_killed_changes_nothing(
    world, model, layout, trained, ranks, mortal_ranks, tmp_path
):
    straight = trained(world, model, layout)
    training = straight[0].training
    often = training.model_copy(
        update={"checkpoints": training.checkpoints.model_copy(update={"every": 4})}
    )
    job = dataclasses.replace(straight[0], folder=str(tmp_path), training=often)
    attempt = RunFolder(job.folder).take_attempt(0)
    processes = mortal_ranks.start(world, "train", job=job, attempt=attempt, fault=(1, "die", 6))
    processes[1].wait()
    mortal_ranks.end()
    continue_run(job, world, mortal_ranks)
    assert [a.resumed_step for a in RunFolder(job.folder).read_attempts()] == [0, 4]
    assert_same((job, read_whole(ranks, job)), straight)


@pytest.mark.slow
def test_checkpoints_fit_any_layout(trained, ranks, tmp_path):
    """Three workers with full layers load a checkpoint of shared layers, save it, and back."""
    job, tensors = trained(2, "uneven", SHARED)
    for number, (world, layout) in enumerate(
        [(3, FSDP()), (6, SHARED), (4, HSDP(replicas=2, tensor=TensorSplit(ranks=2))), (2, DDP())]
    ):
        found, _ = find_newest_valid(RunFolder(job.folder))
        moved = dataclasses.replace(lay_out(job, layout), folder=str(tmp_path / str(number)))
        (tmp_path / str(number)).mkdir()
        attempt = RunFolder(moved.folder).take_attempt(0)
        ranks(world, "saved", job=moved, attempt=attempt, resume_from=found.path)
        again = read_whole(ranks, moved)
        for name, value in tensors.items():
            np.testing.assert_array_equal(again[name], value, err_msg=name)
        job = moved


@pytest.fixture(scope="module")
def narrow_losses(make_job, ranks, tmp_path_factory):
    """Return `narrow_losses(world, parallel, recompute)`: losses of 3 steps in bfloat16."""

    @remember
    def train(world, parallel, recompute=None):
        training = {
            "steps": 3,
            "parallel": {"kind": "FSDP", **parallel},
            "precision": {"compute": "bfloat16"},
            "recompute": recompute and {"kind": recompute},
        }
        folder = tmp_path_factory.mktemp("run")
        batches = {"attend": "document"}
        job = make_job(folder, world, training=training, batches=batches)
        ranks(world, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return read_losses(job)

    return train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "sequence_parallel"),
    [(None, True), mark_soak(None, False), mark_soak("Gathered", True)],
)
def test_in_bfloat16_and_computed_again(context, sequence_parallel, narrow_losses):
    """Compare with one process at bfloat16's precision, and recomputation to the bit."""
    shared = {
        "tensor": {"ranks": 2, "sequence_parallel": sequence_parallel},
        "context": context and {"kind": context, "ranks": 2},
    }
    world = 4 if context else 2
    found = narrow_losses(world, shared)
    np.testing.assert_allclose(found, narrow_losses(1, {}), rtol=5e-3)
    for again in ("Full", "Selective"):
        assert narrow_losses(world, shared, again) == found


def test_rows_that_cannot_be_divided_by_their_places_are_refused(make_run, tmp_path):
    training = {"parallel": FSDP(tensor=TensorSplit(ranks=3, sequence_parallel=True)).model_dump()}
    model = {"heads": 6, "kv_heads": 3, "channels": 36, "feedforward_channels": 66}
    model |= {"vocabulary": 321}
    with pytest.raises(ValueError, match=r"32 tokens.*multiple of 3.*nearest: 30 or 33"):
        make_run(tmp_path, 3, training=training, model=model)


def list_refusals(split, context, length):
    """Return the errors for rows of `length` tokens, in the order of a run file's check."""
    checks = [lambda: split.check_length(length, context)]
    if context > 1:
        checks.append(lambda: Gathered(ranks=context).check_length(length))
    for check in checks:
        try:
            check()
        except ValueError as error:
            yield str(error)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("context", [1, 2, 3, 4])
def test_the_lengths_named_as_nearest_are_those_that_work(ranks, context):
    split = TensorSplit(ranks=ranks, sequence_parallel=True)
    works = [n for n in range(1, 200) if not any(list_refusals(split, context, n))]
    for length in range(1, 100):
        said = next(list_refusals(split, context, length), None)
        if said is None:
            continue
        named = [int(n) for n in re.findall(r"\d+", said.rpartition("nearest: ")[2])]
        below = [n for n in works if n < length]
        above = [n for n in works if n > length]
        assert named == [*below[-1:], above[0]]


LATENT = {
    "kind": "LatentAttention", "latent_channels": 12, "rotated_channels": 2, "value_channels": 4,
}  # fmt: skip
GATED_SHARED = {
    "kind": "MixtureOfExperts", "experts": 4, "active": 1, "shared_experts": 1,
    "shared_gate": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": {"heads": 2, "kv_heads": 2}},
            r"not divide model.heads \(2\).*model.heads.*3",
        ),
        ({"model": {"feedforward_channels": 64}}, r"feedforward_channels \(64\).*: 63 or 66"),
        ({"model": {"vocabulary": 320}}, r"model.vocabulary \(320\); .*: 318 or 321"),
        ({"model": {"heads": 6, "kv_heads": 2}}, r"neither divides model.kv_heads \(2\).*be 1, 3"),
        (
            {
                "model": {
                    "feedforward": {
                        "kind": "MixtureOfExperts",
                        "experts": 4,
                        "active": 1,
                        "expert_channels": 16,
                    }
                }
            },
            r"model.feedforward.expert_channels \(16\).*: 15 or 18",
        ),
        ({"model": {"position_embedding": {"kind": "Alibi"}}}, "ALiBi"),
        ({"model": {"attention": {"qk_norm": "projection"}}}, "norm over all heads"),
        (
            {"model": {"kv_heads": 6, "attention": LATENT}},
            'latent attention cannot be shared; .*kind = "Attention"',
        ),
        ({"model": {"feedforward": GATED_SHARED}}, "gate of shared experts cannot be shared"),
        (
            {
                "model": {
                    "feedforward": GATED_SHARED | {"shared_gate": False},
                    "biases": {"feedforward": True},
                }
            },
            "biases of experts cannot be shared",
        ),
        ({"objective": {"kind": "PrefixLM"}}, "objective PrefixLM cannot be computed"),
        ({"training": {"compile": {}}}, "cannot be compiled"),
        ({"training": {"precision": {"compute": "float8"}}}, "float8 scales whole matrices"),
        ({"training": {"optimizer": {"kind": "Muon", "lr": 0.01}}}, "Muon needs whole"),
        (
            {"training": {"optimizer": {"kind": "Adafactor", "lr": 0.01}}},
            "Adafactor needs whole matrices",
        ),
    ],
)
def test_layers_that_cannot_be_shared_are_rejected_by_the_run_file(
    changes, said, make_run, tmp_path
):
    training = {"parallel": {"kind": "FSDP", "tensor": {"ranks": 3}}}
    model = {"heads": 6, "kv_heads": 3, "channels": 36, "feedforward_channels": 66}
    changes = {
        "training": training | changes.get("training", {}),
        "model": model | changes.get("model", {}),
        **{name: part for name, part in changes.items() if name == "objective"},
    }
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path, 3, **changes)


def test_a_vocabulary_that_the_tokenizer_settles_is_refused_too(make_job, tmp_path):
    model = {"heads": 6, "kv_heads": 3, "channels": 36, "feedforward_channels": 66}
    training = {"parallel": {"kind": "FSDP", "tensor": {"ranks": 3}}}
    with pytest.raises(ConfigError, match=r"does not divide model.vocabulary \(320\)"):
        make_job(tmp_path, 3, model=model, training=training)


def test_workers_that_are_no_whole_groups_are_refused(make_run, tmp_path):
    run = make_run(tmp_path, 3, training={"parallel": SHARED.model_dump()})
    with pytest.raises(ConfigError, match=r"3 workers.*groups of 2.*use 2 or 4"):
        run.training.check_workers(3)


@pytest.mark.ray
@pytest.mark.slow
def test_workers_of_ray_share_layers(local_ray, trained, make_job, ranks, tmp_path):
    from trainrig.train.elastic import trainer

    straight = trained(2, layout=SHARED)
    job = dataclasses.replace(straight[0], folder=str(tmp_path))
    trainer.run(job, 2)
    assert_same((job, read_whole(ranks, job)), straight)


def test_a_group_that_spans_nodes_is_logged_with_its_cost(make_job, ranks, tmp_path):
    for of_a_node, told in ((1, 1), (2, 0)):
        training = {"steps": 3, "parallel": {"kind": "FSDP", "tensor": {"ranks": 2}}}
        job = make_job(tmp_path / str(of_a_node), 2, training=training)
        folder = RunFolder(job.folder)
        attempt = folder.take_attempt(0)
        ranks(2, "train", job=job, attempt=attempt, of_a_node=of_a_node)
        found = [e for e in folder.read_events() if e["event"] == "tensor_spans_nodes"]
        assert len(found) == told
        for event in found:
            assert (event["groups"], event["of"]) == (1, 1)
            # 8 times half of 32 channels of 4 bytes, in each of two layers.
            assert event["bytes_per_token"] == 8 * 2 * 32 * 4 / 2
