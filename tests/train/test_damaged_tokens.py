"""A flipped bit of a token shard at any time: the run ends, and names file and block."""

import shutil
from pathlib import Path

import pytest

from trainrig.errors import DataError
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.loop import train
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder


def flip_a_bit(shard: Path) -> None:
    with shard.open("r+b") as file:  # written in place: memory maps see the change
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))


@pytest.mark.slow
def test_a_bit_that_flips_in_a_run_ends_it_and_each_after_it(
    alone, make_job, tokens, tmp_path, monkeypatch
):
    copy = shutil.copytree(tokens, tmp_path / "tokens")
    (shard,) = (copy / "train").glob("*.bin")  # less than a block long, so any step reads it
    training = {"checkpoints": {"every": 3}}
    job = make_job(tmp_path / "run", tokens=str(copy), training=training)
    folder = RunFolder(job.folder)
    write = metrics.MetricsWriter.write
    flipped = []

    def write_and_flip(writer, step, values):
        write(writer, step, values)
        if step == 6 and not flipped:
            flipped.append(flip_a_bit(shard))

    named = rf"^{shard}: damaged: block 0 \(bytes 0 to .*; restore the file, or tokenize again$"
    with monkeypatch.context() as patch, pytest.raises(DataError, match=named):
        patch.setattr(metrics.MetricsWriter, "write", write_and_flip)
        train(job, folder.take_attempt(0), None)
    last, damages = find_newest_valid(folder)
    assert last is not None and not damages and last.step in (6, 9)  # prefetched batches are intact
    taken = len(list(metrics.read_lines(job.folder)))
    with pytest.raises(DataError, match=named):
        train(job, folder.take_attempt(last.step), last.path)
    assert len(list(metrics.read_lines(job.folder))) == taken
    flip_a_bit(shard)  # repaired: the run continues from its checkpoint
    assert train(job, folder.take_attempt(last.step), last.path).step == 12

    another = make_job(tmp_path / "another", tokens=str(copy))
    flip_a_bit(shard)
    with pytest.raises(DataError, match=named):
        train(another, RunFolder(another.folder).take_attempt(0), None)
