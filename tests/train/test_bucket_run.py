"""A run whose folder is in a bucket equals the run on a disk."""

import pytest

from trainrig import storage
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples

# Figures that differ in another run, by the start or the end of their names.
MEASURED = ("time", "memory/", "cluster/slowest")
CLOCKED = ("_seconds", "_per_second", "/mfu")
TRAINING = {
    "steps": 8,
    "checkpoints": {"every": 4, "keep": 5},
    "held_out": {"every": 4, "rows": 2},
    "schedule": {"kind": "Constant", "warmup": 0},
}


def train_in_two_attempts(folder, make_run, ranks):
    """Train to step 4 on one rank, and to step 8 on two."""
    run = RunFolder(folder)
    short = prepare(make_run(folder, training=TRAINING | {"steps": 4}))
    ranks(1, "train", job=short, attempt=run.take_attempt(0))
    newest, _ = find_newest_valid(run)
    job = prepare(make_run(folder, training=TRAINING))
    ranks(2, "train", job=job, attempt=run.take_attempt(4), resume_from=newest.path)


def drop_times(lines):
    return [
        {
            name: value
            for name, value in line.items()
            if not name.startswith(MEASURED) and not name.endswith(CLOCKED)
        }
        for line in lines
    ]


def list_messages(folder):
    events = RunFolder(folder).read_events()
    return sorted((event["event"], event.get("attempt"), event.get("step")) for event in events)


def list_files(folder):
    paths = storage.list_files(f"{folder}/checkpoints")
    return {path.removeprefix(folder): storage.read(path) for path in paths}


@pytest.mark.slow
def test_a_bucket_run_leaves_the_same_bytes_metrics_samples_and_events(
    s3, mortal_ranks, make_run, tmp_path
):
    on_disk = str(tmp_path / "run")
    in_bucket = f"{s3}/run"
    for folder in (on_disk, in_bucket):
        train_in_two_attempts(folder, make_run, mortal_ranks)
    assert list_files(in_bucket) == list_files(on_disk) != {}
    for read in (metrics.read_series, metrics.read_held_out_series):
        assert drop_times(read(in_bucket)) == drop_times(read(on_disk)) != []
    assert (
        read_trained_samples(RunFolder(in_bucket)) == read_trained_samples(RunFolder(on_disk)) != {}
    )
    assert list_messages(in_bucket) == list_messages(on_disk) != []
    assert len(storage.list_files(f"{in_bucket}/tensorboard")) == 2
