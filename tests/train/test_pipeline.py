"""Layers that are cut into stages, against one process that has them all."""

import dataclasses
import functools
import pickle

import numpy as np
import pytest
from support import compare_runs
from support.attempts import read_whole
from support.compare_runs import assert_same, read_losses
from support.remembered import remember

from trainrig.parallel.layout import FSDP
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.pretrain import pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

STEPS = 10
# No gradient of this seed's steps is an outlier. Seed 0 has one of norm 6.9 among others of about
# 1, which magnifies rounding: it differs by 5e-5 to 2e-4 if the outputs of one process are
# multiplied by 1 +- 6e-8, and all others by 2e-6 at most.
SEED = 2
TIED = {"layers": 4}
UNTIED = {"layers": 4, "tie_embeddings": False}


@pytest.fixture(scope="module")
def trained(make_job, ranks, tmp_path_factory):
    """Return `trained(world, pipeline, model, layout, more)`: a run of 10 steps.

    `more` are settings of `training`. It returns the job, and the contents of its last checkpoint
    as one process reads it.
    """

    @remember
    def train(world, pipeline=None, model=UNTIED, layout=None, more=None):
        training = {"steps": STEPS, "seed": SEED, "metrics": {"layers_every": 5}}
        training |= more or {}
        if pipeline is not None:
            parallel = {"kind": "FSDP", "pipeline": pipeline} | (layout or {})
            training["parallel"] = parallel
            inexact = parallel["kind"] != "FSDP" or "reduce" in parallel
            training["deterministic"] = not inexact
        folder = tmp_path_factory.mktemp("run")
        batches = {"attend": "document"}
        job = make_job(folder, world, training=training, batches=batches, model=model)
        attempt = RunFolder(job.folder).take_attempt(0)
        ranks(world, "train", job=job, attempt=attempt)
        return job, read_whole(ranks, job)

    return train


assert_close = functools.partial(compare_runs.assert_close, held_out=1e-4, norms=1e-5, layers=1e-3)
LAYOUTS = [(2, 2), (4, 2), (4, 4)]  # two stages, two x FSDP 2, four
SLOW = pytest.mark.slow
INTERLEAVED = {"ranks": 2, "schedule": "interleaved", "chunks": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "stages", "schedule"),
    [(*sizes, "1F1B") for sizes in LAYOUTS]
    + [(2, 2, "GPipe")]
    + [pytest.param(*sizes, "GPipe", marks=SLOW) for sizes in LAYOUTS[1:]],
)
def test_stages_train_as_one_process_does_to_the_last_bit(world, stages, schedule, trained):
    """Rows have several documents, and the head is separate."""
    found = trained(world, {"ranks": stages, "schedule": schedule})
    assert_same(found, trained(1))
    assert_close(found, trained(1))


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_interleaved_stages_train_as_one_process_does_to_the_last_bit(world, trained):
    """Two workers, or two pairs that slice parameters, have two one-layer stages each."""
    assert_same(trained(world, INTERLEAVED), trained(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({"kind": "FSDP", "reshard": "layer"}, marks=SLOW),
        pytest.param({"kind": "FSDP", "reduce": "micro_batch"}, marks=SLOW),
        pytest.param({"kind": "HSDP", "replicas": 2}, marks=SLOW),
        pytest.param({"kind": "DDP"}, marks=SLOW),
    ],
    ids=["layer", "micro_batch", "HSDP", "DDP"],
)
def test_interleaved_stages_of_a_tied_head_with_other_sharding(layout, trained):
    assert_close(trained(4, INTERLEAVED, TIED, layout), trained(1, model=TIED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "stages", "schedule"),
    [(2, 2, "1F1B"), (4, 4, "1F1B"), pytest.param(4, 2, "GPipe", marks=SLOW)],
)
def test_a_tied_head_counts_once(world, stages, schedule, trained):
    """The gradient of the head is summed by stage first, which rounds differently."""
    pipeline = {"ranks": stages, "schedule": schedule}
    assert_close(trained(world, pipeline, TIED), trained(1, model=TIED))


def mark_soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


TWO = {"ranks": 2, "schedule": "1F1B"}
FULL = {"recompute": {"kind": "Full"}}
SELECTIVE = {"recompute": {"kind": "Selective"}}
BFLOAT16 = {"precision": {"compute": "bfloat16"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "more"),
    [
        (INTERLEAVED, FULL | BFLOAT16),
        pytest.param(INTERLEAVED, SELECTIVE, marks=pytest.mark.soak),
        pytest.param(TWO, BFLOAT16, marks=pytest.mark.soak),
    ],
    ids=["full, bfloat16", "selective", "bfloat16"],
)
def test_recomputation_and_bfloat16_give_the_same_in_stages(pipeline, more, trained):
    assert_same(trained(2, pipeline, more=more), trained(1, more=more))


MIXTURE = {
    "kind": "MixtureOfExperts",
    "experts": 4,
    "active": 2,
    "dense_layers": 1,
    "balance_loss": 0.01,
    "router_z_loss": 0.001,
    "balance_bias": True,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "pipeline"),
    [(2, INTERLEAVED), pytest.param(4, {"ranks": 4}, marks=SLOW)],
    ids=["interleaved", "four"],
)
def test_a_mixture_of_experts_is_cut_as_the_last_stage_knows_of_all_routers(
    world, pipeline, trained
):
    model = UNTIED | {"feedforward": MIXTURE}
    found = trained(world, pipeline, model)
    expected = trained(1, model=model)
    assert_same(found, expected)
    mine, other = (metrics.read_series(job.folder) for job, _ in (found, expected))
    added = [n for n in other[0] if "expert" in n or "router" in n or "balance" in n]
    assert len(added) > 4
    for line, same in zip(mine, other, strict=True):
        assert [line[name] for name in added] == [same[name] for name in added]


SHARED = {"kind": "FSDP", "tensor": {"ranks": 2}}
EXPERTS = {"kind": "FSDP", "expert": {"ranks": 2}}
GROUPS = (
    {"match": "*.attention.*", "rate": 0.5},
    {"match": "head.*", "optimizer": {"kind": "Adam"}},
    {"match": "layers.1.feedforward.*", "freeze": True},
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "pipeline", "layout"),
    [
        (4, INTERLEAVED, EXPERTS),
        mark_soak(4, TWO, SHARED),
        mark_soak(8, TWO, EXPERTS | {"tensor": {"ranks": 2, "sequence_parallel": True}}),
        mark_soak(8, INTERLEAVED, EXPERTS | SHARED),
        mark_soak(4, INTERLEAVED, EXPERTS | {"kind": "DDP"}),
    ],
    ids=["divided", "shared", "both, in places", "both", "copies"],
)
def test_experts_are_divided_and_shared_within_stages(world, pipeline, layout, trained):
    model = UNTIED | {"feedforward": MIXTURE}
    found = trained(world, pipeline, model, layout)
    expected = trained(1, model=model)
    assert_close(found, expected)
    mine, other = (metrics.read_series(job.folder) for job, _ in (found, expected))
    added = [n for n in other[0] if "expert" in n or "router" in n or "balance" in n]
    assert len(added) > 4
    for line, same in zip(mine, other, strict=True):
        for name in added:
            assert line[name] == pytest.approx(same[name], rel=1e-4), name
    if layout == EXPERTS:
        assert_same(trained(2 * world, pipeline, model, layout), found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "more"),
    [
        (INTERLEAVED, {"groups": GROUPS}),
        (TWO, {"groups": GROUPS, "compile": {"backend": "aot_eager"}}),
        mark_soak(INTERLEAVED, {"compile": {"backend": "inductor"}} | BFLOAT16),
        (INTERLEAVED, {"recompute": {"kind": "Budget", "gib": 1.3e-4}}),
        (INTERLEAVED, {"precision": {"compute": "float16"}}),
    ],
    ids=["groups", "compiled", "by inductor", "budget", "float16"],
)
def test_groups_and_compiled_layers_and_scaled_losses_are_the_same_in_stages(
    pipeline, more, trained
):
    assert_same(trained(2, pipeline, more=more), trained(1, more=more))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "model"),
    [pytest.param(TWO, TIED, marks=pytest.mark.soak), (INTERLEAVED, UNTIED)],
    ids=["1F1B", "interleaved"],
)
def test_layers_that_are_shared_are_cut_into_stages_too(pipeline, model, trained):
    """Two workers share the layers of each of two stages."""
    assert_close(trained(4, pipeline, model, SHARED), trained(1, model=model))


@pytest.mark.slow
@pytest.mark.parametrize(
    "pipeline",
    [pytest.param(TWO, marks=pytest.mark.soak), INTERLEAVED],
    ids=["1F1B", "interleaved"],
)
def test_stages_shared_layers_and_data_together(pipeline, trained):
    """Eight workers: two stages, each shared by two, in two replicas.

    They match one process up to rounding, and one replica to the bit.
    """
    exact = SHARED | {"reshard": "layer"}
    found = trained(8, pipeline, TIED, exact)
    assert_close(found, trained(1, model=TIED))
    assert_same(found, trained(4, pipeline, TIED, exact))
    assert_close(trained(8, pipeline, TIED, SHARED | {"kind": "DDP"}), found)


IN_PLACES = {"kind": "FSDP", "tensor": {"ranks": 2, "sequence_parallel": True}}
GATHERED = {"kind": "FSDP", "context": {"kind": "Gathered", "ranks": 2}}
RING = {"kind": "FSDP", "context": {"kind": "RingAttention", "ranks": 2}}
ALL_AXES = IN_PLACES | GATHERED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "model", "layout", "more"),
    [
        (TWO, TIED, IN_PLACES, None),
        mark_soak(INTERLEAVED, UNTIED, IN_PLACES, FULL | BFLOAT16),
        (INTERLEAVED, UNTIED, GATHERED, None),
        mark_soak(TWO, TIED, GATHERED, SELECTIVE),
        mark_soak(INTERLEAVED, TIED, RING, None),
    ],
    ids=["in places", "in places, again", "gathered", "gathered, again", "ring"],
)
def test_stages_of_parts_of_rows(pipeline, model, layout, more, trained):
    """Two workers share the rows of each of two stages.

    Rows have several documents; the workers share all layers' work, or that between products.
    """
    found = trained(4, pipeline, model, layout, more)
    alone = trained(1, model=model, more=more)
    if more and "precision" in more:
        np.testing.assert_allclose(read_losses(found[0]), read_losses(alone[0]), rtol=5e-3)
    else:
        assert_close(found, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "layout"),
    [
        (TWO, ALL_AXES),
        mark_soak(INTERLEAVED, ALL_AXES | {"reshard": "layer"}),
        mark_soak(TWO, ALL_AXES | {"kind": "DDP"}),
    ],
    ids=["1F1B", "interleaved", "DDP"],
)
def test_stages_of_parts_of_rows_and_of_layers_together(pipeline, layout, trained):
    assert_close(trained(8, pipeline, TIED, layout), trained(1, model=TIED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "layout"),
    [(TWO, GATHERED), mark_soak(INTERLEAVED, GATHERED), mark_soak(TWO, IN_PLACES)],
    ids=["gathered", "interleaved", "in places"],
)
def test_replicas_of_stages_of_parts_of_rows(pipeline, layout, trained):
    """Two replicas give the same bits as one, and copies of the model the same up to rounding."""
    found = trained(8, pipeline, TIED, layout)
    assert_same(found, trained(4, pipeline, TIED, layout))
    if layout is GATHERED:
        hybrid = GATHERED | {"kind": "HSDP", "replicas": 2}
        assert_close(trained(8, pipeline, TIED, hybrid), found)


@pytest.mark.slow
def test_the_number_of_data_workers_does_not_change_a_bit_of_a_tied_head(trained):
    assert_same(trained(2, TWO, TIED), trained(4, TWO, TIED))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [pytest.param({"kind": "HSDP", "replicas": 2}, marks=SLOW), {"kind": "DDP"}]
)
def test_copies_of_the_model_are_cut_too(layout, trained):
    assert_close(trained(4, TWO, TIED, layout), trained(1, model=TIED))


def lay_out(job, **parallel):
    """Return `job` over other workers."""
    training = job.training.model_copy(update={"parallel": FSDP.model_validate(parallel)})
    return dataclasses.replace(job, training=training)


@pytest.mark.slow
def test_a_checkpoint_of_stages_is_read_by_any_layout(trained, ranks):
    job, whole = trained(2, TWO, TIED)
    found, _ = find_newest_valid(RunFolder(job.folder))
    for world, pipeline in ((2, None), (2, {"ranks": 2}), (4, {"ranks": 2}), (4, {"ranks": 4})):
        other = lay_out(job, pipeline=pipeline)
        parts = ranks(world, "tensors", job=other, resume_from=found.path)
        assert set().union(*parts) == set(whole)
        for part in parts:
            for name in part.keys() - {"counters"}:
                np.testing.assert_array_equal(part[name], whole[name], err_msg=name)


@pytest.mark.slow
def test_a_checkpoint_of_one_process_is_read_by_stages(trained, ranks):
    job, whole = trained(1)
    found, _ = find_newest_valid(RunFolder(job.folder))
    parts = ranks(4, "tensors", job=lay_out(job, pipeline={"ranks": 4}), resume_from=found.path)
    held = {name: part[name] for part in parts for name in part}
    assert held.keys() == whole.keys()
    for name in held.keys() - {"counters"}:
        np.testing.assert_array_equal(held[name], whole[name], err_msg=name)


@pytest.mark.slow
def test_a_checkpoint_goes_through_layouts_and_keeps_all_it_holds(trained, ranks, tmp_path):
    """Shared layers, then stages, slices, stages of shared layers, and stages of shared rows.

    Each loads the previous checkpoint, and saves it again.
    """
    job, tensors = trained(1, model=TIED)
    shared = {"tensor": {"ranks": 2}}
    stages = {"pipeline": INTERLEAVED}
    slices = {}
    of_both = [axes | {"pipeline": TWO} for axes in (shared, {"context": GATHERED["context"]})]
    for number, parallel in enumerate((shared, stages, slices, *of_both)):
        found, _ = find_newest_valid(RunFolder(job.folder))
        (tmp_path / str(number)).mkdir()
        moved = dataclasses.replace(lay_out(job, **parallel), folder=str(tmp_path / str(number)))
        attempt = RunFolder(moved.folder).take_attempt(0)
        assert ranks(4, "saved", job=moved, attempt=attempt, resume_from=found.path) == [""] * 4
        again = read_whole(ranks, moved)
        assert again.keys() == tensors.keys()
        for name, value in tensors.items():
            np.testing.assert_array_equal(again[name], value, err_msg=name)
        job = moved


@pytest.mark.slow
def test_each_stage_writes_and_reads_its_own_layers_alone(trained, ranks):
    job, _ = trained(2, TWO)
    found, _ = find_newest_valid(RunFolder(job.folder))
    asked = ranks(2, "requests", job=job, resume_from=found.path)
    files = [{name for name, _, _ in reads if name.endswith("safetensors")} for reads in asked]
    assert files == [{f"shard-0000{n}-model-00001-of-00001.safetensors"} for n in (1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "layout"),
    [
        (TWO, None),
        pytest.param(INTERLEAVED, None, marks=pytest.mark.soak),
        (TWO, SHARED),
    ],
    ids=["1F1B", "interleaved", "shared layers"],
)
def test_replicas_come_and_go_without_changing_a_bit(pipeline, layout, trained, ranks, tmp_path):
    """One replica is used, then two, then one again."""
    one = 2 if layout is None else 4
    expected = trained(one, pipeline, TIED, layout)
    training = expected[0].training.model_copy(update={"prefetch_steps": 0})
    job = dataclasses.replace(expected[0], folder=str(tmp_path), training=training)
    folder = RunFolder(job.folder)
    at = 0
    for world, told in (one, (0, "train", 4)), (2 * one, (3, "train", 3)), (one, None):
        newest = find_newest_valid(folder)[0] if at else None
        attempt = folder.take_attempt(at)
        path = newest.path if newest else None
        reached = ranks(world, "train", job=job, attempt=attempt, resume_from=path, told=told)
        assert len(set(reached)) == 1 and (reached[0] == STEPS) == (told is None)
        at = reached[0]
    assert_same((job, read_whole(ranks, job)), expected)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("rank", "pipeline", "layout"),
    [
        (0, TWO, None),
        (1, TWO, None),
        (1, INTERLEAVED, None),
        (3, TWO, SHARED),
        (1, INTERLEAVED, GATHERED),
    ],
    ids=["first", "last", "interleaved", "shared layers", "parts of rows"],
)
def test_a_stage_that_dies_costs_no_bit(
    rank, pipeline, layout, trained, mortal_ranks, ranks, tmp_path
):
    world = 2 if layout is None else 4
    expected = trained(world, pipeline, TIED, layout)
    checkpoints = expected[0].training.checkpoints.model_copy(update={"every": 3})
    training = expected[0].training.model_copy(update={"checkpoints": checkpoints})
    job = dataclasses.replace(expected[0], folder=str(tmp_path), training=training)
    folder = RunFolder(job.folder)
    started = mortal_ranks.start(
        world, "train", job=job, attempt=folder.take_attempt(0), fault=(rank, "die", 7)
    )
    with pytest.raises(EOFError):
        pickle.load(started[rank].stdout)
    for process in started:
        process.kill()
        process.wait()
    newest, _ = find_newest_valid(folder)
    assert newest.step in (3, 6)
    attempt = folder.take_attempt(newest.step)
    ranks(world, "train", job=job, attempt=attempt, resume_from=newest.path)
    assert_same((job, read_whole(ranks, job)), expected)


@pytest.mark.ray
@pytest.mark.slow
def test_stages_of_rays_workers_train_as_one_process_does(
    local_ray, trained, make_run, ranks, tmp_path
):
    expected, _ = alone = trained(1)
    training = expected.training.model_dump() | {"parallel": {"kind": "FSDP", "pipeline": TWO}}
    batches = {"attend": "document"}
    run = make_run(tmp_path / "run", 2, training=training, batches=batches, model=UNTIED)
    pretrain(run)
    job = dataclasses.replace(expected, folder=run.output)
    assert_same((job, read_whole(ranks, job)), alone)
