"""Roll-back to a checkpoint from before a loss spike, skipping the spike's data.

Rank 0 takes a new attempt (run_folder.py). Its record makes every reader ignore the checkpoints
after the one to resume from, and names the data to skip. Then the current attempt ends, and the
next one resumes from there as after any other end.
"""

import torch.distributed as dist

from trainrig.errors import Diverged
from trainrig.train.checkpoint.found import read_entries
from trainrig.train.checkpoint.manifest import find_damage, list_committed
from trainrig.train.job import TrainingJob
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.spikes import DataRange, Spike, SpikeDetector
from trainrig.train.state import TrainState


def watch_for_spikes(job: TrainingJob, state: TrainState) -> None:
    """Set up the spike detector and the data to skip in `state`. Collective.

    `state` is fresh or about to be filled from a checkpoint. The data to skip comes from the run
    file and from earlier spikes.
    """
    recorded: list[tuple[DataRange, ...]] = [()]
    if dist.get_rank() == 0:  # only rank 0 reads it: ranks that saw different records would diverge
        attempts = RunFolder(job.folder).read_attempts()
        recorded = [tuple(DataRange(*attempt.skip) for attempt in attempts if attempt.skip)]
    dist.broadcast_object_list(recorded, src=0)
    by_hand = tuple(DataRange(*skipped) for skipped in job.training.skip_data)
    state.skip_ranges = tuple(sorted({*recorded[0], *by_hand}))
    state.detector = SpikeDetector(job.training.spikes, job.new_levels, state.skip_ranges)


def roll_back(
    job: TrainingJob, attempt: TrainingAttempt, state: TrainState, spike: Spike
) -> int | None:
    """Have the next attempt resume from before `spike` and skip its data. Collective.

    No checkpoint may be in the process of being written. Returns the step to resume from; None if
    no checkpoint is old enough, so that the run continues as it is. Raises Diverged on all ranks if
    the run has rolled back to the same place too often.
    """
    if state.detector.gives_up(spike):
        raise Diverged(
            f"{job.folder}: loss spike at data steps {spike.first} to {spike.last}, where the run "
            f"has already rolled back {spike.again} times; lower training.optimizer.lr, set "
            "training.spikes.rate_cut, or inspect the data with `trainrig trace`"
        )
    answer: list[int | None] = [None]
    if dist.get_rank() == 0:
        answer = [_record(job, attempt, state, spike)]
    dist.broadcast_object_list(answer, src=0)
    return answer[0]


def _record(
    job: TrainingJob, attempt: TrainingAttempt, state: TrainState, spike: Spike
) -> int | None:
    folder = RunFolder(job.folder)
    details = {
        "step": state.step,
        "outliers": spike.outliers,
        "first": spike.first,
        "last": spike.last,
        "skip": [spike.skip.begin, spike.skip.end],
    }
    to = _find_newest_before(folder, spike.skip.begin)
    if to is None and state.step > 2 * job.training.checkpoints.every:
        # Early checkpoints were deleted; starting from step 0 would cost more than the spike.
        what = f"no checkpoint from before data step {spike.skip.begin} is left"
        folder.record("spike", attempt=attempt.number, **details, back_to=None, what=what)
        return None
    back_to = to or 0
    folder.record("spike", attempt=attempt.number, **details, back_to=back_to)
    folder.take_attempt(back_to, (spike.skip.begin, spike.skip.end))
    return back_to


def _find_newest_before(folder: RunFolder, data_step: int) -> int | None:
    """Return the step of the newest valid checkpoint trained only on data before `data_step`."""
    for path, step, _ in list_committed(folder, folder.checkpoints):
        whole = find_damage(path, thorough=False) is None
        if whole and read_entries(path)["data_step"] <= data_step:
            return step
    return None
