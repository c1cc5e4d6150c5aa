"""Layers that are cut into stages: the run of one process that has them all."""

import dataclasses
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from trainrig.config import to_toml
from trainrig.errors import ConfigError
from trainrig.estimate.device_choice import DeviceChoice
from trainrig.estimate.training_facts import estimate_pretraining
from trainrig.parallel.layout import FSDP
from trainrig.train.checkpoint import newest_valid
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.sample_log import trained_samples

STEPS = 10
TIED, UNTIED = {"layers": 4}, {"layers": 4, "tie_embeddings": False}


def plain(job):
    """`job` as one process reads its checkpoints."""
    training = job.training.model_copy(update={"parallel": FSDP(), "deterministic": True})
    return dataclasses.replace(job, training=training)


@pytest.fixture(scope="module")
def trained(make_job, ranks, tmp_path_factory):
    """`trained(world, pipeline, model, layout)`: a run of 10 steps; its job, and all that its last
    checkpoint holds, as one process reads it."""
    known = {}

    def train(world, pipeline=None, model=UNTIED, layout=None):
        key = repr((world, pipeline, model, layout))
        if key not in known:
            training = {"steps": STEPS, "metrics": {"layers_every": 5}}
            if pipeline is not None:
                training["parallel"] = {"kind": "FSDP", "pipeline": pipeline} | (layout or {})
                training["deterministic"] = layout is None
            folder, batches = tmp_path_factory.mktemp("run"), {"attend": "document"}
            job = make_job(folder, world, training=training, batches=batches, model=model)
            attempt = RunFolder(job.folder).take_attempt(0)
            ranks(world, "train", job=job, attempt=attempt)
            found, damages = newest_valid(RunFolder(job.folder))
            assert not damages
            (whole,) = ranks(1, "tensors", job=plain(job), resume_from=found.path)
            known[key] = job, whole
        return known[key]

    return train


def losses(job, name="train/loss"):
    return [line[name] for line in metrics.series(job.folder)]


def held_out(job):
    lines = metrics.held_out_series(job.folder)
    return [(line["eval/loss"], line["eval/books/loss"], line["eval/web/loss"]) for line in lines]


def by_layer(job):
    last = metrics.series(job.folder)[-1]
    return {name: value for name, value in last.items() if name.endswith("_norm")}


def assert_close(found, expected):
    (job, whole), (alone, expected_whole) = found, expected
    np.testing.assert_allclose(losses(job), losses(alone), rtol=0, atol=1e-5)
    norms = (losses(each, "train/grad_norm") for each in (job, alone))
    np.testing.assert_allclose(*norms, rtol=1e-3)  # at steep steps; others agree to 1e-6
    np.testing.assert_allclose(held_out(job), held_out(alone), rtol=0, atol=1e-4)
    assert held_out(job)
    assert by_layer(job).keys() == by_layer(alone).keys()
    for name, value in by_layer(alone).items():
        assert by_layer(job)[name] == pytest.approx(value, rel=1e-3), name
    assert trained_samples(RunFolder(job.folder)) == trained_samples(RunFolder(alone.folder))
    assert whole.keys() == expected_whole.keys()
    for name in whole:
        if name.startswith("model."):
            np.testing.assert_allclose(
                whole[name], expected_whole[name], rtol=0, atol=1e-4, err_msg=name
            )


def assert_equal(found, expected):
    (job, whole), (alone, expected_whole) = found, expected
    for name in ("train/loss", "train/grad_norm"):
        assert losses(job, name) == losses(alone, name)
    assert held_out(job) == held_out(alone)
    assert whole.keys() == expected_whole.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, expected_whole[name], err_msg=name)


LAYOUTS = [(2, 2), (4, 2), (4, 4)]  # two stages, two x FSDP 2, four
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("world", "stages", "schedule"),
    [(*each, "1F1B") for each in LAYOUTS]
    + [(2, 2, "GPipe")]
    + [pytest.param(*each, "GPipe", marks=SLOW) for each in LAYOUTS[1:]],
)
def test_stages_train_as_one_process_does_to_the_last_bit(world, stages, schedule, trained):
    """With several documents a row, and a head of its own."""
    found = trained(world, {"ranks": stages, "schedule": schedule})
    assert_equal(found, trained(1))
    assert_close(found, trained(1))


@pytest.mark.parametrize(
    ("world", "stages", "schedule"),
    [(2, 2, "1F1B"), (4, 4, "1F1B"), pytest.param(4, 2, "GPipe", marks=SLOW)],
)
def test_a_tied_head_counts_once(world, stages, schedule, trained):
    """Its gradient is added up by stage first, which rounds otherwise."""
    pipeline = {"ranks": stages, "schedule": schedule}
    assert_close(trained(world, pipeline, TIED), trained(1, model=TIED))


TWO = {"ranks": 2, "schedule": "1F1B"}


def test_the_number_of_data_workers_does_not_change_a_bit_of_a_tied_head(trained):
    assert_equal(trained(2, TWO, TIED), trained(4, TWO, TIED))


@pytest.mark.parametrize(
    "layout", [pytest.param({"kind": "HSDP", "replicas": 2}, marks=SLOW), {"kind": "DDP"}]
)
def test_copies_of_the_model_are_cut_too(layout, trained):
    assert_close(trained(4, TWO, TIED, layout), trained(1, model=TIED))


def laid_out(job, **parallel):
    """`job` over other workers."""
    training = job.training.model_copy(update={"parallel": FSDP.model_validate(parallel)})
    return dataclasses.replace(job, training=training)


def test_a_checkpoint_of_stages_is_read_by_any_layout(trained, ranks):
    job, whole = trained(2, TWO, TIED)
    found, _ = newest_valid(RunFolder(job.folder))
    for world, pipeline in ((2, None), (2, {"ranks": 2}), (4, {"ranks": 2}), (4, {"ranks": 4})):
        other = laid_out(job, pipeline=pipeline)
        parts = ranks(world, "tensors", job=other, resume_from=found.path)
        assert set().union(*parts) == set(whole)
        for part in parts:
            for name in part.keys() - {"counters"}:
                np.testing.assert_array_equal(part[name], whole[name], err_msg=name)


def test_a_checkpoint_of_one_process_is_read_by_stages(trained, ranks):
    job, whole = trained(1)
    found, _ = newest_valid(RunFolder(job.folder))
    parts = ranks(4, "tensors", job=laid_out(job, pipeline={"ranks": 4}), resume_from=found.path)
    held = {name: part[name] for part in parts for name in part}
    assert held.keys() == whole.keys()
    for name in held.keys() - {"counters"}:
        np.testing.assert_array_equal(held[name], whole[name], err_msg=name)


def test_each_stage_writes_and_reads_its_own_layers_alone(trained, ranks):
    job, _ = trained(2, TWO)
    found, _ = newest_valid(RunFolder(job.folder))
    asked = ranks(2, "requests", job=job, resume_from=found.path)
    files = [{name for name, _, _ in each if name.endswith("safetensors")} for each in asked]
    assert files == [{f"shard-0000{n}-model-00001-of-00001.safetensors"} for n in (1, 2)]


def test_replicas_come_and_go_without_changing_a_bit(trained, make_job, ranks, tmp_path):
    """One of two stages, then two, then one again."""
    expected = trained(2, TWO, TIED)
    training = expected[0].training.model_copy(update={"prefetch_steps": 0})
    job = dataclasses.replace(expected[0], folder=str(tmp_path), training=training)
    folder, at = RunFolder(job.folder), 0
    for world, told in ((2, (0, "train", 4)), (4, (3, "train", 3)), (2, None)):
        newest = newest_valid(folder)[0] if at else None
        attempt = folder.take_attempt(at)
        path = newest.path if newest else None
        reached = ranks(world, "train", job=job, attempt=attempt, resume_from=path, told=told)
        assert len(set(reached)) == 1 and (reached[0] == STEPS) == (told is None)
        at = reached[0]
    found, _ = newest_valid(folder)
    (whole,) = ranks(1, "tensors", job=plain(job), resume_from=found.path)
    assert_equal((job, whole), expected)


@pytest.mark.chaos
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stage_that_dies_costs_no_bit(rank, trained, mortal_ranks, ranks, tmp_path):
    expected = trained(2, TWO, TIED)
    checkpoints = expected[0].training.checkpoints.model_copy(update={"every": 3})
    training = expected[0].training.model_copy(update={"checkpoints": checkpoints})
    job = dataclasses.replace(expected[0], folder=str(tmp_path), training=training)
    folder = RunFolder(job.folder)
    started = mortal_ranks.start(
        2, "train", job=job, attempt=folder.take_attempt(0), fault=(rank, "die", 7)
    )
    with pytest.raises(EOFError):
        pickle.load(started[rank].stdout)
    for each in started:
        each.kill()
        each.wait()
    newest, _ = newest_valid(folder)
    assert newest.step in (3, 6)
    attempt = folder.take_attempt(newest.step)
    ranks(2, "train", job=job, attempt=attempt, resume_from=newest.path)
    found, _ = newest_valid(folder)
    (whole,) = ranks(1, "tensors", job=plain(job), resume_from=found.path)
    assert_equal((job, whole), expected)


@pytest.mark.ray
@pytest.mark.slow
def test_stages_of_rays_workers_train_as_one_process_does(trained, make_run, ranks, tmp_path):
    expected, _ = alone = trained(1)
    training = expected.training.model_dump() | {"parallel": {"kind": "FSDP", "pipeline": TWO}}
    batches = {"attend": "document"}
    run = make_run(tmp_path / "run", 2, training=training, batches=batches, model=UNTIED)
    (tmp_path / "run.toml").write_text(to_toml(run))
    command = [sys.executable, "-m", "trainrig", "pretrain", str(tmp_path / "run.toml")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found, _ = newest_valid(RunFolder(run.output))
    job = dataclasses.replace(expected, folder=run.output)
    (whole,) = ranks(1, "tensors", job=job, resume_from=found.path)
    assert_equal((job, whole), alone)


REFUSED = [
    ({"model": {"layers": 1}}, r"ranks \(2\) is above the 1 layers.*use at most 1"),
    ({"training": {"compile": {}}}, r"does not go with \[training.compile\]"),
    ({"training": {"groups": ({"match": "*", "rate": 0.5},)}}, r"go with \[\[training.groups\]\]"),
    ({"training": {"precision": {"compute": "float16"}}}, 'use "bfloat16"'),
    ({"objective": {"kind": "FillInTheMiddle"}}, "objective FillInTheMiddle is not computed"),
    ({"objective": {"kind": "MaskedLM"}, "model": {"kind": "Encoder"}}, "kind Encoder is not cut"),
    (
        {"model": {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 1}}},
        "mixture of experts",
    ),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_what_has_no_stages_is_refused_by_the_run_file(changes, said, make_run, tmp_path):
    parallel = {"kind": "FSDP", "pipeline": TWO}
    training = {"parallel": parallel, **changes.get("training", {})}
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path, 2, **changes | {"training": training})


def test_rows_are_not_shared_by_stages(make_run, tmp_path):
    parallel = {"kind": "FSDP", "pipeline": TWO, "context": {"kind": "Gathered", "ranks": 2}}
    with pytest.raises(ValueError, match=r"go with \[training.parallel.context\]"):
        make_run(tmp_path, 4, training={"parallel": parallel})


def test_workers_that_are_no_whole_groups_are_refused(make_run, tmp_path):
    run = make_run(tmp_path, 3, training={"parallel": {"kind": "FSDP", "pipeline": TWO}})
    with pytest.raises(ConfigError, match=r"does not divide 3 workers.*use 2 or 4"):
        run.training.check_workers(3)


def test_check_says_how_layers_are_cut_and_how_long_stages_wait(make_run, tmp_path):
    run = make_run(
        tmp_path, 4, model=UNTIED, training={"parallel": {"kind": "FSDP", "pipeline": TWO}}
    )
    facts = estimate_pretraining(run, DeviceChoice())
    assert facts["stages"] == "layers 0-1 (43%), 2-3 (57%)"
    assert facts["bubble"] == "33.3% of a step, of 2 micro-batches of a replica"


def test_few_micro_batches_are_warned_of_with_the_time_that_stages_wait(make_run, caplog, tmp_path):
    parallel = {"kind": "FSDP", "pipeline": {"ranks": 4}}
    wide = {"global_batch": 8, "micro_batch": 4}
    run = make_run(tmp_path, 4, model={"layers": 4}, batches=wide, training={"parallel": parallel})
    prepare(run)
    assert "4 stages for 2 micro-batches of a replica: each waits for 60% of a step" in caplog.text
