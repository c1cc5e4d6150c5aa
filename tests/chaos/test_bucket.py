"""A run whose folder is in a bucket, on Ray, that loses a worker in the midst of a save."""

import dataclasses

import pytest
import trouble

from trainrig import storage
from trainrig.train.checkpoint import newest_valid
from trainrig.train.elastic import trainer
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.sample_log import trained_samples

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


def what_counts(folder):
    """Losses, samples and the bytes of the last tensors: wherever the folder is."""
    newest, damages = newest_valid(RunFolder(folder))
    assert newest.step == 40 and not damages
    tensors = storage.list_files(newest.path, ".safetensors")
    return {
        "losses": [line["train/loss"] for line in metrics.series(folder)],
        "held out": [line["eval/loss"] for line in metrics.held_out_series(folder)],
        "samples": trained_samples(RunFolder(folder)),
        "tensors": {path.removeprefix(newest.path): storage.read(path) for path in tensors},
    }


@pytest.mark.timeout(600)
def test_a_run_in_a_bucket_that_loses_a_worker_in_a_save_comes_to_the_same(
    ray_with_s3, undisturbed, tmp_path
):
    straight = undisturbed(40)
    folder = f"{ray_with_s3}/run"
    save = trouble.DeadlySave(straight.make_batches, step=8, marker=str(tmp_path / "in save"))
    outcome = trainer.run(dataclasses.replace(straight, folder=folder, make_batches=save), 2)
    assert outcome.restarts == 1
    found, wanted = what_counts(folder), what_counts(straight.folder)
    assert len(wanted["tensors"]) == 2
    for name in wanted:
        assert found[name] == wanted[name], name
