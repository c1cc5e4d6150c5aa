import collections
from pathlib import Path

import numpy as np
import pytest

from trainrig.tokens.batches import MicroBatch
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import SampleLog, read_trained_samples

STEPS = 20  # steps of the undisturbed runs


def micro_batch(*samples: int) -> MicroBatch:
    nothing = np.zeros((len(samples), 1), dtype=np.int64)
    none = np.zeros((0, 3), dtype=np.int64)
    return MicroBatch({}, np.array(samples, dtype=np.int64), nothing[:, 0], none)


def log(folder: RunFolder, attempt: int, rank: int, steps: dict[int, list[MicroBatch]]) -> None:
    writer = SampleLog(folder.path, attempt, rank)
    for step, batch in steps.items():
        writer.write(step, batch)
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_each_step_is_trained_on_its_own_batch_whole_and_once(world, straight):
    job = straight(world)
    batches = job.make_batches()
    assert read_trained_samples(RunFolder(job.folder)) == {
        step: sorted(int(s) for micro in batches.at(step - 1) for s in micro.samples)
        for step in range(1, STEPS + 1)
    }


@pytest.mark.slow
def test_no_two_ranks_train_on_the_same_sample(straight):
    folder = Path(straight(3).folder, "samples", "attempt-0001")
    pairs = collections.Counter(
        pair
        for path in folder.iterdir()
        for pair in np.fromfile(path, "<i8").reshape(-1, 2).tolist()
        for pair in [tuple(pair)]
    )
    assert len(list(folder.iterdir())) == 3
    assert len(pairs) == STEPS * 8 and set(pairs.values()) == {1}


def test_ranks_and_micro_batches_of_a_step_are_put_together(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.take_attempt(0)
    log(folder, 1, rank=0, steps={1: [micro_batch(4, 1)], 2: [micro_batch(9, 6)]})
    log(folder, 1, rank=1, steps={1: [micro_batch(0), micro_batch(3)], 2: []})
    assert read_trained_samples(folder) == {1: [0, 1, 3, 4], 2: [6, 9]}


def test_a_step_taken_again_counts_as_the_newest_attempt_took_it(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.take_attempt(0)
    log(folder, 1, rank=0, steps={1: [micro_batch(1)], 2: [micro_batch(2)], 3: [micro_batch(3)]})
    folder.take_attempt(1)
    assert read_trained_samples(folder) == {1: [1]}  # everything after step 1 is undone
    log(folder, 2, rank=0, steps={2: [micro_batch(20)]})
    assert read_trained_samples(folder) == {1: [1], 2: [20]}
    # An attempt that outlives its successor changes nothing.
    log(folder, 1, rank=0, steps={2: [micro_batch(2)]})
    assert read_trained_samples(folder) == {1: [1], 2: [20]}


def test_a_torn_last_pair_is_left_out(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.take_attempt(0)
    log(folder, 1, rank=0, steps={1: [micro_batch(7)], 2: [micro_batch(8)]})
    path = tmp_path / "samples" / "attempt-0001" / "rank-00000.bin"
    path.write_bytes(path.read_bytes()[:-5])
    assert read_trained_samples(folder) == {1: [7]}


def test_nothing_trained_is_nothing_logged(tmp_path):
    assert read_trained_samples(RunFolder(str(tmp_path))) == {}
