import dataclasses
import functools
import os
import signal
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from trainrig.errors import ClusterError, ConfigError, DataError
from trainrig.ray_session import connect
from trainrig.train import metrics, trainer
from trainrig.train.checkpoint import newest_valid, write_model
from trainrig.train.run_folder import RunFolder
from trainrig.train.samples import trained_samples
from trainrig.train.state import Job

# --- the decisions, without Ray


@dataclasses.dataclass
class FakeAttempts:
    """Stands in for groups of workers: each attempt fails as told, at the step it is told."""

    plan: list[tuple[int, str | None]]  # (step of the last checkpoint it leaves, problem)
    resumed: list[int] = dataclasses.field(default_factory=list)

    def __call__(self, job, attempt, resume_from, workers):
        self.resumed.append(attempt.resumed_step)
        step, problem = self.plan.pop(0)
        if step > attempt.resumed_step:
            commit(job, step, attempt.number)
        return problem


def commit(job: Job, step: int, attempt: int) -> Path:
    made = Path(write_model(f"{job.folder}/elsewhere", job.model, job.tokenizer, {}))
    place = Path(job.folder, "checkpoints", f"step_{step:08d}", f"attempt-{attempt:04d}")
    place.parent.mkdir(parents=True, exist_ok=True)
    return made.rename(place)


@pytest.fixture
def attempts(monkeypatch):
    """`attempts((4, "killed"), (12, None))`: what a run's attempts come to, one after another."""

    def plan(*outcomes):
        fake = FakeAttempts(list(outcomes))
        monkeypatch.setattr(trainer, "_attempt", fake)
        return fake

    monkeypatch.setattr(trainer, "check_fit", lambda workers: None)
    monkeypatch.setattr(trainer, "_remove_placement_group", lambda folder, attempt: None)
    monkeypatch.setattr("trainrig.train.checkpoint._write_tensors", lambda target, tensors: {})
    return plan


def run(job, workers=1):
    return trainer.run(job, workers)


def test_each_attempt_goes_on_from_the_newest_checkpoint(attempts, make_job, tmp_path):
    job = make_job(tmp_path)
    fake = attempts((4, "killed"), (8, "killed"), (12, None))
    outcome = run(job)
    assert fake.resumed == [0, 4, 8]
    assert (outcome.checkpoint.step, outcome.checkpoint.attempt, outcome.restarts) == (12, 3, 2)
    kinds = [event["event"] for event in RunFolder(job.folder).events()]
    assert kinds == ["attempt_started", "attempt_failed"] * 2 + ["attempt_started", "finished"]


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_attempts_without_progress_are_bounded(allowed, attempts, make_job, tmp_path):
    job = make_job(tmp_path, training={"faults": {"max_restarts": allowed}})
    fake = attempts(*[(0, "rank 3: out of memory")] * 10)
    with pytest.raises(ClusterError, match=r"beyond step 0, attempts: .; the last: rank 3: out of"):
        run(job)
    assert fake.resumed == [0] * (allowed + 1)


def test_attempts_with_progress_are_not_bounded(attempts, make_job, tmp_path):
    job = make_job(tmp_path, training={"faults": {"max_restarts": 1}})
    fake = attempts(*[(step, "killed") for step in range(1, 12)], (12, None))
    assert run(job).restarts == 11
    assert fake.resumed == list(range(12))


def test_attempts_that_end_well_but_leave_nothing_are_bounded_too(attempts, make_job, tmp_path):
    job = make_job(tmp_path, training={"faults": {"max_restarts": 2}})
    attempts(*[(0, None)] * 10)
    with pytest.raises(ClusterError, match="it left no whole checkpoint behind"):
        run(job)
    assert len(RunFolder(job.folder).attempts()) == 3


def test_a_finished_run_takes_no_attempt(attempts, make_job, tmp_path):
    job = make_job(tmp_path)
    attempts((12, None))
    first = run(job)
    attempts()
    assert run(job) == first


def test_a_damaged_checkpoint_is_passed_over_and_put_on_record(attempts, make_job, tmp_path):
    job = make_job(tmp_path)
    folder = RunFolder(job.folder)
    folder.take_attempt(0)
    commit(job, 4, 1)
    (commit(job, 8, 1) / "tokenizer.json").unlink()
    fake = attempts((12, None))
    assert run(job).checkpoint.step == 12
    assert fake.resumed == [4]
    (damage,) = [e["problem"] for e in folder.events() if e["event"] == "checkpoint_damaged"]
    assert damage.endswith("step_00000008/attempt-0001/tokenizer.json: gone")


# --- real workers


@dataclasses.dataclass(frozen=True)
class Faulty:
    """Batches that end badly at `step`: once, or each time if there is no `marker` to leave."""

    make: functools.partial
    step: int
    marker: str | None = None
    mendable: bool = False  # by the user

    def __call__(self):
        return dataclasses.replace(self, make=self.make())

    def micro_batches(self, step):
        return self.make.micro_batches(step)

    def targets(self, step):
        return self.make.targets(step)

    def data_before(self, step):
        return self.make.data_before(step)

    def micro_batch(self, step, index):
        if step == self.step and dist.get_rank() == dist.get_world_size() - 1:
            if self.marker is None and self.mendable:
                raise DataError("tokens: changed; tokenize again")
            if self.marker is None:
                raise RuntimeError("first line\nthe disk of the data is gone")
            if not Path(self.marker).exists():
                Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.make.micro_batch(step, index)


def reading_nothing_ahead(job, **changes):
    """So that a fault in the data of a step comes after all steps before it."""
    training = job.training.model_copy(update={"prefetch_steps": 0})
    return dataclasses.replace(job, training=training, **changes)


def batches_that_are_gone():
    raise DataError("tokens: no token shards here")


@pytest.fixture(scope="module")
def cluster():
    """A local Ray for this module; its workers get what is defined here by value."""
    connect(1, "workers")
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.chaos
def test_a_run_whose_worker_is_killed_ends_as_if_nothing_had_been(
    cluster, straight, last_weights, tmp_path
):
    undisturbed = straight(2)
    faulty = Faulty(undisturbed.make_batches, step=10, marker=str(tmp_path / "killed"))
    job = reading_nothing_ahead(undisturbed, folder=str(tmp_path / "run"), make_batches=faulty)
    outcome = run(job, workers=2)
    assert (outcome.restarts, outcome.checkpoint.step) == (1, 20)
    assert (tmp_path / "killed").exists()
    folder = RunFolder(job.folder)
    assert [attempt.resumed_step for attempt in folder.attempts()] == [0, 8]
    (failure,) = [event for event in folder.events() if event["event"] == "attempt_failed"]
    assert failure["problem"].startswith("the process of rank 1 died")
    for name in ("train/loss", "train/grad_norm", "train/lr", "train/tokens"):
        series = [[line[name] for line in metrics.series(j.folder)] for j in (job, undisturbed)]
        assert series[0] == series[1]
    assert last_weights(job) == last_weights(undisturbed)
    assert trained_samples(folder) == trained_samples(RunFolder(undisturbed.folder))
    assert newest_valid(folder)[0] == outcome.checkpoint


@pytest.mark.ray
@pytest.mark.slow
def test_what_the_user_must_mend_ends_the_run_at_once(cluster, make_job, tmp_path):
    job = dataclasses.replace(make_job(tmp_path), make_batches=batches_that_are_gone)
    with pytest.raises(DataError, match=r"^tokens: no token shards here$"):
        run(job)
    assert len(RunFolder(job.folder).attempts()) == 1


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 2])
def test_what_the_user_must_mend_ends_the_run_at_once_when_one_of_two_workers_meets_it(
    cluster, make_job, tmp_path, ahead
):
    job = make_job(tmp_path, training={"prefetch_steps": ahead})
    faulty = Faulty(job.make_batches, step=6, mendable=True)
    with pytest.raises(DataError, match=r"^tokens: changed; tokenize again$"):
        run(dataclasses.replace(job, make_batches=faulty), workers=2)
    assert len(RunFolder(job.folder).attempts()) == 1


@pytest.mark.ray
@pytest.mark.slow
def test_a_worker_that_always_raises_is_given_up_with_its_reason(cluster, make_job, tmp_path):
    job = make_job(tmp_path, training={"faults": {"max_restarts": 0}})
    job = reading_nothing_ahead(job, make_batches=Faulty(job.make_batches, step=2))
    with pytest.raises(
        ClusterError, match=r"attempts: 1; .* rank 0: .*: the disk of the data is gone$"
    ):
        run(job)
    assert len(RunFolder(job.folder).attempts()) == 1


@pytest.mark.ray
def test_more_workers_than_there_are_cpus_are_refused(cluster, make_job, tmp_path):
    with pytest.raises(ConfigError, match="workers: 999 workers of 1 CPU each, but Ray has"):
        run(make_job(tmp_path), workers=999)
    assert RunFolder(str(tmp_path)).attempts() == []
