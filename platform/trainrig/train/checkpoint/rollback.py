"""Going back to a checkpoint from before a spike, and past its data.

What is written is one attempt's record (run_folder.py), by rank 0: it has every reader ignore the
checkpoints after the one to go on from, and names the data to skip. The attempt ends then, and the
next one goes on from there, as after any other end of one.
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
    """Have `state`, fresh or about to be filled from a checkpoint, watched for spikes, and skip the
    data that the run file or an earlier spike says. Every rank calls it."""
    recorded: list[tuple[DataRange, ...]] = [()]
    if dist.get_rank() == 0:  # a rank that saw another record than the others would part from them
        attempts = RunFolder(job.folder).read_attempts()
        recorded = [tuple(DataRange(*each.skip) for each in attempts if each.skip)]
    dist.broadcast_object_list(recorded, src=0)
    by_hand = tuple(DataRange(*each) for each in job.training.skip_data)
    state.skip_ranges = tuple(sorted({*recorded[0], *by_hand}))
    state.detector = SpikeDetector(job.training.spikes, job.new_levels, state.skip_ranges)


def roll_back(
    job: TrainingJob, attempt: TrainingAttempt, state: TrainState, spike: Spike
) -> int | None:
    """Have the run go on from before `spike`, past its data; the step it goes on from. Every rank
    calls it, once no checkpoint is being written.

    None: there is no checkpoint old enough, so it goes on as it is. Raises Diverged, on all ranks,
    if the run has gone back to the same place too often.
    """
    if state.detector.gives_up(spike):
        raise Diverged(
            f"{job.folder}: a spike at the data steps {spike.first} to {spike.last}, where the run "
            f"has gone back {spike.again} times; lower training.optimizer.lr, set "
            "training.spikes.rate_cut, or see with `trainrig trace` what data it is"
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
    told = {
        "step": state.step,
        "outliers": spike.outliers,
        "first": spike.first,
        "last": spike.last,
        "skip": [spike.skip.begin, spike.skip.end],
    }
    to = _find_newest_before(folder, spike.skip.begin)
    if to is None and state.step > 2 * job.training.checkpoints.every:
        # Those were deleted since; to begin anew would cost more than the spike does.
        what = f"no checkpoint from before data step {spike.skip.begin} is left"
        folder.record("spike", attempt=attempt.number, **told, back_to=None, what=what)
        return None
    back_to = to or 0
    folder.record("spike", attempt=attempt.number, **told, back_to=back_to)
    folder.take_attempt(back_to, (spike.skip.begin, spike.skip.end))
    return back_to


def _find_newest_before(folder: RunFolder, data_step: int) -> int | None:
    """The step of the newest whole checkpoint in which nothing was learnt from `data_step` on."""
    for path, step, _ in list_committed(folder, folder.checkpoints):
        whole = find_damage(path, thorough=False) is None
        if whole and read_entries(path)["data_step"] <= data_step:
            return step
    return None
