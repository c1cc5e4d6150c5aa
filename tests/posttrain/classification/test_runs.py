"""Classifiers and extractive question answering, from rows to predictions, and in Transformers."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from trainrig.errors import ConfigError
from trainrig.models.huggingface import HubFolder
from trainrig.models.lora import is_adapter
from trainrig.objectives.classification import find_likeliest_spans
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.objective_kinds import AnswerSpan, Classification
from trainrig.posttrain.huggingface.model_folders import export_checkpoint
from trainrig.posttrain.huggingface.peft_adapters import export_adapter, import_adapter
from trainrig.posttrain.row_run_files import AnswerScoring
from trainrig.posttrain.stages.score_stage import score_rows
from trainrig.posttrain.tuning.classified_batches import TextBatches
from trainrig.posttrain.tuning.fine_tuning import posttrain, prepare
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.runs.step_trace import trace
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run_report.run_page import write_report

SEA = ["the sea is grey", "a storm is north", "the ship sails"]
SPORT = ["the team wins", "a goal"]
ENDS = ["and cold", "by two", "in london", "by three", "and calm", "one", "where"]
ROWS = [
    {"text": text, "text_pair": end, "label": label}
    for label, texts in (("sea", SEA), ("sport", SPORT), ("question", ["who is one?", "when was"]))
    for text in texts
    for end in ENDS
]
CONTEXT = "the ship {} sails north and the team wins in london by {}"
QUESTIONS = [
    {
        "question": asked, "context": (context := CONTEXT.format(word, count)),
        "answers": {"text": [answer], "answer_start": [context.index(f" {answer}") + 1]},
    }
    for word in ("calm", "cold", "grey", "one")
    for count in ("two", "three", "1870")
    for asked, answer in (("where is the ship?", "sails north"), ("the team wins by", count))
]  # fmt: skip


@pytest.fixture
def encode(encode):
    return functools.partial(encode, sequence_length=40, held_out=0.3)


@pytest.fixture
def tuning(bert, tmp_path):
    def make(output="run", steps=24, **changes):
        given = {
            "checkpoint": bert, "conversations": str(tmp_path / "encoded"),
            "output": str(tmp_path / output),
            "batches": {"sequence_length": 40, "global_batch": 8, "micro_batch": 2},
            "objective": {"kind": "Classification"},
            "training": {
                "steps": steps, "optimizer": {"kind": "AdamW", "lr": 0.01},
                "schedule": {"kind": "Constant"}, "held_out": {"every": steps // 2, "rows": 40},
                "checkpoints": {"every": steps // 2},
            },
        }  # fmt: skip
        return FineTuning.model_validate(given | changes)

    return make


def score_rows_of(tmp_path, run, rows, file, **settings):
    given = {
        "checkpoint": run, "paths": (file,), "rows": rows, "workers": 0, "batch": 3,
        "output": str(tmp_path / "scored"),
    }  # fmt: skip
    counts = score_rows(AnswerScoring.model_validate(given | settings)).counts
    lines = (tmp_path / "scored/rows-00000.jsonl").read_text().splitlines()
    return counts, [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_classifier_learns_is_the_same_with_two_workers_and_in_transformers(
    encode, tuning, write_rows, tmp_path, without_ray
):
    encode(ROWS)
    run = tuning()
    posttrain(run)
    posttrain(tuning("two", workers=2))
    one, two = (checkpoint.open_model(str(tmp_path / name)) for name in ("run", "two"))
    assert one.config.labels == ("question", "sea", "sport")
    assert one.weights["head.weight"].shape == (3, 32) and "pooler.weight" in one.weights
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    lines = metrics.read_series(str(tmp_path / "run"))
    assert lines[0]["train/loss"] == pytest.approx(np.log(3), abs=0.3)
    assert lines[0]["train/tokens"] == 8 and "train/diagnostics/f1" not in lines[0]
    last = metrics.read_held_out_series(str(tmp_path / "run"))[-1]
    assert lines[-1]["train/loss"] < 0.5 * lines[0]["train/loss"]
    assert last["eval/diagnostics/accuracy"] >= 0.6 and last["eval/diagnostics/f1"] >= 0.5
    assert {f"eval/diagnostics/f1/{n}" for n in range(3)} <= set(last)
    text = Path(write_report(str(tmp_path / "run"))).read_text()
    assert "Accuracy" in text and "trainrig score" in text
    assert trace(str(tmp_path / "run"), 3).log == "agrees"
    assert prepare(run)[2]["classified"] > 20
    # `score` gives the same outputs as Transformers for the exported model.
    bad = [{"text": ""}, {"text": "the " * 60}]
    file = write_rows("asked", [*ROWS[:7], *bad])
    counts, found = score_rows_of(tmp_path, str(tmp_path / "run"), "classified", file)
    assert counts["labels"] == ["question", "sea", "sport"] and counts["scored"] == 7
    assert counts["quarantined"] == {"empty_text": 1, "too_long": 1}
    assert [row["score_label"] for row in found[7:]] == [None] * 2
    export_checkpoint(str(tmp_path / "run"), str(tmp_path / "hub"), HubFolder())
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hub")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    assert theirs.config.id2label == {0: "question", 1: "sea", 2: "sport"}
    for row, ours in zip(ROWS, found[:7], strict=False):
        with torch.no_grad():
            asked = tokenizer(row["text"], row["text_pair"], return_tensors="pt")
            wanted = theirs(**asked).logits[0].double().softmax(0)
        assert ours["score_probabilities"] == pytest.approx(wanted.tolist(), abs=1e-5)
        assert ours["score_label"] == theirs.config.id2label[int(wanted.argmax())]


@pytest.mark.slow
def test_adapters_with_dropout_and_a_whole_head_are_the_same_with_two_workers_and_in_peft(
    bert, encode, tuning, tmp_path, without_ray
):
    peft = pytest.importorskip("peft")
    encode(ROWS)
    lora = {"rank": 4, "alpha": 8.0, "dropout": 0.1}
    run = tuning(lora=lora, steps=8)
    posttrain(run)
    posttrain(tuning("two", workers=2, lora=lora, steps=8))
    one, two = (checkpoint.open_model(str(tmp_path / name)) for name in ("run", "two"))
    assert {name for name in one.adapter.tensors if not is_adapter(name)} == {
        f"{module}.{part}" for module in ("head", "pooler") for part in ("weight", "bias")
    }
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    before = checkpoint.open_model(one.adapter.of.base).weights
    changed = {n for n in one.weights if n not in before or (one.weights[n] != before[n]).any()}
    assert {name.partition(".")[0] for name in changed} == {"head", "pooler", "layers"}
    assert not any("norm" in name or name.endswith("bias") for name in changed if "layers" in name)
    export_adapter(str(tmp_path / "run"), str(tmp_path / "peft"))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(bert, num_labels=3)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "peft").eval()
    micro = prepare(run)[0].make_batches().micro_batch(0, 0)
    ids, there, second = (torch.from_numpy(micro.arrays[n]) for n in ("ids", "segments", "texts"))
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=there, token_type_ids=second).logits
        torch.testing.assert_close(read(one.build(), micro), wanted, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_adapter_of_modernbert_is_the_same_in_peft_and_comes_back(
    modernbert, encode, tuning, tmp_path, without_ray
):
    """One matrix of ModernBERT is query, key and value; another is both halves of GEGLU."""
    peft = pytest.importorskip("peft")
    encode(ROWS, tokenizer=modernbert)
    run = tuning(checkpoint=modernbert, lora={"rank": 4, "alpha": 8.0}, steps=4)
    posttrain(run)
    ours = checkpoint.open_model(str(tmp_path / "run"))
    export_adapter(str(tmp_path / "run"), str(tmp_path / "peft"))
    settings = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert settings["rank_pattern"] == {"Wqkv": 12, "Wi": 8}
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        modernbert, num_labels=3, attn_implementation="eager"
    )
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "peft").eval()
    micro = prepare(run)[0].make_batches().micro_batch(0, 0)
    ids, there = (torch.from_numpy(micro.arrays[n]) for n in ("ids", "segments"))
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=there).logits
        torch.testing.assert_close(read(ours.build(), micro), wanted, rtol=0, atol=1e-5)
    theirs.save_pretrained(tmp_path / "saved")
    import_adapter(str(tmp_path / "saved"), ours.adapter.of.base, str(tmp_path / "back"))
    back = checkpoint.open_model(str(tmp_path / "back"))
    assert back.adapter.tensors.keys() == ours.adapter.tensors.keys()
    assert all(torch.equal(back.weights[name], ours.weights[name]) for name in ours.weights)


@pytest.mark.slow
def test_an_adapter_that_finds_answers_is_the_same_in_peft(
    bert, encode, tuning, tmp_path, without_ray
):
    peft = pytest.importorskip("peft")
    encode(QUESTIONS, rows="questions")
    run = tuning(objective={"kind": "AnswerSpan"}, lora={"rank": 4, "alpha": 8.0}, steps=4)
    posttrain(run)
    ours = checkpoint.open_model(str(tmp_path / "run"))
    assert {"head.weight", "head.bias"} <= set(ours.adapter.tensors)
    export_adapter(str(tmp_path / "run"), str(tmp_path / "peft"))
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(bert)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "peft").eval()
    micro = prepare(run)[0].make_batches().micro_batch(0, 0)
    ids, there, second = (torch.from_numpy(micro.arrays[n]) for n in ("ids", "segments", "texts"))
    with torch.no_grad():
        # Skip PEFT's own class for questions, which does not pass token_type_ids on.
        logits = theirs.base_model(ids, attention_mask=there, token_type_ids=second)
        found = read(ours.build(), micro)
    wanted = torch.stack([logits.start_logits, logits.end_logits], -1)
    torch.testing.assert_close(found[there > 0], wanted[there > 0], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_finder_of_answers_learns_and_is_transformers(
    encode, tuning, write_rows, tmp_path, without_ray
):
    encode(QUESTIONS, rows="questions")
    posttrain(tuning(objective={"kind": "AnswerSpan"}, steps=60))
    lines = metrics.read_series(str(tmp_path / "run"))
    assert lines[-1]["train/loss"] < 0.3 * lines[0]["train/loss"]
    assert lines[-1]["train/diagnostics/exact"] >= 0.7
    last = metrics.read_held_out_series(str(tmp_path / "run"))[-1]
    assert last["eval/diagnostics/f1"] >= last["eval/diagnostics/exact"]
    counts, found = score_rows_of(
        tmp_path, str(tmp_path / "run"), "questions", write_rows("asked", QUESTIONS)
    )
    assert counts["scored"] == len(QUESTIONS) and "labels" not in counts
    right = [row["score_answer"] == row["answers"]["text"][0] for row in found]
    assert np.mean(right) >= 0.7
    export_checkpoint(str(tmp_path / "run"), str(tmp_path / "hub"), HubFolder())
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "hub")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    with torch.no_grad():
        asked = tokenizer(found[0]["question"], found[0]["context"], return_tensors="pt")
        logits = theirs(**asked)
    sums = logits.start_logits[0][:, None] + logits.end_logits[0][None, :]
    first, last = divmod(int(sums.triu().argmax()), sums.shape[1])
    if right[0]:
        said = tokenizer.decode(asked["input_ids"][0, first : last + 1])
        assert said == found[0]["score_answer"]
    assert found[0]["score"] == pytest.approx(float(sums[first, last]), abs=1e-4)


@pytest.mark.slow
def test_a_decoder_classifies_by_its_last_token(encode, tuning, fresh, tokens, tmp_path):
    encode(ROWS, tokenizer=tokens, sequence_length=47)
    changes = {"batches": {"sequence_length": 47, "global_batch": 4, "micro_batch": 2}}
    job, *_ = prepare(tuning(checkpoint=fresh, **changes))
    assert (job.model.kind, job.model.head, job.model.outputs) == ("Decoder", "classes", 3)
    from trainrig.models.decoder import initialise
    from trainrig.models.encoder import build_model

    model = build_model(job.model)
    initialise(model, 3)
    micro = job.make_batches().micro_batch(0, 0)
    logits = read(model, micro)
    for row, length in enumerate(micro.arrays["segments"].sum(1)):
        ids = torch.from_numpy(micro.ids[row : row + 1, :length])
        assert torch.allclose(logits[row], model(ids).logits[0, -1], atol=1e-6)


def read(model, micro):
    from trainrig.objectives.classification import read_texts

    return read_texts(model, DeviceBatch.copy(micro, torch.device("cpu")).arrays).logits


@pytest.mark.parametrize(
    "objective", [Classification(label_smoothing=0.1, dropout=0.3), AnswerSpan()]
)
def test_a_step_is_the_same_in_any_micro_batches(objective, encode, tuning, tmp_path):
    questions = isinstance(objective, AnswerSpan)
    encode(QUESTIONS if questions else ROWS, rows="questions" if questions else "classified")
    run = tuning(objective=objective.model_dump())
    job, *_ = prepare(run)
    from trainrig.models.decoder import initialise
    from trainrig.models.encoder import build_model

    model = build_model(job.model)
    initialise(model, 3)
    shards = TokenShards.open(f"{tmp_path}/encoded/train")
    found = []
    for micro_batch in (1, 8):
        sizes = run.batches.model_copy(update={"micro_batch": micro_batch})
        batches = TextBatches(shards, "questions" if questions else "classified", sizes, 0)
        model.zero_grad()
        for micro in batches.at(0):
            computed = objective.compute(model, DeviceBatch.copy(micro, torch.device("cpu")), {})
            loss = (
                computed.terms["cross_entropy"].values.sum() / batches.denominators(0)["examples"]
            )
            loss.backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_dropout_before_the_head_acts_only_in_training():
    hidden = torch.ones(50, 400)
    output = type("O", (), {"hidden": hidden, "head": lambda _, x: x, "logits": hidden})()
    objective = Classification(dropout=0.25)
    samples = torch.arange(100, 150)
    read = objective._compute_logits(output, samples)
    assert torch.equal(read.unique(), torch.tensor([0.0, 1 / 0.75]))
    four_sigma = 4 * (0.25 * 0.75 / hidden.numel()) ** 0.5
    assert float((read == 0).double().mean()) == pytest.approx(0.25, abs=four_sigma)
    assert not torch.equal(read[0], read[1])
    assert torch.equal(objective._compute_logits(output, samples.flip(0)), read.flip(0))
    with torch.no_grad():
        assert objective._compute_logits(output, samples) is hidden


def test_losses_and_f1_are_those_by_hand():
    class Told:
        def __init__(self, logits):
            self.logits = logits
            self.auxiliary = {}

    class Model:
        config = type("C", (), {"head": "classes", "bidirectional": True, "segments": 0})()

        def __init__(self, logits):
            self.told = logits

        def __call__(self, ids, **given):
            return Told(self.told)

    logits = torch.tensor([[2.0, 0, 0], [0, 2, 0], [2, 0, 0], [0, 0, 1.0]])
    right = torch.tensor([0, 1, 1, 2])
    arrays = {"ids": torch.zeros(4, 2, dtype=torch.long), "segments": torch.ones(4, 2).long()}
    batch = DeviceBatch(arrays | {"classes": right}, right, right)
    with torch.no_grad():
        computed = Classification().compute(Model(logits), batch, {})
    wanted = torch.nn.functional.cross_entropy(logits, right, reduction="none")
    assert torch.equal(computed.terms["cross_entropy"].values, wanted)
    means = {
        name: float(diagnostic.sum_rows_B().sum() / diagnostic.counts_B.sum())
        for name, diagnostic in computed.diagnostics.items()
    }
    # Predicted: class 0 twice, once correctly; class 1 once, of two; class 2 once, correctly.
    assert means == {"accuracy": 0.75, "f1/0": pytest.approx(2 / 3), "f1/1": pytest.approx(2 / 3),
                     "f1/2": 1.0}  # fmt: skip
    assert Classification().derive(means) == {"f1": pytest.approx(7 / 9)}


def test_the_likeliest_span_is_that_of_a_search():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(5, 9, 2, generator=generator)
    context = (torch.rand(5, 9, generator=generator) < 0.7).long()
    context[:, 0] = 0
    first, last, best = find_likeliest_spans(logits, context, 3)
    for row in range(5):
        spans = [(0, 0)] + [
            (a, b) for a in range(9) for b in range(a, min(a + 3, 9))
            if context[row, a] and context[row, b]
        ]  # fmt: skip
        a, b = max(spans, key=lambda s: float(logits[row, s[0], 0] + logits[row, s[1], 1]))
        assert (int(first[row]), int(last[row])) == (a, b)
        assert float(best[row]) == pytest.approx(float(logits[row, a, 0] + logits[row, b, 1]))


def test_unsupported_training_settings_are_rejected(encode, tuning, fresh, bert, tokens, tmp_path):
    encode(ROWS)
    with pytest.raises(ConfigError, match=r"holds classified, but .* for questions"):
        prepare(tuning(objective={"kind": "AnswerSpan"}))
    with pytest.raises(ConfigError, match="AnswerSpan can't train"):
        prepare(tuning(checkpoint=fresh, objective={"kind": "AnswerSpan"}))
    with pytest.raises(ConfigError, match="objective SFT can't"):
        prepare(tuning(objective={"kind": "SFT"}))
    with pytest.raises(ConfigError, match="which can't score"):
        score_rows_of(tmp_path, fresh, "classified", str(tmp_path / "encoded.jsonl"))
