"""Training of one sweep trial in this process, as the only rank.

A trial is one model with one seed, and runs of several lengths. The longest run is the *trunk*; the
others *branch* from its checkpoints where their own learning rates begin to decay (trials.py).

Run folders alone record what has finished: a run with a manifest has finished, and one with
`diverged.json` was given up. Therefore an interrupted trial resumes from its last checkpoint, and
nothing is trained twice.
"""

import contextlib
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from trainrig import manifest, storage
from trainrig.config import to_toml, with_absolute_paths
from trainrig.errors import ClusterError, Diverged, Unfinished
from trainrig.manifest import Stage
from trainrig.objectives.next_token import CROSS_ENTROPY
from trainrig.parallel.mesh import join_group
from trainrig.processes.heartbeats import UNSUPERVISED, HeartbeatSink
from trainrig.processes.stop_file import LOOK_EVERY
from trainrig.scaling.sweep import trials
from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.scaling.sweep.sweep_tasks import is_scored_on_tasks, score_tasks
from trainrig.train import checkpoint
from trainrig.train.checkpoint.manifest import list_committed
from trainrig.train.elastic.supervise import TrainingResult
from trainrig.train.loop import train
from trainrig.train.pretrain import finish, prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.training_job import TrainingJob

DIVERGED = "diverged.json"
Train = Callable[[Stage, TrainingJob], None]
"""Function that trains the run of a claimed folder to its end and writes the folder's manifest."""


def train_trial(
    sweep: Sweep, trial: trials.Trial, data: trials.SweepTokens, train_run: Train
) -> None:
    """Train all unfinished runs of `trial`, and evaluate each model on the sweep's tasks.

    The trunk is trained first, then the branches from it. Raises Unfinished on a stop request, and
    InputError for mistakes of the user that every trial would meet. A run that diverges is recorded
    as such and raises no error.
    """
    for length in reversed(trial.lengths):
        folder = trials.name_run_folder(sweep, trial, length)
        if not is_over(folder):
            _train_length(sweep, trial, length, data, train_run)
        if not is_complete(sweep, folder):
            score_tasks(sweep, folder)


def _train_length(
    sweep: Sweep,
    trial: trials.Trial,
    length: trials.TrialLength,
    data: trials.SweepTokens,
    train_run: Train,
) -> None:
    """Train one run of `trial`, or record that it diverged."""
    branch_from = (
        None if length == trial.trunk else _find_branching_checkpoint(sweep, trial, length)
    )
    divergence = _find_divergence(sweep, trial, length)
    stage, job = claim_output(trials.build_run_file(sweep, trial, length, data), branch_from)
    if stage.finished:
        return
    try:
        if divergence:
            raise Diverged(divergence)
        train_run(stage, job)
    except Diverged as error:
        write_diverged(trials.name_run_folder(sweep, trial, length), str(error))


def is_over(folder: str) -> bool:
    """Return whether the run in `folder` has finished or was given up."""
    return any(storage.exists(storage.join(folder, name)) for name in (manifest.MANIFEST, DIVERGED))


def is_complete(sweep: Sweep, folder: str) -> bool:
    """Return whether the run in `folder` is over and its model was evaluated on all tasks.

    A run that diverged has no model to evaluate.
    """
    return is_over(folder) and (
        read_diverged(folder) is not None or is_scored_on_tasks(sweep, folder)
    )


def write_diverged(folder: str, reason: str) -> None:
    """Record that the run in `folder` was given up, with the reason and the last step."""
    losses = metrics.read_series(folder)
    last = losses[-1] if losses else {"step": 0, "train/tokens": 0}
    entries = {"reason": reason, "step": last["step"], "tokens": last["train/tokens"]}
    storage.write(storage.join(folder, DIVERGED), json.dumps(entries, indent=1).encode())


def read_diverged(folder: str) -> dict[str, Any] | None:
    """Return the record of a run that was given up, or None if it was not."""
    path = storage.join(folder, DIVERGED)
    if not storage.exists(path):
        return None
    entries: dict[str, Any] = json.loads(storage.read(path))
    return entries


def claim_output(run: Pretraining, branch_from: str | None = None) -> tuple[Stage, TrainingJob]:
    """Record in the folder of `run` that it belongs to this run; return the claim and its job.

    A branch starts from the state of the checkpoint `branch_from`.
    """
    inputs = {"tokens": manifest.read_input(run.tokens, "tokenize").content}
    if branch_from:
        inputs["branch_from"] = checkpoint.compute_content_key(branch_from)
    job = dataclasses.replace(prepare(run), branch_from=branch_from)
    stage = manifest.claim(job.folder, run, inputs)
    if not stage.finished:
        storage.write(stage.build_path("run.toml"), to_toml(with_absolute_paths(run)).encode())
    return stage, job


def _find_branching_checkpoint(
    sweep: Sweep, trial: trials.Trial, length: trials.TrialLength
) -> str | None:
    """Return the trunk's checkpoint that the run of `length` continues from.

    Returns None if there is no intact one. The run then starts at its first step, with the same
    result.
    """
    wanted = trials.count_stable_steps(sweep, trial, length)
    trunk = RunFolder(trials.name_run_folder(sweep, trial, trial.trunk))
    for path, step, _ in list_committed(trunk, trunk.checkpoints):
        if step == wanted and checkpoint.find_damage(path) is None:
            return path
    return None


def _find_divergence(sweep: Sweep, trial: trials.Trial, length: trials.TrialLength) -> str | None:
    """Return why the run of `length` need not be trained, or None.

    The reason is that the trunk diverged before the step where this run branches from it.
    """
    if length == trial.trunk:
        return None
    divergence = read_diverged(trials.name_run_folder(sweep, trial, trial.trunk))
    if divergence is None or divergence["step"] >= trials.count_stable_steps(sweep, trial, length):
        return None
    return (
        "it shares its first steps with the longest run of its trial, which diverged: "
        f"{divergence['reason']}"
    )


class SingleRankTrainer:
    """Trainer of runs in this process, as the only rank of its process group."""

    def __init__(self, heartbeats: HeartbeatSink = UNSUPERVISED) -> None:
        self._heartbeats = heartbeats
        self.training_seconds = 0.0  # time that updates and held-out losses took
        self.run, self.step = "", 0  # folder of the current run, and its number of updates so far

    def __call__(self, stage: Stage, job: TrainingJob) -> None:
        """Train the run of `job` to its end; raise Unfinished on a stop request."""
        if not self.train_until(job, job.training.steps):
            raise Unfinished(f"{job.folder}: stopped; the last step is saved")
        folder = RunFolder(job.folder)
        newest, _ = checkpoint.find_newest_valid(folder, thorough=False)
        assert newest is not None
        check_sane(job)
        finish(stage, job, TrainingResult(newest, restarts=max(0, len(folder.read_attempts()) - 1)))

    def train_until(self, job: TrainingJob, step: int) -> bool:
        """Train until `step` updates are saved, or return False on a stop request.

        Raises ClusterError if another process has taken the run over. One of the two must give way,
        or each would undo the other's work for ever.
        """
        folder = RunFolder(job.folder)
        while True:
            newest, _ = checkpoint.find_newest_valid(folder, thorough=False)
            if newest and newest.step >= step:
                return True
            attempt = folder.take_attempt(newest.step if newest else 0)
            self.run, self.step = job.folder, newest.step if newest else 0
            heartbeats = _StopAfterStep(step, self)
            try:
                train(job, attempt, newest.path if newest else None, heartbeats)
            except checkpoint.DamagedCheckpoint:
                # the checkpoint is marked as damaged, so the next round takes the one before
                continue
            finally:
                self.training_seconds += metrics.measure_attempt_seconds(job.folder, attempt.number)
            if folder.read_attempts()[-1].number > attempt.number:
                raise ClusterError(
                    f"{job.folder}: another process took the run over from attempt "
                    f"{attempt.number}; that process continues, and this one ends"
                )
            if self._heartbeats.stop_wanted():
                return False

    def heartbeat(self, step: int, doing: str) -> None:
        """Note the step, and pass the heartbeat on."""
        self.step = step
        self._heartbeats.heartbeat(step, doing)

    def stop_wanted(self) -> bool:
        """Return whether the supervisor wants this process to stop."""
        return self._heartbeats.stop_wanted()


class _StopAfterStep:
    """Heartbeat sink that requests a stop after a number of updates, or when another sink does."""

    def __init__(self, step: int, other: HeartbeatSink) -> None:
        self._step = step
        self._other = other
        self._reached = False

    def heartbeat(self, step: int, doing: str) -> None:
        """Note whether the last update is done, and pass the heartbeat on.

        A heartbeat of a measurement after the last update takes the note back, so the measurement
        finishes before the stop.
        """
        self._reached = step >= self._step and doing == "train"
        self._other.heartbeat(step, doing)

    def stop_wanted(self) -> bool:
        """Return whether the last update is done, or the other sink requests a stop."""
        return self._reached or self._other.stop_wanted()


class StopFile:
    """Heartbeat sink that requests a stop while a file exists.

    The driver of the sweep, which writes the file, may run on another machine.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._wanted = False
        self._looked = float("-inf")

    def heartbeat(self, step: int, doing: str) -> None:
        """Ignore the heartbeat; the sweep's progress is read from the run folders."""

    def stop_wanted(self) -> bool:
        """Return whether the file exists, or has existed.

        The file is looked up at most once in LOOK_EVERY seconds.
        """
        if not self._wanted and time.monotonic() - self._looked >= LOOK_EVERY:
            self._looked = time.monotonic()
            self._wanted = storage.exists(self._path)
        return self._wanted


def check_sane(job: TrainingJob) -> None:
    """Raise Diverged if the final held-out loss is not finite or above log(vocabulary) nats.

    That is the loss of a uniform guess over the vocabulary.
    """
    measured = metrics.read_held_out_series(job.folder)
    if not measured:
        return
    guess = math.log(job.model.shape.vocabulary)
    newest = measured[-1]
    loss = newest.get(f"eval/terms/{CROSS_ENTROPY}", newest["eval/loss"])
    if loss is None or loss > guess:
        raise Diverged(
            f"its held-out loss is {'not finite' if loss is None else f'{loss:.3f}'}, but "
            f"guessing among {job.model.shape.vocabulary} entries has {guess:.3f}"
        )


@contextlib.contextmanager
def join_single_rank_group() -> Iterator[None]:
    """Make this process a process group of one rank while the block runs."""
    with tempfile.TemporaryDirectory(prefix="trainrig-trial-") as rendezvous:
        join_group(0, 1, f"file://{rendezvous}/store", timedelta(minutes=5))
        try:
            yield
        finally:
            dist.destroy_process_group()
