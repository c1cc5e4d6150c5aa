"""Adapters of layers that workers share or divide, against one process that has all layers."""

import dataclasses

import numpy as np
import pytest
from support.attempts import continue_run
from support.compare_runs import read_layer_norms, read_losses
from support.remembered import remember

from trainrig.models.architecture.lora_settings import LoRA
from trainrig.objectives.objective_kinds import DPO, KTO, ORPO, CausalLM
from trainrig.parallel.axes.axis_settings import TensorSplit
from trainrig.parallel.axes.pipeline_schedule import Pipeline
from trainrig.parallel.layout import FSDP, HSDP
from trainrig.train import checkpoint
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import Adapter

STEPS = 6
SHARED = FSDP(tensor=TensorSplit(ranks=2))
IN_PLACES = FSDP(tensor=TensorSplit(ranks=2, sequence_parallel=True))
STAGES = FSDP(pipeline=Pipeline(ranks=2))
STAGED_AND_SHARED = FSDP(tensor=TensorSplit(ranks=2), pipeline=Pipeline(ranks=2))
INTERLEAVED = FSDP(pipeline=Pipeline(ranks=2, schedule="interleaved", chunks=2))
MODELS = {
    "grouped": {},  # key heads are divided; the head shares the embedding, with its adapter
    "one key head": {
        "kv_heads": 1,
        "tie_embeddings": False,
        "biases": {"qkv": True, "output": True, "feedforward": True},
        "attention": {"qk_norm": "head"},
    },
    "four layers": {"layers": 4},
}
KINDS = {
    "plain": LoRA(rank=3, targets=("attention.*", "feedforward.*", "embedding")),
    "dora": LoRA(rank=4, dora=True, base="int8", targets=("attention.*", "feedforward.*")),
    "dropout": LoRA(rank=4, rslora=True, dropout=0.2, base="bfloat16"),
    "ends": LoRA(rank=4, targets=("attention.query", "embedding", "head")),
}
OBJECTIVES = {"CausalLM": CausalLM(), "DPO": DPO(), "ORPO": ORPO(), "KTO": KTO()}
ROWS = {"CausalLM": None, "DPO": "pairs", "ORPO": "pairs", "KTO": "labelled"}


@pytest.fixture(scope="module")
def base(make_job, ranks, tmp_path_factory):
    """Return `base("grouped")`: a checkpoint of that model, trained for a few steps."""

    @remember
    def make(model):
        folder = tmp_path_factory.mktemp("base")
        job = make_job(folder, model=MODELS[model], training={"steps": 3})
        ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return find_newest_valid(RunFolder(job.folder))[0].path

    return make


@pytest.fixture(scope="module")
def trained(make_job, ranks, base, tmp_path_factory):
    """Return `trained(world, "plain", layout)`: the job of a run of 6 steps."""

    @remember
    def train(world, kind, layout=None, model="grouped", objective="CausalLM", **changes):
        job = make_adapter_job(
            make_job, base(model), tmp_path_factory.mktemp("run"), kind, layout or FSDP(),
            MODELS[model], objective, **changes
        )  # fmt: skip
        continue_run(job, world, ranks, tuning=ROWS[objective])
        return job

    return train


def make_adapter_job(make_job, path, folder, kind, layout, model, objective="CausalLM", **changes):
    training = {
        "steps": STEPS,
        "parallel": layout.model_dump(),
        "deterministic": layout.inexact_by() is None,
        "held_out": {"rows": 3 if objective == "CausalLM" else 0, "every": 3},
        "metrics": {"layers_every": 3},
        **changes,
    }
    # The minimum number of workers; this run may have more.
    world = layout.replica * (layout.replicas if layout.kind == "HSDP" else 1)
    job = make_job(folder, world, training=training, model=model, batches={"attend": "document"})
    lora = KINDS[kind] if isinstance(kind, str) else kind
    adapter = kind and Adapter(lora, path, checkpoint.compute_manifest_sum(path))
    config = checkpoint.describe(path)[0]
    initial = None if kind else path
    return dataclasses.replace(
        job, adapter=adapter, model=config, objective=OBJECTIVES[objective], initial_weights=initial
    )


def read_contents(job):
    """Return the full trained tensors, whichever rank wrote which rows."""
    found, damages = find_newest_valid(RunFolder(job.folder))
    assert found.step == STEPS and not damages
    opened = checkpoint.open_model(found.path)
    tensors = opened.adapter.tensors if opened.adapter else opened.weights
    return {name: value.numpy() for name, value in tensors.items()}


def read_held_out(job):
    return [line["eval/loss"] for line in metrics.read_held_out_series(job.folder)]


def assert_close(job, alone):
    np.testing.assert_allclose(read_losses(job), read_losses(alone), rtol=0, atol=1e-5)
    norms = (read_losses(run, "train/grad_norm") for run in (job, alone))
    np.testing.assert_allclose(*norms, rtol=1e-4)
    np.testing.assert_allclose(read_held_out(job), read_held_out(alone), rtol=0, atol=1e-5)
    assert read_layer_norms(job).keys() == read_layer_norms(alone).keys()
    for name, value in read_layer_norms(alone).items():
        assert read_layer_norms(job)[name] == pytest.approx(value, rel=2e-3), name
    found = read_contents(job)
    expected = read_contents(alone)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)


def assert_same_bits(job, other):
    for name in ("train/loss", "train/grad_norm"):
        assert read_losses(job, name) == read_losses(other, name)
    assert read_held_out(job) == read_held_out(other)
    found = read_contents(job)
    expected = read_contents(other)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def mark_soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.slow
def test_adapters_of_separately_gathered_embedding_and_head(trained):
    """FSDP by layer: the backward pass multiplies by a matrix of the embedding's adapter."""
    by_layer = trained(2, "ends", FSDP(reshard="layer"), "one key head")
    assert_same_bits(by_layer, trained(1, "ends", None, "one key head"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("plain", SHARED),
        ("dora", IN_PLACES),
        ("dropout", SHARED),
        mark_soak("plain", IN_PLACES),
        mark_soak("dora", SHARED),
        mark_soak("dropout", IN_PLACES),
    ],
)
def test_adapters_of_shared_layers_equal_those_of_full_layers(kind, layout, trained):
    assert_close(trained(2, kind, layout), trained(1, kind))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layout"),
    [("dora", SHARED), *(mark_soak(*case) for case in (("plain", SHARED), ("dora", IN_PLACES)))],
)
def test_adapters_of_replicated_key_heads(kind, layout, trained):
    found = trained(2, kind, layout, "one key head")
    assert_close(found, trained(1, kind, model="one key head"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layout", "objective"),
    [
        ("plain", IN_PLACES, "DPO"),
        mark_soak(None, SHARED, "DPO"),
        mark_soak("plain", SHARED, "ORPO"),
        mark_soak("plain", SHARED, "KTO"),
        mark_soak(None, IN_PLACES, "DPO"),
        mark_soak(None, IN_PLACES, "KTO"),
    ],
)
def test_preference_tuning_of_adapters(kind, layout, objective, trained):
    found = trained(2, kind, layout, objective=objective)
    assert_close(found, trained(1, kind, objective=objective))


@pytest.mark.soak
def test_preference_tuning_in_copies_of_shared_layers(trained, write_result):
    """Distances between 4 workers and one go to results/hsdp_tensor_dpo.json."""
    layout = HSDP(tensor=TensorSplit(ranks=2), replicas=2)
    found = trained(4, "plain", layout, objective="DPO")
    alone = trained(1, "plain", objective="DPO")
    assert_close(found, alone)
    weights = read_contents(alone)
    write_result(
        "hsdp_tensor_dpo.json",
        {
            "steps": STEPS,
            "layout": layout.model_dump(exclude_unset=True),
            "losses": read_losses(found),
            "losses_alone": read_losses(alone),
            "greatest_difference_of_weights": max(
                float(abs(value - weights[name]).max())
                for name, value in read_contents(found).items()
            ),
        },
    )


@pytest.mark.parametrize("kind", [mark_soak("dora"), mark_soak("dropout")])
def test_adapters_of_stages_equal_those_of_one_process_to_the_bit(kind, trained):
    assert_same_bits(trained(2, kind, STAGES), trained(1, kind))


@pytest.mark.soak
def test_adapters_of_an_embedding_tied_across_stages(trained):
    """One process adds the gradients of both uses of the embedding in another order."""
    assert_close(trained(2, "plain", STAGES), trained(1, "plain"))


@pytest.mark.slow
def test_recomputation_in_a_stage_repeats_its_dropout(trained):
    """Dropout is recomputed after other micro-batches have had their forward pass."""
    again = {"recompute": {"kind": "Full"}}
    assert_same_bits(trained(2, "dropout", STAGES, **again), trained(1, "dropout"))


@pytest.mark.parametrize("layout", [STAGED_AND_SHARED, INTERLEAVED], ids=["tensor", "interleaved"])
@pytest.mark.soak
def test_adapters_of_stages_with_other_axes(layout, trained):
    found = trained(layout.replica, "dora", layout, "four layers")
    assert_close(found, trained(1, "dora", model="four layers"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [SHARED, mark_soak(IN_PLACES)])
def test_replicas_may_come_without_changing_a_bit(layout, trained, ranks, tmp_path):
    straight = trained(2, "plain", layout)
    job = dataclasses.replace(straight, folder=str(tmp_path))
    continue_run(job, 2, ranks, told=(1, "train", 14))
    continue_run(job, 4, ranks)
    resumed = [attempt.resumed_step for attempt in RunFolder(job.folder).read_attempts()]
    assert len(resumed) == 2 and 0 < resumed[1] < STEPS
    assert_same_bits(job, straight)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layouts"),
    [("dora", (IN_PLACES, FSDP(), STAGES)), mark_soak("plain", (STAGES, SHARED, FSDP()))],
)
def test_a_run_continues_in_another_layout(kind, layouts, trained, ranks, tmp_path):
    """The optimizer's moments are loaded too, which are divided differently in each layout."""
    alone = trained(1, kind)
    for number, layout in enumerate(layouts, 1):
        training = alone.training.model_copy(update={"parallel": layout})
        job = dataclasses.replace(alone, folder=str(tmp_path), training=training)
        asked = 2 if layout.pipeline else 9  # once a step, or before each micro-batch
        more = {} if number == len(layouts) else {"told": (0, "train", asked)}
        continue_run(job, layout.replica, ranks, **more)
    steps = [attempt.resumed_step for attempt in RunFolder(job.folder).read_attempts()]
    assert steps == sorted(set(steps)) and len(steps) == len(layouts)
    assert_close(job, alone)
