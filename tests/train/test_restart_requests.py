"""Reads of checkpoint storage by a restart, a user of a model and the end of a run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig import manifest, storage
from trainrig.train import checkpoint
from trainrig.train.checkpoint import VERIFIED, find_newest_valid, open_model, read_verified_sums
from trainrig.train.checkpoint.manifest import CheckpointManifest
from trainrig.train.checkpoint.tensor_index import (
    FileChunks,
    IndexedTensor,
    compute_partitions,
    find_rows,
    plan_reads,
    sort_names,
)
from trainrig.train.pretrain import _compute_sums
from trainrig.train.run.run_folder import RunFolder

SMALL = {"manifest.json", "state.json", "tokenizer.json"}


def find_last(job):
    newest, _ = find_newest_valid(RunFolder(job.folder))
    return newest.path


@pytest.fixture
def asked(monkeypatch):
    """Return the list of this process's reads of tensor files: (name, first byte, bytes)."""
    found = []
    sound = storage.read_into

    def read_into(path, begin, buffer):
        if path.endswith(".safetensors"):
            found.append((path.rpartition("/")[2], begin, len(buffer)))
        return sound(path, begin, buffer)

    monkeypatch.setattr(storage, "read_into", read_into)
    return found


# --- the index


@tries(max_examples=200, deadline=None)
@given(rows=st.integers(0, 40), files=st.integers(1, 12), apart=st.booleans())
def test_rows_are_cut_over_files_as_torch_cuts_them(rows, files, apart):
    """Files of other ranks lie between this replica's where `apart` is set."""
    numbers = list(range(0, files * 3, 3)) if apart else list(range(5, 5 + files))
    tensor = IndexedTensor(
        type="F32", shape=(rows, 2), partitions=compute_partitions(numbers, rows)
    )
    found = {
        file: list(range(first, first + count))
        for file in range(files * 3 + 6)
        for first, count in find_rows({"it": tensor}, file).values()
    }
    chunks = torch.arange(rows).chunk(files)
    assert found == {n: c.tolist() for n, c in zip(numbers, chunks, strict=False) if len(c)}
    assert len(tensor.partitions) <= 2 or apart


@tries(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    worlds=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    chunk=st.integers(1, 50),
)
def test_any_ranks_find_their_rows_in_the_files_of_any_others(rows, worlds, chunk):
    """The bytes encode their own positions, so that results can be compared."""
    before, now = worlds
    index = {
        f"t{number}": IndexedTensor(
            type=("F32", "U8", "F64")[number % 3],
            shape=(count, 3),
            partitions=compute_partitions(range(before), count),
        )
        for number, count in enumerate(rows)
    }
    header = 7
    contents = []
    for file in range(before):
        held = find_rows(index, file)
        parts = [b"h" * header]
        for name in (tensor for tensor in sort_names(index) if tensor in held):
            first, count = held[name]
            row_bytes = index[name].row_bytes
            parts.append(
                bytes(
                    (int(name[1]) * 91 + at) % 256
                    for at in range(first * row_bytes, (first + count) * row_bytes)
                )
            )
        contents.append(b"".join(parts))
    files = [
        FileChunks(
            ends=tuple(
                dict.fromkeys([header, *range(header + chunk, len(data), chunk), len(data)])
            ),
            sha256=tuple("" for _ in range(len(data))),
        )
        for data in contents
    ]
    for rank in range(now):
        ours = {
            name: IndexedTensor(
                type=t.type, shape=t.shape, partitions=compute_partitions(range(now), t.rows)
            )
            for name, t in index.items()
        }
        wanted = find_rows(ours, rank)
        into = {n: np.zeros(c * index[n].row_bytes, np.uint8) for n, (_, c) in wanted.items()}
        seen = []
        for read in plan_reads("there", index, files, wanted):
            begin, end, _ = read.chunk
            assert begin >= header  # the header's checksum is not needed
            seen.append((read.file, begin))
            for copy in read.copies:
                low = max(copy.begin, begin)
                high = min(copy.end, end)
                at = copy.at - copy.begin
                into[copy.name][low + at : high + at] = list(contents[read.file][low:high])
        assert len(seen) == len(set(seen))  # each chunk once, however many tensors it holds
        for name, (first, count) in wanted.items():
            row_bytes = index[name].row_bytes
            right = [
                (int(name[1]) * 91 + at) % 256
                for at in range(first * row_bytes, (first + count) * row_bytes)
            ]
            assert into[name].tolist() == right


def test_the_index_says_what_the_headers_of_the_files_say(straight):
    path = Path(find_last(straight(3)))
    there = CheckpointManifest.read(str(path))
    assert len(there.tensor_files) == 3
    for number, name in enumerate(there.tensor_files):
        data = (path / name).read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        firsts = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
        held = find_rows(there.tensors, number)
        assert [n for n in sort_names(there.tensors) if n in held] == list(header)
        for tensor, entry in header.items():
            first = next(iter(firsts[tensor]["saved_offsets"]), 0)
            assert held[tensor] == (first, entry["shape"][0] if entry["shape"] else 1)
            assert there.tensors[tensor].type == entry["dtype"]


# --- reads by rank


@pytest.mark.parametrize("world", [1, 2, 3])
def test_to_resume_a_rank_asks_for_its_rows_and_rank_0_alone_for_what_all_read(
    world, ranks, straight
):
    path = find_last(straight(2))
    files = CheckpointManifest.read(path).files
    asked = ranks(world, "requests", job=straight(2), resume_from=path)
    for rank, requests in enumerate(asked):
        small = [name for name, _, _ in requests if name in SMALL]
        assert sorted(small) == (sorted(SMALL) if rank == 0 else [])
        tensors = [request for request in requests if request[0] not in SMALL]
        assert tensors and len(tensors) == len(set(tensors))
        for name, begin, _ in tensors:  # no header: it is the first chunk
            assert begin >= files[name].ends[0]
    # Two ranks resume what two saved by one request each. Before, each read the headers of both,
    # and the manifest three times.
    if world == 2:
        assert [len(requests) - 3 * (not rank) for rank, requests in enumerate(asked)] == [1, 1]


def test_opening_a_model_reads_its_weights_once_and_no_optimizer_state(
    asked, straight, monkeypatch, tmp_path
):
    monkeypatch.setattr(checkpoint.tensor_index, "CHUNK", 1_000)
    opened = open_model(straight(1).folder)
    weights = sum(tensor.nbytes for tensor in opened.weights.values())
    whole = CheckpointManifest.read(opened.path)
    (name,) = whole.tensor_files
    again = Path(shutil.copytree(straight(1).folder, tmp_path / "run"))
    data = (Path(opened.path) / name).read_bytes()
    small = again / Path(opened.path).relative_to(straight(1).folder)
    header = whole.files[name].ends[0]
    sums = checkpoint.tensor_index.write_file(str(small / name), memoryview(data), header)
    finer = whole.model_copy(update={"files": whole.files | {name: sums}})
    (small / "manifest.json").write_bytes(finer.encode())
    asked.clear()
    open_model(str(again))
    assert len(asked) == len(set(asked))
    assert weights <= sum(size for _, _, size in asked) < weights + 2 * 1_000 < len(data) / 2
    asked.clear()
    checkpoint.resolve(str(again))
    assert weights <= sum(size for _, _, size in asked) < weights + 2 * 1_000


def test_damage_that_is_met_while_weights_are_read_leads_to_the_one_before(
    straight, tmp_path, caplog
):
    run = Path(shutil.copytree(straight(1).folder, tmp_path / "run"))
    path = Path(find_last(straight(1))).relative_to(straight(1).folder)
    there = CheckpointManifest.read(str(run / path))
    (name,) = there.tensor_files
    file = run / path / name
    data = bytearray(file.read_bytes())
    data[-1] ^= 1  # the damage is in an optimizer moment, which is stored after the weights
    file.write_bytes(data)
    assert len(there.files[name].ends) == 2  # one chunk besides the header: both are in it
    assert open_model(str(run)).step == 16
    assert "skipped a damaged checkpoint" in caplog.text


# --- the end of a run


def test_the_writers_of_the_last_checkpoint_have_read_it_back(
    straight, asked, monkeypatch, tmp_path
):
    run = Path(shutil.copytree(straight(3).folder, tmp_path / "run"))
    (run / "run.toml").touch()
    path = run / Path(find_last(straight(3))).relative_to(straight(3).folder)
    found = read_verified_sums(str(path))
    assert found == {name: manifest.compute_file_sum(str(path / name)) for name in found}
    assert set(found) == {p.name for p in path.iterdir()} - {"manifest.json", VERIFIED}
    hashed = []
    sound = storage.compute_sha256
    monkeypatch.setattr(
        storage, "compute_sha256", lambda where: hashed.append(where) or sound(where)
    )
    asked.clear()
    stage = manifest.Stage(str(run), None)
    sums = _compute_sums(stage, str(path))
    assert hashed == [f"{path}/manifest.json", f"{run}/run.toml"] and not asked
    (path / VERIFIED).unlink()
    assert read_verified_sums(str(path)) is None
    assert _compute_sums(stage, str(path)) == sums


def test_only_the_last_checkpoint_is_read_back(straight):
    verified = sorted(Path(straight(2).folder).glob(f"checkpoints/*/*/{VERIFIED}"))
    assert [path.parent.parent.name for path in verified] == ["step_00000020"]


def test_a_verification_of_another_manifest_does_not_count(straight, tmp_path):
    copy = Path(shutil.copytree(find_last(straight(2)), tmp_path / "copy"))
    assert read_verified_sums(str(copy)) is not None
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text + " ")
    assert read_verified_sums(str(copy)) is None


def test_other_bytes_than_were_written_are_found_by_the_rank_that_wrote_them(
    ranks, make_job, tmp_path
):
    job = make_job(tmp_path, training={"steps": 4})
    attempt = RunFolder(job.folder).take_attempt(0)
    found = ranks(2, "read_back", job=job, attempt=attempt, spoilt_by=1)
    (path,) = Path(job.folder).glob("checkpoints/*/*")
    said = f"{path}/shard-00002-model-00001-of-00001.safetensors: bytes differ from those written"
    assert all(kind == "DamagedCheckpoint" and text.startswith(said) for kind, text in found)
    assert json.loads((path / "damaged.json").read_text())["problem"] == found[0][1]
    assert not (path / VERIFIED).exists()
    assert find_newest_valid(RunFolder(job.folder), thorough=False)[0] is None
