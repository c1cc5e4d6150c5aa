"""Training an adapter: the same bits on any number of ranks, and checkpoints of it alone."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from support.compare_runs import read_step_losses

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.lora import list_adapter_shapes
from trainrig.objectives.objective_kinds import DPO
from trainrig.train import checkpoint
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.checkpoint.manifest import clean_up
from trainrig.train.retention import Checkpoints
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import Adapter, FrozenModel

STEPS = 4
TRAINING = {
    "steps": STEPS,
    "checkpoints": {"every": 2, "keep": 9},
    "held_out": {"rows": 0},
}
KINDS = {
    "float32": LoRA(rank=4, targets=("attention.*", "embedding")),
    "int8 dora": LoRA(rank=3, dora=True, base="int8"),
}


@pytest.fixture(scope="module")
def base(straight):
    found, _ = find_newest_valid(RunFolder(straight(1).folder))
    return found.path


@pytest.fixture
def adapter_job(make_job, base, tmp_path):
    """Return `adapter_job("float32")`: a job that trains an adapter of `base` by DPO."""

    def make(kind, name="run", compute="float32", **changes):
        training = TRAINING | {"precision": {"compute": compute}}
        job = make_job(tmp_path / name, training=training)
        lora = KINDS[kind] if isinstance(kind, str) else kind
        adapter = Adapter(lora, base, checkpoint.compute_manifest_sum(base))
        return dataclasses.replace(
            job, **({"adapter": adapter, "objective": DPO(), "model": make_model(base)} | changes)
        )

    return make


def make_model(path):
    return checkpoint.describe(path)[0]


def run(group, world, job, **arguments):
    folder = RunFolder(job.folder)
    found, _ = find_newest_valid(folder)
    taken = folder.take_attempt(found.step if found else 0)
    path = found.path if found else None
    return group(
        world, "train", job=job, attempt=taken, resume_from=path, tuning="pairs", **arguments
    )


def read_contents(job):
    """Return the last checkpoint's tensors, whichever rank wrote which rows, and its losses."""
    found, damages = find_newest_valid(RunFolder(job.folder))
    assert found.step == STEPS and not damages
    return dict(checkpoint.open_model(found.path).adapter.tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "compute"),
    [*((kind, "float32") for kind in KINDS), ("float32", "float16"), ("int8 dora", "bfloat16")],
)
def test_an_adapter_has_the_same_bits_on_any_ranks_and_after_a_stop(
    kind, compute, adapter_job, ranks
):
    alone = adapter_job(kind, "alone", compute)
    run(ranks, 1, alone)
    several = adapter_job(kind, "several", compute)
    # Three ranks until one of them gets a stop request as the third step begins, which all hear at
    # its end; then two.
    assert run(ranks, 3, several, told=(1, "train", 2 * 2 + 1)) == [3, 3, 3]
    run(ranks, 2, several)
    one = read_contents(alone)
    other = read_contents(several)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert read_step_losses(alone) == read_step_losses(several)
    assert any(one[name].any() for name in one if name.endswith("lora_b"))


def test_its_checkpoint_holds_the_adapter_alone_and_names_its_base(adapter_job, ranks, base):
    job = adapter_job("float32")
    run(ranks, 1, job)
    found, _ = find_newest_valid(RunFolder(job.folder))
    stored = json.loads(storage.read(storage.join(found.path, "state.json")))["adapter"]
    assert stored["base"] == base and stored["manifest_sha256"] == checkpoint.compute_manifest_sum(
        base
    )
    header = next(Path(found.path).glob("*.safetensors")).read_bytes()
    names = set(json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")]))
    kinds = {name.partition(".")[0] for name in names} - {"__metadata__"}
    assert kinds == {"adapter", "optimizer"}
    assert all("lora_" in name for name in names - {"__metadata__"})
    # Weights, and two moments of each, of the trained parameters, and nothing of the base.
    moments = sum("exp_avg" in name for name in names)
    assert moments == 2 * sum(name.startswith("adapter.") for name in names)
    opened = checkpoint.open_model(found.path)
    plain = checkpoint.open_model(base)
    query = "layers.0.attention.query.weight"
    assert not torch.equal(opened.weights[query], plain.weights[query])
    up = "layers.0.feedforward.up.weight"
    assert torch.equal(opened.weights[up], plain.weights[up])


def test_an_unsuitable_start_is_rejected(adapter_job, ranks, make_job, tmp_path, base):
    job = adapter_job("float32")
    run(ranks, 1, job)
    found, _ = find_newest_valid(RunFolder(job.folder))

    def refusal(**changes):
        other = dataclasses.replace(job, **changes)
        return ranks(1, "refusal", job=other, resume_from=found.path)[0]

    another = dataclasses.replace(job.adapter, base_sum="0" * 64)
    assert refusal(adapter=another)[0] == "ConfigError"
    assert "base" in refusal(adapter=another)[1]
    wider = dataclasses.replace(job.adapter, lora=KINDS["float32"].model_copy(update={"rank": 5}))
    assert "other [lora]" in refusal(adapter=wider)[1]
    assert "but the run file has no [lora]" in refusal(adapter=None)[1]
    moved = dataclasses.replace(job.adapter, base=str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="gone: the base checkpoint"):
        checkpoint.check_base(moved)
    with pytest.raises(ConfigError, match=r"not the adapter.s base"):
        checkpoint.check_base(another)


def test_its_base_outlives_the_retention_of_its_own_run(make_job, ranks, tmp_path):
    job = make_job(tmp_path, training={"steps": 3, "checkpoints": {"every": 1, "keep": 9}})
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    folder = RunFolder(job.folder)
    first = next(Path(folder.checkpoints).glob("step_00000001/attempt-*"))
    checkpoint.keep_base(Adapter(LoRA(), str(first), ""), "run")
    attempt = folder.take_attempt(3)
    clean_up(folder, folder.checkpoints, attempt, Checkpoints(keep=2))
    assert (first / "manifest.json").exists()
    (first / "kept.json").unlink()
    clean_up(folder, folder.checkpoints, attempt, Checkpoints(keep=2))
    assert not first.exists()


def test_without_its_base_it_cannot_be_opened(adapter_job, ranks, tmp_path, base):
    job = adapter_job("float32")
    lora = KINDS["float32"]
    elsewhere = Adapter(lora, str(tmp_path / "nowhere"), "0" * 64)
    shapes = list_adapter_shapes(job.model, lora)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    path = checkpoint.write_adapter(
        str(tmp_path / "written"), job.model, job.tokenizer, elsewhere, tensors
    )
    with pytest.raises(DataError, match="nowhere: the base checkpoint"):
        checkpoint.open_model(path)


@pytest.mark.slow
def test_the_frozen_reference_model_is_not_saved(make_job, ranks, base, tmp_path):
    """A model has no drift from itself at the first step, at any number of ranks."""
    job = make_job(tmp_path, training=TRAINING)
    job = dataclasses.replace(
        job,
        model=make_model(base),
        objective=DPO(),
        initial_weights=base,
        frozen={"reference": FrozenModel(make_model(base), base)},
    )
    ranks(
        2,
        "train",
        job=job,
        attempt=RunFolder(job.folder).take_attempt(0),
        tuning="pairs without references",
    )
    line = metrics.read_series(job.folder)[0]
    assert abs(line["train/diagnostics/chosen_drift"]) < 1e-4
    found, _ = find_newest_valid(RunFolder(job.folder))
    header = next(Path(found.path).glob("*.safetensors")).read_bytes()
    assert b"reference" not in header
