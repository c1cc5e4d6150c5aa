"""Damaged, malicious and outdated checkpoints: no rank ever continues from one."""

import json
import pickle
import shutil
import threading
from pathlib import Path

import pytest

from trainrig import storage
from trainrig.errors import ClusterError, DataError
from trainrig.manifest import digest
from trainrig.parallel.mesh import find_local_device
from trainrig.train.checkpoint import (
    DamagedCheckpoint,
    find_damage,
    find_newest_valid,
    load,
    resolve,
)
from trainrig.train.checkpoint import tensor_index as chunks_of_files
from trainrig.train.checkpoint.manifest import CheckpointManifest, commit, name_checkpoint_folder
from trainrig.train.checkpoint.tensor_index import read_chunk, write_file
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.state import build_fresh_state

TENSORS = [f"shard-0000{n}-model-00001-of-00001.safetensors" for n in (1, 2)]
FILES = ["manifest.json", "state.json", "tokenizer.json", *TENSORS]


def name_checkpoint(folder, step, attempt=1):
    return Path(name_checkpoint_folder(RunFolder(str(folder)).checkpoints, step, attempt))


@pytest.fixture
def copy(straight, make_job, tmp_path):
    """Return a job whose run folder has the checkpoints of the undisturbed run of two ranks."""
    shutil.copytree(straight(2).folder, tmp_path / "copy")
    return make_job(tmp_path / "copy", training={"steps": 20, "checkpoints": {"every": 4}})


def spoil(path, how):
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[:-1])
    elif how == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        path.unlink()


# --- found when loading


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "flipped", "deleted"])
@pytest.mark.parametrize("name", FILES)
def test_damage_found_in_a_read_is_named_and_the_checkpoint_not_tried_again(name, how, alone, copy):
    path = name_checkpoint(copy.folder, 20) / name
    spoil(path, how)
    state = build_fresh_state(copy, find_local_device())
    with pytest.raises(DamagedCheckpoint) as refused:
        load(str(path.parent), state, copy, copy.make_batches())
    assert str(refused.value).startswith(f"{path}: ")
    assert state.step == 0
    newest, damages = find_newest_valid(RunFolder(copy.folder), thorough=False)
    assert newest.step == 16
    if (name, how) != ("manifest.json", "deleted"):  # without one it never was a checkpoint
        assert len(damages) == 1 and damages[0].startswith(f"{path}: ")


def test_a_flipped_bit_that_only_ranks_can_see_is_seen_and_marked(ranks, copy):
    path = name_checkpoint(copy.folder, 20) / TENSORS[1]
    spoil(path, "flipped")
    assert find_newest_valid(RunFolder(copy.folder), thorough=False)[0].step == 20
    refusals = ranks(2, "refusal", job=copy, resume_from=str(path.parent))
    said = ("DamagedCheckpoint", f"{path}: bytes differ from those written, from byte ")
    assert all((kind, text[: len(said[1])]) == said for kind, text in refusals)
    assert refusals[0] == refusals[1]
    mark = json.loads((path.parent / "damaged.json").read_text())
    assert mark == {"problem": refusals[0][1]}


def test_a_manifest_that_is_gone_is_named_and_one_that_never_was_is_not(copy):
    manifest = name_checkpoint(copy.folder, 20) / "manifest.json"
    under_way = name_checkpoint(copy.folder, 24)
    shutil.copytree(manifest.parent, under_way)
    (under_way / manifest.name).unlink()
    assert find_newest_valid(RunFolder(copy.folder), thorough=False)[1] == []
    manifest.unlink()
    newest, damages = find_newest_valid(RunFolder(copy.folder), thorough=False)
    assert newest.step == 16
    assert damages == [f"{manifest}: missing, though its checkpoint was complete"]


def test_all_ranks_reject_a_checkpoint_that_one_finds_damaged(ranks, copy):
    path = str(name_checkpoint(copy.folder, 20))
    refusals = ranks(2, "refusal", job=copy, resume_from=path, seen_by=1)
    assert refusals == [("DamagedCheckpoint", f"{path}: seen by rank 1")] * 2


def test_a_run_resumes_before_a_damaged_checkpoint_with_the_same_result(
    ranks, straight, copy, last_weights
):
    spoil(name_checkpoint(copy.folder, 20) / TENSORS[0], "flipped")
    spoil(name_checkpoint(copy.folder, 16) / "state.json", "truncated")
    folder = RunFolder(copy.folder)
    resumed = []
    while not resumed or resumed[-1] == 20:
        newest, _ = find_newest_valid(folder, thorough=False)
        resumed.append(newest.step)
        attempt = folder.take_attempt(newest.step)
        if newest.step == 20:
            ranks(2, "refusal", job=copy, resume_from=newest.path)
        else:
            ranks(2, "train", job=copy, attempt=attempt, resume_from=newest.path)
    assert resumed == [20, 12]
    assert last_weights(copy) == last_weights(straight(2))


def test_a_checkpoint_that_reads_well_on_retry_is_not_damaged(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    sums = write_file(path, memoryview(b"right" * 100))
    spoilt = [True]
    sound = storage.read_into

    def read_into(path, begin, buffer):
        count = sound(path, begin, buffer)
        if spoilt and spoilt.pop():
            buffer[0] ^= 1
        return count

    monkeypatch.setattr(chunks_of_files.storage, "read_into", read_into)
    (chunk,) = sums.iterate_chunks()
    assert bytes(read_chunk(path, *chunk)) == b"right" * 100
    assert spoilt == []


def test_a_disk_that_errs_is_damage_and_one_that_forbids_is_not(tmp_path, monkeypatch):
    def refuse(number):
        def read_into(path, begin, buffer):
            raise OSError(number, "so says the disk")

        monkeypatch.setattr(chunks_of_files.storage, "read_into", read_into)

    refuse(5)  # EIO
    with pytest.raises(DamagedCheckpoint, match="file: so says the disk"):
        read_chunk("file", 0, 10, "")
    refuse(13)  # EACCES
    with pytest.raises(ClusterError, match="file: cannot be read") as error:
        read_chunk("file", 0, 10, "")
    assert not isinstance(error.value, DamagedCheckpoint)


# --- malicious files


class Harm:
    """Object that leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_that_lies_in_a_checkpoint_is_never_opened(alone, copy, tmp_path):
    harm = tmp_path / "harm"
    (name_checkpoint(copy.folder, 20) / ".metadata").write_bytes(pickle.dumps(Harm(harm)))
    (name_checkpoint(copy.folder, 20) / "shard.pt").write_bytes(pickle.dumps(Harm(harm)))
    state = build_fresh_state(copy, find_local_device())
    load(str(name_checkpoint(copy.folder, 20)), state, copy, copy.make_batches())
    assert state.step == 20 and not harm.exists()
    pickle.loads(pickle.dumps(Harm(harm)))
    assert harm.exists()  # unpickling would have done it


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "../../state.json", "shard.pt"])
def test_a_manifest_that_names_what_no_checkpoint_holds_is_refused(name, alone, copy, tmp_path):
    harm = tmp_path / "harm"
    folder = name_checkpoint(copy.folder, 20)
    sums = write_file(str(folder / name), memoryview(pickle.dumps(Harm(harm))))
    there = CheckpointManifest.read(str(folder))
    hostile = there.model_copy(update={"files": there.files | {name: sums}})
    (folder / "manifest.json").write_bytes(hostile.encode())
    said = f"names '{name}', which cannot be a file of a checkpoint"
    assert said in find_damage(str(folder))
    with pytest.raises(DamagedCheckpoint, match="names '"):
        load(str(folder), build_fresh_state(copy, find_local_device()), copy, copy.make_batches())
    with pytest.raises(DataError, match="names '"):
        resolve(str(folder))
    assert find_newest_valid(RunFolder(copy.folder))[0].step == 16
    assert not harm.exists()


@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        ([[1, 0, 16, 2]], "index names a file"),
        ([[0, 0, 20, 1], [1, 20, 12, 1]], "index does not match"),
        ([[0, 0, 16, 1], [1, 0, 16, 1]], "continues with row 0 after row 16"),
        ([[0, 0, 16, 1]], "has only 16 of 32 rows"),
        ([[0, 0, 16, 0]], "greater than 0"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused_whatever_its_sums(
    partitions, said, alone, copy
):
    folder = name_checkpoint(copy.folder, 20)
    entries = json.loads((folder / "manifest.json").read_text())
    del entries["sum"]
    assert entries["tensors"]["model.norm.weight"]["partitions"] == [[0, 0, 16, 2]]
    entries["tensors"]["model.norm.weight"]["partitions"] = partitions
    (folder / "manifest.json").write_text(json.dumps(entries | {"sum": digest(entries)}))
    with pytest.raises(DamagedCheckpoint, match=said):
        load(str(folder), build_fresh_state(copy, find_local_device()), copy, copy.make_batches())


def test_a_checkpoint_of_another_format_is_refused_in_one_line_and_not_taken_for_damaged(copy):
    path = name_checkpoint(copy.folder, 20) / "manifest.json"
    entries = json.loads(path.read_text()) | {"format": 4}
    del entries["sum"], entries["tensors"]
    path.write_text(json.dumps(entries | {"sum": digest(entries)}))
    with pytest.raises(DataError) as refused:
        find_newest_valid(RunFolder(copy.folder), thorough=False)
    assert str(refused.value) == (
        f"{path}: format 4 is not supported, only 5; use the trainrig version that wrote it, or "
        "another `output`"
    )


def test_a_manifest_with_one_digit_changed_is_damaged_though_it_reads_well(copy):
    """Any step number is valid, so the manifest's own checksum must show the change."""
    path = name_checkpoint(copy.folder, 20) / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"step": 20,', '"step": 21,'))
    assert path.read_text() != text
    assert find_damage(str(path.parent)) == f"{path}: bytes differ from those written"


# --- outdated


@pytest.fixture(params=["disk", "s3"])
def run(request, tmp_path):
    """Return a run folder on a disk or in a bucket."""
    if request.param == "s3":
        return RunFolder(f"{request.getfixturevalue('s3')}/run")
    return RunFolder(str(tmp_path / "run"))


def plant(folder, step, attempt, state=b"{}"):
    """Commit a checkpoint as a rank of `attempt` does."""
    target = name_checkpoint_folder(folder.checkpoints, step, attempt)
    sums = write_file(storage.join(target, "state.json"), memoryview(state))
    commit(
        target,
        CheckpointManifest(step=step, attempt=attempt, files={"state.json": sums}, tensors={}),
    )
    return target


def test_a_worker_that_outlived_its_attempt_commits_in_vain(run):
    run.take_attempt(0)
    plant(run, 8, attempt=1)
    second = run.take_attempt(8)
    late = plant(run, 12, attempt=1)
    for thorough in (True, False):
        newest, damages = find_newest_valid(run, thorough=thorough)
        assert (newest.step, newest.attempt, damages) == (8, 1, [])
    assert resolve(run.path) != late
    mine = plant(run, 12, second.number)
    assert find_newest_valid(run)[0].path == mine == resolve(run.path)


def test_one_attempt_commits_a_step_once(run):
    run.take_attempt(0)
    plant(run, 8, attempt=1)
    with pytest.raises(ClusterError, match=r"step_00000008/attempt-0001: another process"):
        plant(run, 8, attempt=1, state=b"{1}")


@pytest.mark.slow
def test_supervisors_that_take_attempts_at_once_get_different_ones(run):
    taken = []
    start = threading.Barrier(8)

    def take(step):
        start.wait()
        taken.append(run.take_attempt(step))

    threads = [threading.Thread(target=take, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(attempt.number for attempt in taken) == list(range(1, 9))
    assert run.read_attempts() == sorted(taken, key=lambda attempt: attempt.number)
