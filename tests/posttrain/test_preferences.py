"""Preference tuning, from rows to a checkpoint."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tuning_fixtures import build_tuning
from torch.nn import functional

from trainrig.errors import ConfigError, DataError
from trainrig.models.decoder import Decoder, initialise
from trainrig.posttrain.tuning.fine_tuning import posttrain, prepare
from trainrig.posttrain.tuning.references import TRAIN, StoredReferences, compute_references
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.train import checkpoint
from trainrig.train.run import metrics

ROWS = [
    {"prompt": f"the sea {n}", "chosen": f"is a grey {n} mirror", "rejected": f"buy {n} cats"}
    for n in range(12)
]
LABELLED = [
    {"prompt": f"the sea {n}", "completion": f"is {n} grey", "label": n % 2 == 0} for n in range(8)
]


@pytest.fixture
def pairs(encode_rows, tmp_path):
    """Return a folder of pairs, some of them held out."""
    encode_rows(ROWS, rows="pairs", held_out=0.3, sequence_length=47)
    return str(tmp_path / "encoded")


@pytest.fixture
def tuning(fresh, tmp_path):
    """Return `tuning(folder, objective={…}, lora={…})`, which makes a run file."""

    def make(conversations, output="tuned", **changes):
        training = {
            "optimizer": {"kind": "AdamW", "lr": 0.003},
            "schedule": {"kind": "Constant"},
            "held_out": {"every": 3, "rows": 4},
            "checkpoints": {"every": 3, "keep": 9},
        }
        return build_tuning(fresh, conversations, tmp_path / output, "DPO", training, **changes)

    return make


def read_weights(folder):
    return checkpoint.open_model(str(folder)).weights


@pytest.mark.slow
@pytest.mark.parametrize(
    "lora", [None, {"rank": 4, "base": "bfloat16", "dropout": 0.1}], ids=["whole", "lora"]
)
def test_dpo_learns_and_has_the_same_bits_with_two_workers(
    lora, pairs, tuning, tmp_path, without_ray
):
    made = posttrain(tuning(pairs, "one", lora=lora))
    posttrain(tuning(pairs, "two", lora=lora, workers=2))
    one = read_weights(tmp_path / "one")
    two = read_weights(tmp_path / "two")
    assert all(torch.equal(one[name], two[name]) for name in one)
    lines = metrics.read_series(str(tmp_path / "one"))
    first = lines[0]
    last = lines[-1]
    assert abs(first["train/diagnostics/chosen_drift"]) < (1e-3 if lora is None else 0.5)
    assert last["train/diagnostics/reward_margin"] > first["train/diagnostics/reward_margin"]
    assert last["train/loss"] < first["train/loss"]
    measured = metrics.read_held_out_series(str(tmp_path / "one"))
    assert measured[-1]["eval/diagnostics/reward_accuracy"] >= 0.5
    if lora:
        assert made.counts["parameters_trained"] < made.counts["parameters"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["IPO", "ORPO", "SimPO"])
def test_other_objectives_of_pairs_run(kind, pairs, tuning, tmp_path, without_ray):
    posttrain(tuning(pairs, objective={"kind": kind}))
    assert len(metrics.read_series(str(tmp_path / "tuned"))) == 6
    assert (Path(pairs) / "references").exists() == (kind == "IPO")


@pytest.mark.slow
def test_kto_learns_from_labels(encode_rows, tuning, tmp_path, without_ray):
    encode_rows(LABELLED, rows="labelled", sequence_length=47)
    posttrain(tuning(str(tmp_path / "encoded"), objective={"kind": "KTO"}))
    lines = metrics.read_series(str(tmp_path / "tuned"))
    assert lines[0]["train/loss"] == pytest.approx(0.5, abs=1e-3)
    rewards = [f"train/diagnostics/{which}_reward" for which in ("chosen", "rejected")]
    wanted, unwanted = ([line[name] for line in lines if name in line] for name in rewards)
    assert wanted[-1] > unwanted[-1]


def test_references_are_those_of_the_model_row_by_row_and_computed_once(pairs, fresh):
    path = checkpoint.resolve(fresh)
    folder = compute_references(pairs, path, 47)
    before = (Path(folder) / "manifest.json").stat().st_mtime_ns
    assert compute_references(pairs, path, 47) == folder
    assert (Path(folder) / "manifest.json").stat().st_mtime_ns == before
    model = checkpoint.open_model(path).build()
    shards = TokenShards.open(f"{pairs}/{TRAIN}")
    stored = StoredReferences(folder, TRAIN, shards)
    (source,) = shards.sources
    count = shards.count_documents(source) // 2
    found = np.stack(stored(source, np.arange(count)), axis=1)
    begins = shards.find_document_starts(source, np.arange(2 * count + 1))
    for number in range(2 * count):
        length = int(begins[number + 1] - begins[number])
        ids, of = np.empty((2, length), dtype=np.int64)
        shards.read_into(source, int(begins[number]), ids)
        shards.read_weights(source, int(begins[number]), of)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids[None, :-1])).logits[0].double()
        targets = torch.from_numpy(np.where(of[1:] > 0, ids[1:], IGNORE))
        nats = functional.cross_entropy(logits, targets, reduction="sum")
        assert found[number // 2, number % 2] == pytest.approx(-float(nats), rel=1e-5)


def test_stale_references_are_not_taken(pairs, fresh, tmp_path):
    path = checkpoint.resolve(fresh)
    folder = compute_references(pairs, path, 47)
    opened = checkpoint.open_model(path)
    other = Decoder(opened.config)
    initialise(other, seed=9)
    checkpoint.write_model(
        str(tmp_path / "other"), opened.config, opened.tokenizer, other.state_dict()
    )
    assert compute_references(pairs, checkpoint.resolve(str(tmp_path / "other")), 47) != folder
    stored = Path(folder) / f"{TRAIN}.npy"
    stored.write_bytes(stored.read_bytes()[:-1] + b"\x01")
    shards = TokenShards.open(f"{pairs}/{TRAIN}")
    with pytest.raises(DataError, match=f"{TRAIN}.npy"):
        StoredReferences(folder, TRAIN, shards)(shards.sources[0], np.array([0]))
    with pytest.raises(DataError, match=f"{TRAIN}.npy"):
        compute_references(pairs, path, 47)


def test_invalid_settings_are_one_line_errors(pairs, tuning, fresh, tmp_path, make_tokens):
    with pytest.raises(ConfigError, match=r"'q_proj' matches no layer"):
        prepare(tuning(pairs, lora={"targets": ("q_proj",)}))
    with pytest.raises(ConfigError, match=r"holds pairs.*labelled"):
        prepare(tuning(pairs, objective={"kind": "KTO"}))
    with pytest.raises(ConfigError, match=r"holds pairs.*conversations"):
        prepare(tuning(pairs, objective={"kind": "SFT"}))
    opened = checkpoint.open_model(fresh)
    tokenizer = json.loads(opened.tokenizer)
    tokenizer["model"]["merges"].pop()
    checkpoint.write_model(
        str(tmp_path / "foreign"), opened.config, json.dumps(tokenizer), opened.weights
    )
    with pytest.raises(ConfigError, match=r"reference: .* has another tokenizer"):
        prepare(tuning(pairs, reference=str(tmp_path / "foreign")))
    short = opened.config.model_copy(update={"positions": 16})
    checkpoint.write_model(str(tmp_path / "short"), short, opened.tokenizer, opened.weights)
    with pytest.raises(ConfigError, match=r"reference: .* has 16 positions"):
        prepare(tuning(pairs, reference=str(tmp_path / "short")))
