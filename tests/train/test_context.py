"""Rows that are shared by workers, against one process that reads whole rows."""

import numpy as np
import pytest
from support.attempts import read_whole
from support.compare_runs import assert_close, read_held_out, read_losses
from support.remembered import remember

from trainrig.errors import ConfigError
from trainrig.train.run.run_folder import RunFolder

STEPS = 10


@pytest.fixture(scope="module")
def trained(make_job, ranks, tmp_path_factory):
    """Return `trained(world, context, layout)`: a run of 10 steps.

    It returns the job, and the contents of its last checkpoint.
    """

    @remember
    def train(world, context=None, layout=None):
        training = {"steps": STEPS}
        if context is not None:
            training["parallel"] = {"kind": "FSDP", "context": context} | (layout or {})
            training["deterministic"] = layout is None
        folder = tmp_path_factory.mktemp("run")
        batches = {"attend": "document"}
        job = make_job(folder, world, training=training, batches=batches)
        attempt = RunFolder(job.folder).take_attempt(0)
        ranks(world, "train", job=job, attempt=attempt)
        return job, read_whole(ranks, job)

    return train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "ranks_of_a_row"),
    [
        pytest.param(2, 2, marks=pytest.mark.soak),
        (4, 2),
        pytest.param(4, 4, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("kind", ["Gathered", "RingAttention"])
def test_workers_that_share_rows_train_as_one_process_does(world, ranks_of_a_row, kind, trained):
    """Use context 2, context 2 x FSDP 2, and context 4, with several documents a row."""
    assert_close(trained(world, {"kind": kind, "ranks": ranks_of_a_row}), trained(1), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"kind": "HSDP", "replicas": 2}, {"kind": "DDP"}])
def test_copies_of_the_model_share_rows_too(layout, trained):
    assert_close(trained(4, {"kind": "Gathered", "ranks": 2}, layout), trained(1), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Gathered", "RingAttention"])
def test_the_number_of_data_workers_does_not_change_a_bit(kind, trained):
    (job, whole), (other, others) = (trained(world, {"kind": kind, "ranks": 2}) for world in (2, 4))
    assert read_losses(job) == read_losses(other)
    assert read_losses(job, "train/grad_norm") == read_losses(other, "train/grad_norm")
    assert read_held_out(job) == read_held_out(other)
    assert whole.keys() == others.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


SHARED = {"kind": "FSDP", "context": {"kind": "Gathered", "ranks": 3}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, r"sequences of 32 tokens.*multiple of 6.*nearest: 30 or 36"),
        (
            {"model": {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 1}}},
            "mixture of experts",
        ),
        ({"training": {"compile": {}}}, "cannot be compiled"),
        ({"objective": {"kind": "PrefixLM"}}, "objective PrefixLM needs whole rows"),
    ],
)
def test_rows_that_cannot_be_shared_are_rejected_by_the_run_file(changes, said, make_run, tmp_path):
    training = {"parallel": SHARED, **changes.pop("training", {})}
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path, 3, training=training, **changes)


def test_workers_that_are_no_whole_groups_are_refused(make_run, tmp_path):
    run = make_run(tmp_path, 4, training={"parallel": SHARED}, batches={"sequence_length": 36})
    with pytest.raises(ConfigError, match=r"does not divide 4 workers.*use 3 or 6"):
        run.training.check_workers(4)
