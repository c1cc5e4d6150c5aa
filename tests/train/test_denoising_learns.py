"""Masked prediction, span corruption and filling in the middle on tiny Shakespeare: what they learn
beside the frequencies of tokens, and that nothing is learnt of targets that are shuffled."""

import dataclasses
import functools
import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.objectives.contract import find_corruption
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.train import ByteLevelBPE
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import open_batches, prepare
from trainrig.train.run import metrics
from trainrig.train.run_file import Pretraining

SEEDS = (0, 1, 2)
STEPS = 600
COUNTED = 100  # steps of whose targets the frequencies are taken
LEAST_LEARNT = 0.3  # nats below the loss of the frequencies that each run must come to
MOST_BY_CHANCE = 0.05  # nats below it that a control may come to
SIZES = {"layers": 2, "channels": 64, "heads": 4, "positions": 96}
OBJECTIVES: Mapping[str, dict[str, Any]] = {
    "MaskedLM": {"model": {**SIZES, "kind": "Encoder"}, "objective": {"kind": "MaskedLM"}},
    "SpanCorruption": {
        "model": {**SIZES, "kind": "EncoderDecoder"},
        "objective": {"kind": "SpanCorruption"},
    },
    "FillInTheMiddle": {"model": SIZES, "objective": {"kind": "FillInTheMiddle"}},
}


@pytest.fixture(scope="module")
def shakespeare(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Token shards of tiny Shakespeare, a document each ten speeches, a tenth held out."""
    base = tmp_path_factory.mktemp("shakespeare")
    speeches = (test_data / "sets" / "tinyshakespeare.txt").read_text().split("\n\n")
    texts = ["\n\n".join(speeches[begin : begin + 10]) for begin in range(0, len(speeches), 10)]
    file = base / "documents.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    documents = ({"kind": "JSONL", "paths": (str(file),), "source": "shakespeare"},)
    extra = ("<|mask|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    settings = ByteLevelBPE(vocabulary=512, sentinels=16, extra=extra)
    tokenizer, output = str(base / "tokenizer"), str(base / "tokens")
    make_tokenizer(
        TokenizerTraining.model_validate(
            {"documents": documents, "output": tokenizer, "tokenizer": settings}
        )
    )
    told = {"documents": documents, "tokenizer": tokenizer, "output": output, "held_out": 0.1}
    tokenize(Tokenization.model_validate({**told, "workers": 0}))
    return output


@pytest.fixture
def shuffle(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The control's corruption, under the name by which a rank unpickles it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("shuffled_targets").ShuffledTargets


def run_file(tokens: str, output: Path, name: str, seed: int) -> Pretraining:
    return Pretraining.model_validate(
        {
            "tokens": tokens,
            "output": str(output),
            **OBJECTIVES[name],
            "batches": {
                "sequence_length": 64,
                "global_batch": 16,
                "micro_batch": 16,
                "seed": seed,
                "attend": "document",
            },
            "training": {
                "steps": STEPS,
                "seed": seed,
                "optimizer": {"kind": "AdamW", "lr": 0.003},
                "schedule": {"kind": "Cosine", "warmup": 60},
                "held_out": {"every": STEPS, "rows": 64},
                "checkpoints": {"every": STEPS},
            },
        }
    )


def loss_of_frequencies(job: Any, entries: int) -> float:
    """Nats a target of what is held out, by how often each was one in training, plus one."""
    counts = np.ones(entries)
    batches = job.make_batches()
    for step in range(COUNTED):
        targets = batches.micro_batch(step, 0).targets
        counts += np.bincount(targets[targets != IGNORE], minlength=entries)
    held = np.concatenate([m.targets[m.targets != IGNORE] for m in job.make_held_out().batches])
    return float(-np.log(counts / counts.sum())[held].mean())


def held_out_loss(job: Any) -> float:
    Path(job.folder).mkdir(parents=True)
    trainer.run(job, 1)
    return float(metrics.held_out_series(job.folder)[-1]["eval/loss"])


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_each_learns_and_learns_nothing_of_shuffled_targets(
    shakespeare, shuffle, tmp_path, without_ray, write_result
):
    """Kept in results/denoising.json: held-out losses by objective and seed."""
    found: dict[str, Any] = {}
    encoder = Encoder.load(f"{shakespeare}/tokenizer.json")
    for name in OBJECTIVES:
        of_seed = []
        for seed in SEEDS:
            run = run_file(shakespeare, tmp_path / f"{name}-{seed}", name, seed)
            job = prepare(run)
            corruption = find_corruption(run.objective, encoder, run.batches.longest_length)
            shuffled = functools.partial(
                open_batches, shakespeare, run.batches, run.cache, shuffle(corruption)
            )
            control = dataclasses.replace(job, folder=f"{job.folder}-c", make_batches=shuffled)
            losses = {
                "frequencies": loss_of_frequencies(job, encoder.vocabulary_size),
                "learnt": held_out_loss(job),
                "shuffled": held_out_loss(control),
            }
            assert all(map(math.isfinite, losses.values()))
            print(name, seed, losses, flush=True)
            of_seed.append({loss: round(value, 4) for loss, value in losses.items()})
        found[name] = of_seed
    sizes = {"steps": STEPS, "rows": 16, "sequence_length": 64, **SIZES}
    write_result("denoising.json", {**sizes, "seeds": SEEDS, "losses": found})
    for name, of_seed in found.items():
        for losses in of_seed:
            assert losses["learnt"] < losses["frequencies"] - LEAST_LEARNT, (name, losses)
            assert losses["shuffled"] > losses["frequencies"] - MOST_BY_CHANCE, (name, losses)
