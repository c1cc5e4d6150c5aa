import dataclasses
import functools
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as tries
from hypothesis import strategies as st
from safetensors.torch import load_file

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.parallel.mesh import find_local_device
from trainrig.train import checkpoint
from trainrig.train.checkpoint import (
    VERIFIED,
    compute_content_key,
    describe,
    find_damage,
    find_newest_valid,
    load_weights,
    open_model,
    resolve,
    write_model,
)
from trainrig.train.checkpoint import tensor_index as chunks_of_files
from trainrig.train.checkpoint.manifest import CheckpointManifest, clean_up
from trainrig.train.checkpoint.tensor_index import write_file
from trainrig.train.retention import Checkpoints
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.state import build_fresh_state

FILES = (
    "manifest.json",
    "shard-00001-model-00001-of-00001.safetensors",
    "shard-00002-model-00001-of-00001.safetensors",
    "state.json",
    "tokenizer.json",
)


def name_checkpoint(folder, step, attempt=1):
    return Path(folder, "checkpoints", f"step_{step:08d}", f"attempt-{attempt:04d}")


@pytest.fixture
def copy(straight, tmp_path):
    """Copy the undisturbed run of two ranks, with checkpoints at 4, 8, 12, 16 and 20."""
    shutil.copytree(straight(2).folder, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def plant(straight, tmp_path):
    """Return `plant(8, attempt=2)`: commit a complete checkpoint, and return the run folder."""
    source = name_checkpoint(straight(1).folder, 4)
    run = tmp_path / "planted"

    def commit(step, attempt=1):
        shutil.copytree(source, name_checkpoint(run, step, attempt))
        return RunFolder(str(run))

    return commit


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


# --- contents


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_loads_the_same_on_one_two_and_three(straight, ranks):
    job = straight(2)
    path = str(name_checkpoint(job.folder, 8))
    read = {world: ranks(world, "tensors", job=job, resume_from=path) for world in (1, 2, 3)}
    (one,) = read[1]
    assert one["counters"] == (8, 8, 8 * 8 * 32)
    for tensors in (*read[2], *read[3]):
        assert tensors.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(tensors[name], value)
    moved = "optimizer.state.embedding.weight.exp_avg_sq"
    assert one[moved].any() and one["optimizer.state.norm.weight.step"] == 8


@pytest.mark.slow
def test_the_model_of_a_checkpoint_is_the_one_that_was_trained(straight, ranks):
    job = straight(3)
    path = str(name_checkpoint(job.folder, 12))
    (trained, *_) = ranks(3, "tensors", job=job, resume_from=path)
    opened = open_model(path)
    assert (opened.step, opened.config, opened.tokenizer) == (12, job.model, job.tokenizer)
    for name, weights in opened.weights.items():
        np.testing.assert_array_equal(weights.numpy(), trained[f"model.{name}"])
    built = opened.build().state_dict()
    assert built.keys() == opened.weights.keys()
    assert all(torch.equal(built[name], opened.weights[name]) for name in built)


def test_nothing_in_a_checkpoint_can_be_executed(straight):
    folder = name_checkpoint(straight(2).folder, 20)
    assert sorted(path.name for path in folder.iterdir()) == [*FILES, VERIFIED]
    for path in folder.iterdir():
        if path.suffix == ".json":
            json.loads(path.read_bytes())
            continue
        held = sum(tensor.nbytes for tensor in load_file(path).values())
        header = int.from_bytes(path.read_bytes()[:8], "little")
        assert path.stat().st_size == 8 + header + held  # nothing but tensors


@pytest.mark.slow
def test_the_same_state_is_the_same_bytes_whichever_attempt_wrote_it(straight, ranks, tmp_path):
    straight_on = straight(1)
    job = dataclasses.replace(straight_on, folder=str(tmp_path))
    folder = RunFolder(job.folder)
    folder.take_attempt(0)
    resume_from = str(name_checkpoint(straight_on.folder, 16))
    ranks(1, "train", job=job, attempt=folder.take_attempt(16), resume_from=resume_from)
    again = name_checkpoint(job.folder, 20, attempt=2)
    assert compute_content_key(str(again)) == compute_content_key(
        str(name_checkpoint(straight_on.folder, 20))
    )
    assert compute_content_key(str(again)) != compute_content_key(resume_from)


def test_a_model_written_by_one_process_can_be_opened(make_job, tmp_path):
    job = make_job(tmp_path)
    model = Decoder(job.model)
    initialise(model, seed=3)
    weights = {name: value.bfloat16() for name, value in model.state_dict().items()}
    path = write_model(str(tmp_path / "made"), job.model, job.tokenizer, weights)
    (file,) = Path(path).glob("*.safetensors")
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float32}
    opened = open_model(str(tmp_path / "made"))
    assert (opened.path, opened.step, opened.config) == (path, 0, job.model)
    for name, value in weights.items():
        assert torch.equal(opened.weights[name], value.float())


def test_a_model_in_a_bucket_is_the_same_model(s3, make_job, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = make_job(tmp_path)
    model = Decoder(job.model)
    initialise(model, seed=3)
    path = write_model(f"{s3}/run", job.model, job.tokenizer, model.state_dict())
    local = write_model(str(tmp_path / "run"), job.model, job.tokenizer, model.state_dict())
    assert compute_content_key(path) == compute_content_key(local)
    opened = open_model(f"{s3}/run")
    assert opened.path == path
    for name, value in model.state_dict().items():
        assert torch.equal(opened.weights[name], value)


# --- damage


@pytest.mark.parametrize("how", ["truncated", "flipped", "deleted"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(name, how, copy):
    path = name_checkpoint(copy, 20) / name
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, path.stat().st_size // 2)
    newest, damages = find_newest_valid(RunFolder(str(copy)))
    assert newest.step == 16
    if (name, how) == ("manifest.json", "deleted"):
        assert damages == [f"{path}: missing, though its checkpoint was complete"]
    elif name == "manifest.json":
        assert len(damages) == 1 and str(name_checkpoint(copy, 20)) in damages[0]
    else:
        said = {"deleted": "gone", "truncated": "bytes of", "flipped": "bytes differ from"}[how]
        assert len(damages) == 1 and damages[0].startswith(f"{path}: ") and said in damages[0]


@tries(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flipped_bit_goes_unseen(copy, data):
    name = data.draw(st.sampled_from(FILES))
    path = name_checkpoint(copy, 20) / name
    position = data.draw(st.integers(0, path.stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    flip(path, position, bit)
    try:
        assert find_damage(str(name_checkpoint(copy, 20))) is not None
    finally:
        flip(path, position, bit)
    assert find_damage(str(name_checkpoint(copy, 20))) is None


def test_damage_is_located_to_the_chunk(monkeypatch, tmp_path):
    path = tmp_path / "checkpoint" / "state.json"
    monkeypatch.setattr(chunks_of_files, "CHUNK", 1_000)
    sums = write_file(str(path), memoryview(bytes(range(250)) * 20), first=10)
    assert sums.ends == (10, 1_010, 2_010, 3_010, 4_010, 5_000)
    manifest = CheckpointManifest(step=20, attempt=1, files={path.name: sums}, tensors={})
    path.with_name("manifest.json").write_bytes(manifest.encode())
    assert find_damage(str(path.parent)) is None
    flip(path, 2_345)
    assert find_damage(str(path.parent)) == (
        f"{path}: bytes differ from those written, from byte 2010 on"
    )


def test_all_damages_on_the_way_are_named_and_no_checkpoint_may_be_left(copy):
    for step in (4, 8, 12, 16, 20):
        (name_checkpoint(copy, step) / "state.json").unlink()
    newest, damages = find_newest_valid(RunFolder(str(copy)))
    assert newest is None
    assert damages == [
        f"{name_checkpoint(copy, step) / 'state.json'}: gone" for step in (20, 16, 12, 8, 4)
    ]


# --- attempts that outlive their successors


def test_a_commit_behind_the_back_of_a_later_attempt_is_ignored(plant):
    folder = plant(8)
    for resumed in (0, 8):
        folder.take_attempt(resumed)
    plant(12, attempt=1)  # written by workers that outlived their attempt
    assert find_newest_valid(folder)[0].step == 8
    plant(12, attempt=2)
    newest, damages = find_newest_valid(folder)
    assert (newest.step, newest.attempt, damages) == (12, 2, [])


def test_a_resumed_checkpoint_is_valid_for_every_later_attempt(plant):
    folder = plant(4)
    for resumed in (0, 4, 4):
        folder.take_attempt(resumed)
    assert find_newest_valid(folder)[0].step == 4
    plant(8, attempt=2)  # attempt 3 began from before it
    assert find_newest_valid(folder)[0].step == 4


def test_sixteen_at_once_take_sixteen_numbers(tmp_path):
    folder = RunFolder(str(tmp_path))
    taken = []
    threads = [
        threading.Thread(target=lambda step=n: taken.append(folder.take_attempt(step)))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(attempt.number for attempt in taken) == list(range(1, 17))
    assert folder.read_attempts() == sorted(taken, key=lambda attempt: attempt.number)
    assert sorted(attempt.resumed_step for attempt in taken) == list(range(16))


# --- retention


def list_steps(folder):
    return sorted(int(p.name.removeprefix("step_")) for p in Path(folder, "checkpoints").iterdir())


def delete_superfluous(folder, attempt=1, **settings):
    run = RunFolder(str(folder))
    clean_up(
        run, run.checkpoints, TrainingAttempt(attempt, 0), Checkpoints(**{"every": 4} | settings)
    )


@pytest.mark.parametrize(
    ("keep", "left"), [(2, [16, 20]), (3, [12, 16, 20]), (9, [4, 8, 12, 16, 20])]
)
def test_the_newest_are_kept(keep, left, copy):
    delete_superfluous(copy, keep=keep)
    assert list_steps(copy) == left
    assert find_newest_valid(RunFolder(str(copy)))[0].step == 20


def test_invalid_checkpoints_do_not_displace_valid_ones(plant):
    folder = plant(8)
    plant(10)
    folder.take_attempt(0)
    folder.take_attempt(10)
    plant(12, attempt=2)
    plant(16, attempt=1)  # written by workers that outlived their attempt
    delete_superfluous(folder.path, attempt=2)
    assert find_newest_valid(folder)[0].step == 12
    assert list_steps(folder.path) == [10, 12]


@pytest.mark.parametrize("how", ["marked", "cut", "torn"])
def test_damaged_checkpoints_do_not_displace_intact_ones(copy, how):
    if how == "marked":
        (name_checkpoint(copy, 20) / "damaged.json").write_text('{"problem": "bit rot"}')
    elif how == "cut":
        (name_checkpoint(copy, 20) / "state.json").write_text("{}")
    else:
        (name_checkpoint(copy, 20) / "manifest.json").write_text("{}")
    delete_superfluous(copy)
    assert list_steps(copy) == [12, 16]
    assert find_newest_valid(RunFolder(str(copy)))[0].step == 16


def test_clean_up_stays_in_its_run_folder_whatever_that_lies_in(copy, tmp_path):
    inside = tmp_path / "step_4" / "attempt-1"
    inside.mkdir(parents=True)
    run = copy.rename(inside / "run")
    delete_superfluous(run)
    assert list_steps(run) == [16, 20]


def test_checkpoints_in_a_bucket_are_deleted_by_one_request_each(copy, proxy, s3):
    for path in storage.list_files(str(copy)):
        storage.write(f"{s3}/run/{path.removeprefix(f'{copy}/')}", storage.read(path))
    proxy.count()
    delete_superfluous(f"{s3}/run")
    requests = proxy.count()
    assert (requests["DELETE"], requests["DELETE many"]) == (3, 3)  # the manifests, and the rest
    delete_superfluous(f"{s3}/run")
    # Attempts, manifests and steps are listed once, and of both steps the files and the attempts.
    assert proxy.count()["LIST"] == 3 + 2 * 2
    assert find_newest_valid(RunFolder(f"{s3}/run"), thorough=False)[0].step == 20


def test_remains_of_a_crash_are_deleted_and_open_saves_are_not(copy):
    for attempt in (1, 2, 3):
        being_written = name_checkpoint(copy, 24, attempt)
        being_written.mkdir(parents=True)
        (being_written / ".state.json.77-ab").write_text("{}")
    delete_superfluous(copy, attempt=2)
    assert list_steps(copy) == [16, 20, 24]
    left = sorted(path.name for path in name_checkpoint(copy, 24).parent.iterdir())
    assert left == ["attempt-0002", "attempt-0003"]
    delete_superfluous(copy, attempt=4)
    assert list_steps(copy) == [16, 20]


def test_a_run_keeps_the_configured_number_of_checkpoints(ranks, make_job, tmp_path):
    job = make_job(tmp_path, training={"steps": 6, "checkpoints": {"every": 1, "keep": 2}})
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    assert list_steps(job.folder) == [5, 6]
    events = [
        logged for logged in RunFolder(job.folder).read_events() if logged["event"] == "checkpoint"
    ]
    assert [event["step"] for event in events] == [1, 2, 3, 4, 5, 6]
    for event in events:
        assert 0 < event["stall_seconds"] <= event["seconds"]
    held = sum(
        p.stat().st_size
        for p in name_checkpoint(job.folder, 6).iterdir()
        if p.name not in ("manifest.json", VERIFIED)
    )
    assert events[-1]["bytes"] == held


# --- search


def test_a_checkpoint_is_found_from_any_folder_around_it(copy):
    newest = str(name_checkpoint(copy, 20))
    for path in (
        copy,
        copy / "checkpoints",
        name_checkpoint(copy, 20).parent,
        name_checkpoint(copy, 20),
    ):
        assert resolve(str(path)) == newest
        assert resolve(f"{path}/") == newest
    assert resolve(str(name_checkpoint(copy, 8).parent)) == str(name_checkpoint(copy, 8))
    assert resolve(str(name_checkpoint(copy, 8))) == str(name_checkpoint(copy, 8))


def test_a_checkpoint_is_found_by_a_relative_path(copy, monkeypatch):
    monkeypatch.chdir(copy)
    for path in (".", "checkpoints", "./checkpoints", "checkpoints/step_00000020"):
        assert Path(resolve(path)).resolve() == name_checkpoint(copy, 20).resolve()
    monkeypatch.chdir(copy.parent)
    assert resolve("copy") == str(name_checkpoint("copy", 20))


def test_a_run_folder_may_have_any_name(copy):
    for name in ("my-checkpoints", "checkpoints", "step_1"):
        renamed = copy.rename(copy.with_name(name))
        assert resolve(str(renamed)) == str(name_checkpoint(renamed, 20))
        copy = renamed


def test_a_copied_checkpoint_is_one_wherever_it_lies(copy, tmp_path):
    elsewhere = shutil.copytree(name_checkpoint(copy, 8), tmp_path / "elsewhere")
    assert resolve(str(elsewhere)) == str(elsewhere)
    assert open_model(str(elsewhere)).step == 8


def test_a_damaged_newest_one_is_passed_over_unless_it_is_named(copy, caplog):
    (name_checkpoint(copy, 20) / "tokenizer.json").write_text("{}")
    assert resolve(str(copy)) == str(name_checkpoint(copy, 16))
    assert "skipped a damaged checkpoint" in caplog.text
    with pytest.raises(DataError, match=r"damaged.*tokenizer.json: 2 bytes"):
        resolve(str(name_checkpoint(copy, 20)))
    with pytest.raises(DataError, match=r"no valid checkpoint.*tokenizer.json"):
        resolve(str(name_checkpoint(copy, 20).parent))


def test_a_folder_without_a_manifest_is_no_checkpoint(copy):
    (name_checkpoint(copy, 20) / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"manifest.json: missing"):
        resolve(str(name_checkpoint(copy, 20)))


@pytest.mark.parametrize("where", ["", "nowhere", "checkpoints", "checkpoints/step_00000001"])
def test_where_there_is_no_checkpoint_the_message_says_what_to_name(where, tmp_path):
    with pytest.raises(DataError, match="name the folder of a training run"):
        resolve(str(tmp_path / where))


# --- loading into another run


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"global_batch": 4}, "samples: 64 there, 32 here"),
        ({"weights": {"books": 2, "web": 1}}, r"segments\[0\]\.slots\.books: \d+ there, 2 here"),
        ({"stages": ({"from_step": 7, "micro_batch": 4},)}, r"segments\[1\]\S*: absent there"),
    ],
)
def test_a_checkpoint_of_other_data_is_refused_by_what_differs(
    alone, straight, make_job, tmp_path, changed, named
):
    job = make_job(tmp_path, batches=changed)
    state = build_fresh_state(job, find_local_device())
    with pytest.raises(ConfigError, match=rf"step_00000008.*trained on other data.*\(.*{named}"):
        checkpoint.load(str(name_checkpoint(straight(1).folder, 8)), state, job, job.make_batches())


def test_a_checkpoint_does_not_mind_what_comes_after_it(alone, straight, make_job, tmp_path):
    job = make_job(tmp_path, batches={"stages": ({"from_step": 8, "global_batch": 4},)})
    state = build_fresh_state(job, find_local_device())
    checkpoint.load(str(name_checkpoint(straight(1).folder, 8)), state, job, job.make_batches())
    assert state.data_step == 8


def test_a_run_cannot_resume_from_weights_alone(alone, make_job, tmp_path):
    job = make_job(tmp_path)
    weights = write_model(job.folder, job.model, "{}", Decoder(job.model).state_dict())
    state = build_fresh_state(job, find_local_device())
    with pytest.raises(ConfigError, match="does not record its data"):
        checkpoint.load(weights, state, job, job.make_batches())


def test_a_checkpoint_of_another_model_is_refused_by_the_size_that_differs(
    alone, straight, make_job, tmp_path
):
    job = make_job(tmp_path, model={"position_embedding": Rope(theta=500.0)})
    state = build_fresh_state(job, find_local_device())
    for load in (functools.partial(checkpoint.load, batches=job.make_batches()), load_weights):
        with pytest.raises(
            ConfigError, match=r"position_embedding.theta is 10000.0 there, 500.0 in"
        ):
            load(str(name_checkpoint(straight(1).folder, 8)), state, job)


def test_a_checkpoint_of_another_tokenizer_is_refused(alone, straight):
    job = dataclasses.replace(straight(1), tokenizer="{}")
    state = build_fresh_state(job, find_local_device())
    with pytest.raises(ConfigError, match=r"step_00000008/.*tokenizer is not"):
        checkpoint.load(str(name_checkpoint(job.folder, 8)), state, job, job.make_batches())


def test_only_the_weights_of_another_run_are_taken(straight, ranks, make_job, tmp_path):
    other = make_job(tmp_path, batches={"seed": 1})
    path = str(name_checkpoint(straight(2).folder, 8))
    (taken,) = ranks(1, "tensors", job=other, weights_from=path)
    assert taken["counters"] == (0, 0, 0)
    assert not taken["optimizer.state.norm.weight.exp_avg"].any()
    for name, weights in open_model(path).weights.items():
        np.testing.assert_array_equal(taken[f"model.{name}"], weights.numpy())


def test_a_checkpoint_says_what_it_is_of(straight):
    job = straight(1)
    config, tokenizer = describe(str(name_checkpoint(job.folder, 4)))
    assert config == job.model and isinstance(config, DecoderConfig)
    assert tokenizer == job.tokenizer
