import contextlib
import dataclasses
import functools
import sys
import time

import pytest
import torch.distributed as dist

from trainrig import hardware
from trainrig.errors import ClusterError, ConfigError, DataError
from trainrig.parallel.precision import Precision
from trainrig.train.elastic import trainer
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.worker_settings import WorkerBounds
from trainrig.train.training_job import ExtraActors

PATIENCE = 30.0  # s: a bound for broken code


def run(job, workers=1):
    return trainer.run(job, workers)


@dataclasses.dataclass(frozen=True)
class Faulty:
    """Batches that cannot be read at `step`."""

    make: functools.partial
    step: int
    mendable: bool = False  # the user can repair it

    def __call__(self):
        return dataclasses.replace(self, make=self.make())

    def __getattr__(self, name):
        if name.startswith("__") or name == "make":
            raise AttributeError(name)
        return getattr(self.make, name)

    def micro_batch(self, step, index):
        if step == self.step and dist.get_rank() == dist.get_world_size() - 1:
            if self.mendable:
                raise DataError("tokens: changed; tokenize again")
            raise RuntimeError("first line\nthe disk of the data is gone")
        return self.make.micro_batch(step, index)  # type: ignore[attr-defined]


def disable_prefetch(job, **changes):
    """Return `job` without prefetch, so that bad data of a step fails after all earlier steps."""
    training = job.training.model_copy(update={"prefetch_steps": 0})
    return dataclasses.replace(job, training=training, **changes)


def make_missing_batches():
    raise DataError("tokens: no token shards here")


def are_all_cpus_free():
    """Return whether all of Ray's CPUs become free within the bound."""
    import ray

    until = time.monotonic() + PATIENCE
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def cluster(local_ray):
    """Start a local Ray whose workers get this module's definitions by value."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(
    ("compute", "hardware_has_it", "gpus", "warned"),
    [
        ("bfloat16", False, False, True),
        ("bfloat16", True, False, False),
        ("bfloat16", False, True, False),
        ("float32", False, False, False),
    ],
)
def test_a_run_in_numbers_that_its_cpus_emulate_is_warned_of_at_its_start(
    compute, hardware_has_it, gpus, warned, monkeypatch, caplog
):
    monkeypatch.setattr(hardware, "cpu_has_bfloat16", lambda: hardware_has_it)
    monkeypatch.setattr(trainer.ray_pools, "find_pools", lambda: [])
    monkeypatch.setattr(trainer.ray_pools, "contains_gpus", lambda pools: gpus)
    trainer.warn_of_emulation(Precision(compute=compute))
    assert ("this CPU has no hardware for bfloat16" in caplog.text) == warned


@pytest.mark.ray
@pytest.mark.slow
def test_a_user_error_ends_the_run_at_once(cluster, make_job, tmp_path):
    job = dataclasses.replace(make_job(tmp_path), make_batches=make_missing_batches)
    with pytest.raises(DataError, match=r"^tokens: no token shards here$"):
        run(job)
    assert len(RunFolder(job.folder).read_attempts()) == 1
    assert are_all_cpus_free()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_user_error_of_one_worker_of_two_ends_the_run_at_once(cluster, make_job, tmp_path, ahead):
    job = make_job(tmp_path, training={"prefetch_steps": ahead})
    faulty = Faulty(job.make_batches, step=6, mendable=True)
    with pytest.raises(DataError, match=r"^tokens: changed; tokenize again$"):
        run(dataclasses.replace(job, make_batches=faulty), workers=2)
    assert len(RunFolder(job.folder).read_attempts()) == 1
    assert are_all_cpus_free()


@pytest.mark.ray
@pytest.mark.slow
def test_a_worker_that_always_raises_is_given_up_with_its_reason(cluster, make_job, tmp_path):
    job = make_job(tmp_path)
    job = disable_prefetch(job, make_batches=Faulty(job.make_batches, step=2))
    reason = (
        r"the same failure at step 1 twice in a row, .* rank 0: .*: the disk of the data is gone$"
    )
    with pytest.raises(ClusterError, match=reason):
        run(job)
    assert len(RunFolder(job.folder).read_attempts()) == 2
    assert are_all_cpus_free()


@pytest.mark.ray
def test_more_workers_than_there_are_cpus_are_refused(cluster, make_job, tmp_path):
    with pytest.raises(ConfigError, match="workers: 999 workers of 1 CPU"):
        run(make_job(tmp_path), workers=999)
    assert RunFolder(str(tmp_path)).read_attempts() == []


@pytest.mark.ray
def test_more_actors_than_cpus_besides_the_workers_are_rejected(cluster, make_job, tmp_path):
    actors = ExtraActors(WorkerBounds(998, 1200), lambda *given: contextlib.nullcontext())
    job = dataclasses.replace(make_job(tmp_path), extra_actors=actors)
    with pytest.raises(ConfigError, match=r"^rollouts.actors: Ray has space for .* 998 actors"):
        run(job)
    assert RunFolder(str(tmp_path)).read_attempts() == []
