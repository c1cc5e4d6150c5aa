"""Eight workers in every layout against one process, over 50 steps of rows of documents."""

import dataclasses

import numpy as np
import pytest
from support.remembered import remember

from trainrig.models.architecture.lora_settings import LoRA
from trainrig.objectives.objective_kinds import DPO
from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.train import checkpoint
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.training_job import Adapter

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
WORLD = 8
STEPS = 50
TENSOR = {"ranks": 2, "sequence_parallel": True}
CONTEXT = {"kind": "Gathered", "ranks": 2}
PIPELINE = {"ranks": 2}
INTERLEAVED = {"ranks": 2, "schedule": "interleaved", "chunks": 2}
EXPERT = {"ranks": 2}
DENSE = {
    "FSDP": FSDP(),
    "DDP": DDP(),
    "HSDP": HSDP(replicas=4),
    "tensor": FSDP(tensor=TENSOR),
    "pipeline": FSDP(pipeline=PIPELINE),
    "context": FSDP(context=CONTEXT),
    "ring of context": FSDP(context={"kind": "RingAttention", "ranks": 4}),
    "HSDP of tensor": HSDP(replicas=2, tensor=TENSOR),
    "HSDP of pipeline": HSDP(replicas=2, pipeline=PIPELINE),
    "tensor and pipeline": FSDP(tensor={"ranks": 2}, pipeline=PIPELINE),
    "tensor and context": FSDP(tensor={"ranks": 2}, context=CONTEXT),
    "context and pipeline": FSDP(context=CONTEXT, pipeline=INTERLEAVED),
    "tensor, context and pipeline": FSDP(tensor=TENSOR, context=CONTEXT, pipeline=PIPELINE),
}
MIXTURE = {
    "kind": "MixtureOfExperts",
    "experts": 4,
    "active": 2,
    "shared_experts": 1,
    "balance_bias": True,
}
SPARSE = {
    "mixture, FSDP": FSDP(),
    "mixture, expert": FSDP(expert=EXPERT),
    "mixture, HSDP of expert": HSDP(replicas=2, expert=EXPERT),
    "mixture, expert and pipeline": FSDP(expert=EXPERT, pipeline=INTERLEAVED),
    "mixture, tensor, expert and pipeline": FSDP(tensor=TENSOR, expert=EXPERT, pipeline=PIPELINE),
}
PREFERENCES = {
    "LoRA and DPO, FSDP": FSDP(),
    "LoRA and DPO, HSDP of tensor": HSDP(replicas=2, tensor={"ranks": 2}),
}
# The head shares the embedding in all of them.
MODEL = {"layers": 4, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48}


@pytest.fixture(scope="module")
def trained(make_job, ranks, tmp_path_factory):
    """Return `trained("dense", layout)`: the job of a run in that layout (None: one process)."""

    @remember
    def train(kind, layout):
        base = None
        if kind == "preferences":
            base = find_checkpoint(train("dense", None))
        world = 1 if layout is None else WORLD
        laid_out = layout or FSDP()
        mixture = {"feedforward": MIXTURE} if kind == "sparse" else {}
        training = {
            "steps": STEPS,
            "optimizer": {"kind": "AdamW", "lr": 0.003},
            "parallel": laid_out.model_dump(),
            "deterministic": laid_out.inexact_by() is None and laid_out.kind != "DDP",
            "held_out": {"rows": 0 if base else 8, "every": 25},
        }
        sizes = {"global_batch": 32, "micro_batch": 4, "attend": "document", "epochs": 1e6}
        job = make_job(
            tmp_path_factory.mktemp("run"),
            world,
            model=MODEL | mixture,
            batches=sizes,
            training=training,
        )
        told = {}
        if base:
            lora = LoRA(rank=4, targets=("attention.*", "feedforward.*"))
            adapter = Adapter(lora, base, checkpoint.compute_manifest_sum(base))
            config = checkpoint.describe(base)[0]
            job = dataclasses.replace(job, adapter=adapter, model=config, objective=DPO())
            told["tuning"] = "pairs"
        attempt = RunFolder(job.folder).take_attempt(0)
        ranks(world, "train", job=job, attempt=attempt, **told)
        return job

    return train


def find_checkpoint(job):
    found, damages = find_newest_valid(RunFolder(job.folder))
    assert found.step == STEPS and not damages
    return found.path


def read_weights(job):
    opened = checkpoint.open_model(find_checkpoint(job))
    tensors = opened.adapter.tensors if opened.adapter else opened.weights
    return {name: value.numpy() for name, value in tensors.items()}


def find_greatest_difference(found, expected):
    return max(float(np.abs(value - expected[name]).max()) for name, value in found.items())


def read_losses(job):
    return np.array([line["train/loss"] for line in metrics.read_series(job.folder)])


def test_eight_workers_train_as_one_process_does(trained, write_result):
    """The distances between each layout and one process go to results/eight_workers.json."""
    found = {}
    kinds = {"dense": DENSE, "sparse": SPARSE, "preferences": PREFERENCES}
    for kind, layouts in kinds.items():
        alone = trained(kind, None)
        expected = read_weights(alone)
        for name, layout in layouts.items():
            job = trained(kind, layout)
            weights = read_weights(job)
            assert weights.keys() == expected.keys() and len(read_losses(job)) == STEPS
            found[name] = {
                "losses": float(np.abs(read_losses(job) / read_losses(alone) - 1).max()),
                "weights": find_greatest_difference(weights, expected),
                "same samples": read_trained_samples(RunFolder(job.folder))
                == read_trained_samples(RunFolder(alone.folder)),
            }
            print(name, found[name], flush=True)
        assert read_losses(alone)[-5:].mean() < 0.9 * read_losses(alone)[:5].mean()
    write_result("eight_workers.json", {"steps": STEPS, "world": WORLD, "differences": found})
    for name, differences in found.items():
        assert differences["same samples"], name
        assert differences["losses"] <= 1e-5 and differences["weights"] <= 1e-4, (name, differences)
