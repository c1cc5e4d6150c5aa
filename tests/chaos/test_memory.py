"""A rank that takes all memory, on a separate Ray cluster whose memory monitor kills it."""

import dataclasses

import psutil
import pytest
from support import faults, trouble

from trainrig.ray_runtime.ray_session import connect
from trainrig.train.elastic import trainer

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]
GIB = 2**30


@pytest.fixture
def frugal_ray(undisturbed, monkeypatch):
    """Start a Ray cluster that kills once 4 GiB more of this machine's memory are used.

    The margin is for tests that run at the same time.
    """
    undisturbed(40)  # the processes of this run stay, so their memory counts as used
    memory = psutil.virtual_memory()
    used = 1 - memory.available / memory.total
    monkeypatch.setenv("RAY_memory_usage_threshold", str(used + 4 * GIB / memory.total))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    import ray

    ray.shutdown()  # ends another module's cluster: the threshold applies to a new one
    connect(2, "workers")
    yield
    ray.shutdown()


@pytest.mark.timeout(600)
def test_a_rank_that_takes_too_much_memory_is_killed_and_the_run_continues(
    frugal_ray, undisturbed, assert_equal, tmp_path
):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"))
    greedy = trouble.Greedy(
        job.make_batches, step=10, most=8 * GIB, marker=str(tmp_path / "greedy")
    )
    patient = job.training.faults.model_copy(update={"hang_seconds": 120.0})
    training = job.training.model_copy(update={"faults": patient})
    outcome = trainer.run(dataclasses.replace(job, make_batches=greedy, training=training), 2)
    events = faults.Events(job.folder)
    assert (tmp_path / "greedy").exists()
    # Ray chooses which process to kill: usually the train controller, else a worker agent or the
    # fork server.
    assert outcome.restarts >= 1
    ways = ("out of memory", "memory ran out", "its fork server or")
    assert any(way in events.all("attempt_failed")[0]["problem"] for way in ways)
    assert_equal(job, straight)
