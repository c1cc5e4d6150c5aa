"""A run whose folder is in a bucket, on Ray: a worker dies in a save, nodes leave and join."""

import dataclasses
import os
from collections.abc import Iterator
from unittest import mock

import pytest
import ray
from support import faults, trouble
from support.raylets import Raylets

from trainrig import storage
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.elastic import trainer
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


def read_results(folder):
    """Return losses, samples and the bytes of the last tensors, wherever the folder is."""
    newest, damages = find_newest_valid(RunFolder(folder))
    assert newest.step == 40 and not damages
    tensors = storage.list_files(newest.path, ".safetensors")
    return {
        "losses": [line["train/loss"] for line in metrics.read_series(folder)],
        "held out": [line["eval/loss"] for line in metrics.read_held_out_series(folder)],
        "samples": read_trained_samples(RunFolder(folder)),
        "tensors": {path.removeprefix(newest.path): storage.read(path) for path in tensors},
    }


@pytest.fixture
def raylets_with_s3(s3: str) -> Iterator[tuple[Raylets, str]]:
    """Start two nodes whose environment has the bucket's endpoint; yield them and the bucket."""
    with mock.patch.dict(os.environ):
        ray.shutdown()  # ends another module's cluster
        found = Raylets()
        os.environ["RAY_ADDRESS"] = found.address
        yield found, s3
        ray.shutdown()
        found.shutdown()


@pytest.mark.timeout(600)
def test_a_run_in_a_bucket_killed_in_a_save_and_resized_gives_the_same_results(
    raylets_with_s3, undisturbed, tmp_path
):
    raylets, bucket = raylets_with_s3
    straight = undisturbed(40)
    slow = trouble.slowed(straight, str(tmp_path / "unused"), seconds=0.05)
    save = trouble.DeadlySave(slow.make_batches, step=8, marker=str(tmp_path / "in save"))
    job = dataclasses.replace(slow, folder=f"{bucket}/run", make_batches=save)
    events = faults.Events(job.folder)
    outcome = []
    aside = faults.Aside(lambda: outcome.append(trainer.run(job, (1, 2))))
    events.wait("first_step", 2)  # the second attempt, after the save that was killed
    raylets.die()
    events.wait("first_step", 3)
    raylets.come()
    aside.end()
    whys = [(event["why"], event["workers"]) for event in events.all("attempt_started")]
    assert whys == [("start", 2), ("fault", 2), ("shrink", 1), ("grow", 2)]
    assert outcome[0].checkpoint.step == 40
    found = read_results(job.folder)
    wanted = read_results(straight.folder)
    assert len(wanted["tensors"]) == 2
    for name in wanted:
        assert found[name] == wanted[name], name
