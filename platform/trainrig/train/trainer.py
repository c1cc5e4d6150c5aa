"""A job on Ray Train: attempts in a row, each a group of workers of fixed size, until it is done.

Ray is told as little as can be. It starts the workers and sees them die; which checkpoint is the
newest whole one, and from which step to go on, is read from storage by us before each attempt.
Restarting here, not inside Ray Train, also outlives the death of its controller.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import ClusterError, InputError
from trainrig.ray_session import WORKER_ENVIRONMENT, connect
from trainrig.train.checkpoint import Checkpoint, newest_valid
from trainrig.train.loop import train
from trainrig.train.run_folder import Attempt, RunFolder
from trainrig.train.state import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    checkpoint: Checkpoint  # of the last step
    restarts: int  # over the whole life of the run folder


def check_fit(workers: int) -> None:
    """Raise ConfigError if Ray, which is joined or started for it, has no room for `workers`."""
    connect(workers, "workers")


def run(job: Job, workers: int) -> Outcome:
    """Train `job` to its last step on `workers` Ray workers, restarting after faults.

    Raises InputError for what the user must fix, ClusterError when workers fail more often than
    the job allows.
    """
    check_fit(workers)
    folder = RunFolder(job.folder)
    without_progress = 0
    last_step = -1
    problem = None
    while True:
        newest = _newest(folder)
        step = newest.step if newest else 0
        if newest and step >= job.training.steps:
            folder.record("finished", step=step)
            return Outcome(newest, restarts=len(folder.attempts()) - 1)
        without_progress = 0 if step > last_step else without_progress + 1
        last_step = max(step, last_step)
        if without_progress > job.training.faults.max_restarts:
            raise ClusterError(
                f"{job.folder}: no progress beyond step {step}, attempts: {without_progress}; the "
                f"last: {problem or 'it left no whole checkpoint behind'}"
            )
        attempt = folder.take_attempt(step)
        folder.record("attempt_started", attempt=attempt.number, step=step, workers=workers)
        problem = _attempt(job, attempt, newest.path if newest else None, workers)
        if problem:
            folder.record("attempt_failed", attempt=attempt.number, problem=problem[:500])
            _remove_placement_group(folder, attempt)
            log.warning("attempt %d failed (%s)", attempt.number, problem)


def _newest(folder: RunFolder) -> Checkpoint | None:
    newest, damages = newest_valid(folder)
    for damage in damages:
        folder.record("checkpoint_damaged", problem=damage[:500])
        log.warning("passed over a damaged checkpoint: %s", damage)
    return newest


def _attempt(job: Job, attempt: Attempt, resume_from: str | None, workers: int) -> str | None:
    """One group of workers from start to end; what went wrong in one line, or None."""
    import ray.exceptions
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

    trainer = TorchTrainer(
        _worker,
        train_loop_config={"job": job, "attempt": attempt, "resume_from": resume_from},
        torch_config=TorchConfig(timeout_s=int(job.training.faults.collective_timeout)),
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": 1}, use_gpu=_cluster_has_gpus()
        ),
        run_config=RunConfig(  # type: ignore[arg-type] # typed as the one it replaced
            # A name that was used before would make Ray resume by its own record.
            name=f"attempt-{attempt.number:04d}",
            storage_path=storage.join(job.folder, "ray"),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            worker_runtime_env={"env_vars": WORKER_ENVIRONMENT},
        ),
    )
    try:
        trainer.fit()
    except WorkerGroupError as error:
        for failure in error.worker_failures.values():
            if isinstance(failure, InputError):
                raise failure from None
        return _root_cause(error.worker_failures)
    except (TrainingFailedError, ray.exceptions.RayActorError) as error:
        return f"Ray's controller of the attempt failed: {_last_line(error)}"
    return None


def _root_cause(failures: Mapping[int, Exception]) -> str:
    """One line for a failed group. A dead process is the cause; broken collectives follow it."""
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

    dead = [
        rank for rank, error in failures.items() if isinstance(error, WorkerHealthCheckFailedError)
    ]
    if dead:
        others = f" (and {len(dead) - 1} more)" if len(dead) > 1 else ""
        return (
            f"the process of rank {min(dead)} died{others}: killed, out of memory, or its node lost"
        )
    rank = min(failures)
    return f"rank {rank}: {_last_line(failures[rank])}"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _cluster_has_gpus() -> bool:
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0) >= 1


def _worker(config: Mapping[str, Any]) -> None:
    """What each Ray worker runs; the process group is up."""
    import ray.train
    from ray.util.placement_group import get_current_placement_group

    job: Job = config["job"]
    attempt: Attempt = config["attempt"]
    group = get_current_placement_group()
    RunFolder(job.folder).record(
        "worker_started",
        attempt=attempt.number,
        rank=ray.train.get_context().get_world_rank(),
        placement_group=group.id.hex() if group else None,
    )
    train(job, attempt, config["resume_from"])


def _remove_placement_group(folder: RunFolder, attempt: Attempt) -> None:
    """Free what a killed controller leaves reserved: the next attempt would wait for it forever."""
    from ray._raylet import PlacementGroupID
    from ray.util import remove_placement_group
    from ray.util.placement_group import PlacementGroup, placement_group_table

    started = [e for e in folder.events() if e["event"] == "worker_started"]
    ids = {e["placement_group"] for e in started if e["attempt"] == attempt.number}
    table: Mapping[str, Any] = placement_group_table()
    for hexadecimal in ids - {None}:
        if table.get(hexadecimal, {}).get("state") not in {None, "REMOVED"}:
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(hexadecimal))))
