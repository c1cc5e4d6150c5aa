"""Reward models, from rows to scores, adapters and Hugging Face folders."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support.tuning_fixtures import build_tuning

from trainrig.errors import ConfigError, DataError
from trainrig.models.decoder import Decoder, initialise
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.posttrain.huggingface.peft_adapters import export_adapter
from trainrig.posttrain.row_run_files import AnswerScoring
from trainrig.posttrain.stages.score_stage import score_rows
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.posttrain.tuning.fine_tuning import posttrain, prepare
from trainrig.runs.step_trace import trace
from trainrig.tokens.batches import IGNORE, STEP_LABELS
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run_report.run_page import write_report

PAIRS = [
    {"prompt": f"the sea {n}", "chosen": f"is a grey {n} mirror", "rejected": f"buy {n} cats"}
    for n in range(24)
]
STEPS = [
    {
        "prompt": f"the sea {n}",
        "completions": ["is grey", f"and {n} cats", "is a mirror"],
        "labels": [True, n % 2 == 0, True],
    }
    for n in range(16)
]


@pytest.fixture
def tuning(fresh, tmp_path):
    """Return `tuning(output, objective={…}, lora={…})`: a run file on the folder `encoded`."""

    def make(output="reward", **changes):
        training = {
            "steps": 12,
            "schedule": {"kind": "Constant"},
            "held_out": {"every": 6, "rows": 8},
            "checkpoints": {"every": 6},
        }
        encoded = str(tmp_path / "encoded")
        return build_tuning(fresh, encoded, tmp_path / output, "Reward", training, **changes)

    return make


def read_weights(folder):
    return checkpoint.open_model(str(folder)).weights


@pytest.mark.slow
@pytest.mark.parametrize(
    "lora",
    [pytest.param(None, marks=pytest.mark.slow), {"rank": 4, "base": "int8"}],
    ids=["whole", "lora"],
)
def test_a_reward_model_learns_and_has_the_same_bits_with_two_workers(
    lora, encode_rows, tuning, fresh, tmp_path, without_ray
):
    encode_rows(PAIRS, rows="pairs", held_out=0.3, sequence_length=47)
    posttrain(tuning("one", lora=lora))
    posttrain(tuning("two", lora=lora, workers=2))
    one = read_weights(tmp_path / "one")
    two = read_weights(tmp_path / "two")
    assert one["head.weight"].shape == (1, 32)
    assert all(torch.equal(one[name], two[name]) for name in one)
    lines, measured = (
        read(str(tmp_path / "one")) for read in (metrics.read_series, metrics.read_held_out_series)
    )
    assert lines[0]["train/terms/ranking"] == pytest.approx(np.log(2), abs=0.4)
    assert lines[-1]["train/terms/ranking"] < 0.3
    last = measured[-1]
    assert last["eval/diagnostics/reward_accuracy"] >= (0.6 if lora else 0.9)
    shares = [value for name, value in last.items() if name.endswith("/share")]
    assert len(shares) == 5 and sum(shares) == pytest.approx(1)
    page = Path(write_report(str(tmp_path / "one"))).read_text()
    assert "Preferences" in page and "the diagonal" in page and "trainrig score" in page
    assert "nats per token" not in page
    traced = trace(str(tmp_path / "one"), 3)
    assert traced.log == "agrees" and len(traced.sequences) == 8
    pairs = [
        (sequence.answer, traced.encoder.decode(sequence.ids)) for sequence in traced.sequences
    ]
    assert [answer for answer, _ in pairs] == ["chosen", "rejected"] * 4
    assert all(("mirror" in text) == (answer == "chosen") for answer, text in pairs)
    (document,) = traced.sequences[0].documents
    assert document.corpus_file.endswith("encoded.jsonl")
    held = {name for name in checkpoint.open_model(str(tmp_path / "one")).weights}
    assert held == {*read_weights(fresh), "head.weight"}


@pytest.mark.slow
def test_scores_of_an_adapter_are_those_of_its_export_in_transformers(
    encode_rows, tuning, tmp_path, without_ray
):
    encode_rows(PAIRS, rows="pairs", sequence_length=47)
    posttrain(tuning(lora={"rank": 4}))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in PAIRS[:6]))
    scoring = {"stage": "score", "paths": (str(rows),), "rows": "pairs", "workers": 0}

    def scored(folder, out):
        given = {**scoring, "checkpoint": str(tmp_path / folder), "output": str(tmp_path / out)}
        score_rows(AnswerScoring.model_validate(given))
        lines = (tmp_path / out / "rows-00000.jsonl").read_text().splitlines()
        return [json.loads(line)["chosen_score"] for line in lines]

    found = scored("reward", "scored")
    export_checkpoint(str(tmp_path / "reward"), str(tmp_path / "hub"), HubFolder())
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hub")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    assert theirs.config.num_labels == 1
    for row, score in zip(PAIRS, found, strict=False):
        turns = [("user", row["prompt"]), ("assistant", row["chosen"])]
        chat = [{"role": role, "content": content} for role, content in turns]
        ids = tokenizer.apply_chat_template(chat, return_dict=False)
        rendered = tokenizer.decode(ids)
        said = rendered[: rendered.rindex(row["chosen"]) + len(row["chosen"])]
        asked = torch.tensor([tokenizer(said, add_special_tokens=False).input_ids])
        with torch.no_grad():
            assert float(theirs(asked).logits[0, 0]) == pytest.approx(score, rel=1e-4, abs=1e-5)
    import_checkpoint(str(tmp_path / "hub"), str(tmp_path / "again"))
    assert scored("again", "again scored") == pytest.approx(found, rel=1e-5, abs=1e-6)
    export_adapter(str(tmp_path / "reward"), str(tmp_path / "peft"))
    settings = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert settings["task_type"] == "SEQ_CLS" and settings["modules_to_save"] == ["score"]


@pytest.mark.slow
def test_a_reward_model_of_steps_learns_which_are_right(encode_rows, tuning, tmp_path, without_ray):
    encode_rows(STEPS, rows="steps", sequence_length=47, held_out=0.3)
    run = tuning(objective={"kind": "ProcessReward"})
    job, _, counted = prepare(run)
    batch = job.make_batches().micro_batch(0, 0)
    labels = batch.arrays[STEP_LABELS]
    assert ((labels != IGNORE).sum(1) == 3).all() and set(labels[labels != IGNORE]) <= {0, 1}
    assert counted["solutions"] + job.make_held_out().count_micro_batches() == 16
    posttrain(run)
    first = trace(str(tmp_path / "reward"), 1).sequences[0]
    trained = [at for at, target in enumerate(first.target_ids) if target != IGNORE]
    assert len(trained) == first.targets == 3
    lines = metrics.read_series(str(tmp_path / "reward"))
    assert lines[-1]["train/loss"] < lines[0]["train/loss"]
    assert lines[0]["train/tokens"] == 12
    measured = metrics.read_held_out_series(str(tmp_path / "reward"))
    assert measured[-1]["eval/diagnostics/step_accuracy"] >= 0.6


@pytest.mark.slow
def test_kto_is_measured_on_held_out_rows(encode_rows, tuning, tmp_path, without_ray):
    rows = [
        {"prompt": f"the sea {n}", "completion": f"is {n} grey", "label": n % 2 == 0}
        for n in range(16)
    ]
    encode_rows(rows, rows="labelled", sequence_length=47, held_out=0.4)
    posttrain(tuning(objective={"kind": "KTO"}))
    first, last = metrics.read_held_out_series(str(tmp_path / "reward"))
    assert first["eval/loss"] > 0 and last["eval/diagnostics/reference_point"] >= 0


def test_unsupported_uses_of_a_reward_model_are_rejected(encode_rows, tuning, fresh, tmp_path):
    opened = checkpoint.open_model(fresh)
    model = Decoder(opened.config.with_score_head())
    initialise(model, seed=2)
    reward = str(tmp_path / "a reward model")
    checkpoint.write_model(reward, model.config, opened.tokenizer, model.state_dict())
    encode_rows(PAIRS, rows="pairs", sequence_length=47)
    with pytest.raises(ConfigError, match=r"reward model.*objective DPO can't train"):
        prepare(tuning(objective={"kind": "DPO"}, checkpoint=reward))
    assert prepare(tuning(checkpoint=reward))[0].model == model.config
    with pytest.raises(DataError, match="which generates no text"):
        TextGenerator.open(reward)
    with pytest.raises(ValueError, match="Reward uses no reference"):
        tuning(reference=fresh)
    with pytest.raises(ConfigError, match=r"'head' matches no layer"):
        prepare(tuning(lora={"targets": ("head",)}))
    with pytest.raises(ValueError, match=r"lora.dropout and training.compile"):
        tuning(
            lora={"dropout": 0.1},
            training={"steps": 1, "compile": {}, "optimizer": {"kind": "AdamW", "lr": 0.1}},
        )
    with pytest.raises(ConfigError, match=r"holds pairs.*steps"):
        prepare(tuning(objective={"kind": "ProcessReward"}))
