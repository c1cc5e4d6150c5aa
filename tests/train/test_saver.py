"""Saving during training: the contents, failures, and further copies."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_disk import mount_small_disk
from torch.distributed.checkpoint import HuggingFaceStorageReader, state_dict_loader

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.parallel.mesh import find_local_device
from trainrig.storage import bucket_files
from trainrig.train.checkpoint import Saver, find_newest_valid, load, open_model, saver
from trainrig.train.checkpoint.manifest import name_checkpoint_folder
from trainrig.train.checkpoint.rank_file import find_held
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.state import build_fresh_state

WAIT = 60  # s, never reached


class Alone:
    """A run of one rank in this process, which only saves and loads."""

    def __init__(self, job):
        self.job = job
        self.folder = RunFolder(job.folder)
        self.state = build_fresh_state(job, find_local_device())
        self.saver = Saver(self.folder, self.folder.take_attempt(0), job, job.make_batches())

    def save(self, step):
        self.state.step = self.state.data_step = step
        self.saver.save(self.state)

    def loaded(self, checkpoint):
        fresh = build_fresh_state(self.job, find_local_device())
        load(checkpoint, fresh, self.job, self.job.make_batches())
        return fresh

    def events(self, kind):
        return [event for event in self.folder.read_events() if event["event"] == kind]


@pytest.fixture
def run(alone, make_job, tmp_path):
    """Return `run(keep=3)`: a run with these settings of checkpoints."""

    def make(folder=None, **checkpoints):
        return Alone(make_job(folder or tmp_path / "run", training={"checkpoints": checkpoints}))

    return make


@pytest.fixture
def gate(monkeypatch):
    """Block the threads that write tensors until the test releases them."""
    go = threading.Event()
    sound = saver.rank_file.StagedFile.write

    def write(staged, path):
        assert go.wait(WAIT)
        return sound(staged, path)

    monkeypatch.setattr(saver.rank_file.StagedFile, "write", write)
    yield go
    go.set()


def copy_tensors(state):
    """Return copies of the single rank's tensors."""
    return {
        name: find_held(tensor)[0].clone().numpy() for name, tensor in state.list_tensors().items()
    }


# --- contents


def test_changes_after_the_call_are_not_saved(run, gate):
    job = run()
    job.state.tokens = 7
    job.state.skipped = [(1, 3), (5, 6)]
    before = copy_tensors(job.state)
    job.save(4)
    for value in job.state.list_tensors().values():
        value.add_(1)
    job.state.step = 5
    job.state.data_step = 9
    job.state.tokens = 8
    job.state.skipped.append((8, 9))
    # So the call returned before anything was written.
    assert find_newest_valid(job.folder)[0] is None
    gate.set()
    job.saver.finish()
    newest, _ = find_newest_valid(job.folder)
    there = job.loaded(newest.path)
    assert (there.step, there.data_step, there.tokens) == (4, 4, 7)
    assert there.skipped == [(1, 3), (5, 6)]
    after = copy_tensors(there)
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_a_save_waits_for_the_one_before(run, gate):
    job = run()
    job.save(4)
    second = threading.Thread(target=job.save, args=(8,))
    second.start()
    assert find_newest_valid(job.folder)[0] is None
    gate.set()
    second.join(WAIT)
    job.saver.finish()
    assert [event["step"] for event in job.events("checkpoint")] == [4, 8]
    assert find_newest_valid(job.folder)[0].step == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_torch_reads_what_three_ranks_wrote(straight, ranks, tmp_path):
    """The files are torch's own distributed checkpoints in safetensors form."""
    job = straight(3)
    path = name_checkpoint_folder(RunFolder(job.folder).checkpoints, 8, 1)
    (ours,) = ranks(1, "tensors", job=job, resume_from=path)
    ours.pop("counters")
    theirs = {name: torch.full(value.shape, -1.0) for name, value in ours.items()}
    state_dict_loader.load(theirs, storage_reader=HuggingFaceStorageReader(path), no_dist=True)
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name].numpy(), value)


def test_ranks_write_each_byte_once_and_about_as_many_as_each_other(straight):
    path = Path(name_checkpoint_folder(RunFolder(straight(3).folder).checkpoints, 8, 1))
    sizes = sorted(file.stat().st_size for file in path.glob("*.safetensors"))
    weights = sum(value.nbytes for value in open_model(str(path)).weights.values())
    assert len(sizes) == 3
    assert sizes[2] < 1.2 * sizes[0]
    assert sum(sizes) < 3 * weights + 3 * 2**15  # weights and two moments, and headers


@pytest.mark.parametrize(
    ("layout", "world"), [({"kind": "DDP"}, 2), ({"kind": "HSDP", "replicas": 2}, 4)]
)
def test_replicated_tensors_are_written_once(layout, world, ranks, make_job, tmp_path):
    training = {"parallel": layout, "deterministic": False}
    job = make_job(tmp_path / "run", world, training=training)
    folder = RunFolder(job.folder)
    assert ranks(world, "saved", job=job, attempt=folder.take_attempt(0)) == [""] * world
    path = find_newest_valid(folder)[0].path
    sizes = [file.stat().st_size for file in Path(path).glob("*.safetensors")]
    plain = make_job(tmp_path / "plain")
    (fresh,) = ranks(1, "tensors", job=plain)
    (read,) = ranks(1, "tensors", job=plain, resume_from=path)
    assert len(sizes) == world and max(sizes) < 1.5 * min(sizes)
    held = sum(value.nbytes for name, value in fresh.items() if name != "counters")
    assert held < sum(sizes) < held + world * 2**15  # and headers
    for name, value in fresh.items():
        np.testing.assert_array_equal(read[name], value)


# --- failures


@pytest.fixture
def small_disk(tmp_path):
    """Return a file system with space for one and a half checkpoints of the tiny model."""
    with mount_small_disk(tmp_path / "run" / "checkpoints", "900k") as disk:
        yield disk


def test_a_full_disk_costs_one_checkpoint_and_then_the_run(run, small_disk):
    job = run(every=4)
    (small_disk / "other").write_bytes(bytes(150_000))
    job.save(4)
    job.save(8)
    job.save(12)  # the first failure is only recorded
    failure = job.events("checkpoint_failed")[0]  # the next may have failed by now
    assert failure["step"] == 8
    assert "step_00000008" in failure["problem"] and "No space left on device" in failure["problem"]
    with pytest.raises(ClusterError, match=r"step_00000012/.*saved: rank 0.*No sp"):
        job.save(16)
    newest, damages = find_newest_valid(job.folder)
    assert (newest.step, damages) == (4, [])
    left = [path for path in small_disk.rglob("*") if path.is_file() and path.name != "other"]
    assert {path.parent for path in left} == {Path(newest.path)}


def test_a_run_continues_once_there_is_disk_space(run, small_disk):
    job = run(every=4)
    job.save(4)
    (small_disk / "other").write_bytes(bytes(200_000))
    job.save(8)
    job.saver._wait()
    (small_disk / "other").unlink()
    shutil.rmtree(Path(name_checkpoint_folder(job.folder.checkpoints, 4, 1)).parent)
    job.save(12)
    job.saver.finish()
    assert find_newest_valid(job.folder)[0].step == 12


def test_a_last_save_that_fails_is_said_at_the_end(run, small_disk):
    job = run()
    (small_disk / "other").write_bytes(bytes(800_000))
    job.save(4)
    with pytest.raises(ClusterError, match=r"saved: rank 0.*No space left"):
        job.saver.finish()


def test_where_none_may_fail_the_next_save_says_so(run, small_disk):
    job = run(failures=0)
    (small_disk / "other").write_bytes(bytes(800_000))
    job.save(4)
    with pytest.raises(ClusterError, match="saves that failed in a row: 1"):
        job.save(8)


def test_a_write_error_of_one_rank_fails_on_all(ranks, make_job, tmp_path):
    job = make_job(tmp_path)
    folder = RunFolder(job.folder)
    said = ranks(3, "saved", job=job, attempt=folder.take_attempt(0), limit=(1, 20_000))
    assert said[0] == said[1] == said[2]
    assert "could not be saved: rank 1: " in said[0] and "File too large" in said[0]
    assert find_newest_valid(folder) == (None, [])
    assert [path for path in Path(folder.checkpoints).rglob("*") if path.is_file()] == []
    assert ranks(3, "saved", job=job, attempt=folder.take_attempt(0)) == ["", "", ""]
    assert find_newest_valid(folder)[0].attempt == 2


def test_a_bug_on_one_rank_is_reported_to_all(run, monkeypatch, caplog):
    def fail(staged, path):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(saver.rank_file.StagedFile, "write", fail)
    job = run()
    job.save(4)
    with pytest.raises(ClusterError, match="rank 0: ZeroDivisionError: a bug"):
        job.saver.finish()
    assert "Traceback" in caplog.text


# --- a second copy


def test_a_second_copy_is_found_when_the_first_is_gone(run, tmp_path):
    second = tmp_path / "second"
    job = run(every=4, copy_to=str(second))
    for step in (4, 8, 12):
        job.save(step)
    job.saver.finish()
    assert sorted(path.name for path in second.iterdir()) == ["step_00000008", "step_00000012"]
    shutil.rmtree(job.folder.checkpoints)
    assert find_newest_valid(job.folder)[0] is None
    newest, _ = find_newest_valid(job.folder, thorough=False, copy=str(second))
    assert newest.path == name_checkpoint_folder(str(second), 12, 1)
    assert job.loaded(newest.path).step == 12


def test_a_failed_second_copy_stops_no_rank(run, tmp_path):
    (tmp_path / "file").write_text("where a folder should be")
    job = run(every=4, copy_to=str(tmp_path / "file"))
    job.save(4)
    job.saver.finish()
    assert find_newest_valid(job.folder)[0].step == 4
    (failure,) = job.events("checkpoint_copy_failed")
    assert "Not a directory" in failure["problem"]


# --- a bucket


def test_a_run_in_a_bucket_saves_itself_there(run, s3):
    job = run(folder=f"{s3}/run", every=4)
    for step in (4, 8, 12):
        job.save(step)
    job.saver.finish()
    newest, damages = find_newest_valid(job.folder)
    assert (newest.step, newest.path, damages) == (
        12,
        f"{s3}/run/checkpoints/step_00000012/attempt-0001",
        [],
    )
    assert [path.rpartition("/")[2] for path in storage.list_folders(f"{s3}/run/checkpoints")] == [
        "step_00000008",
        "step_00000012",
    ]
    before = copy_tensors(job.state)
    after = copy_tensors(job.loaded(newest.path))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


LARGE = {"channels": 192, "heads": 4, "kv_heads": 4, "layers": 12}  # parts of 35 MB for two ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("slow_down", marks=pytest.mark.soak),
        pytest.param("cut_request", marks=pytest.mark.soak),
        "lose_answer",
    ],
)
def test_uploads_of_several_ranks_outlast_a_bad_day(
    how, proxy, s3, mortal_ranks, make_job, tmp_path
):
    job = make_job(tmp_path, model=LARGE, training={"checkpoints": {"copy_to": f"{s3}/second"}})
    folder = RunFolder(job.folder)
    proxy.how = how
    proxy.times = 6
    proxy.spoil = lambda method, path: method in {"PUT", "POST"}
    assert mortal_ranks(2, "saved", job=job, attempt=folder.take_attempt(0)) == ["", ""]
    assert proxy.times == 0
    assert any("partNumber" in line for line in proxy.seen)
    assert list(folder.read_events())[-1]["event"] == "checkpoint"
    there = name_checkpoint_folder(f"{s3}/second", 0, 1)
    here = Path(name_checkpoint_folder(folder.checkpoints, 0, 1))
    assert find_newest_valid(folder, copy=f"{s3}/second", below=s3)[0].path == there
    for path in here.iterdir():
        assert storage.read(f"{there}/{path.name}") == path.read_bytes()


def test_a_bucket_that_refuses_leaves_nothing_torn(proxy, s3, run, monkeypatch):
    monkeypatch.setattr(bucket_files, "PART", 6 * 2**20)
    job = run(folder=f"{s3}/run")
    job.save(4)
    job.saver.finish()
    proxy.how = "forbidden"
    proxy.times = 10_000
    proxy.spoil = lambda method, path: method == "PUT" and "step_00000008" in path
    job.save(8)
    with pytest.raises(ClusterError, match=r"step_00000008/.*saved: rank 0.*AccessD"):
        job.saver.finish()
    proxy.times = 0
    newest, damages = find_newest_valid(job.folder)
    assert (newest.step, damages) == (4, [])
    assert not [path for path in storage.list_files(s3) if "step_00000008" in path]
