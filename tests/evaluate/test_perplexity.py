import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.evaluate import evaluation
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.held_out_perplexity import (
    HeldOutPlan,
    check_fit,
    score,
    score_conversations,
    score_source,
)
from trainrig.evaluate.scorecards import SourceScore
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding, RowFiles
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import write_model

VOCABULARY = 384  # more than the tokenizer's 320 entries
CONFIG = DecoderConfig(layers=2, channels=32, heads=4, positions=48, vocabulary=VOCABULARY)


@pytest.fixture(scope="module")
def encoder(tokens):
    return Encoder.load(f"{tokens}/tokenizer.json")


@pytest.fixture(scope="module")
def held_out(tokens):
    return TokenShards.open(f"{tokens}/held_out")


@pytest.fixture(scope="module")
def model():
    # larger weights give non-uniform predictions
    model = Decoder(CONFIG.model_copy(update={"initial_std": 0.3}))
    initialise(model, seed=5)
    return model.eval()


@pytest.fixture
def run(tokens, model, encoder, tmp_path):
    weights = model.state_dict()
    write_model(str(tmp_path / "run"), model.config, encoder.text, weights)
    return Evaluation(
        checkpoint=str(tmp_path / "run"),
        tokens=tokens,
        output=str(tmp_path / "card"),
        sequence_length=32,
    )


def score_all(run, model, encoder):
    check_fit(run, model, encoder)
    found = {}
    for split in HeldOutPlan(run).list_splits():
        if source := split.task.get("source"):
            found[source] = score_source(run, model, encoder, source)
        else:
            found["conversations"] = score_conversations(run, model, encoder)
    return found


def changed(run, **fields):
    return run.model_copy(update=fields)


def plain_score(model, texts, encoder):
    """Return the sums over (context and target ids, number of target ids), one window at a time."""
    nats = text_nats = tokens = text_bytes = 0
    for ids, targets in texts:
        logits = model(torch.tensor([ids[:-1]])).logits[0, -targets:]
        losses = functional.cross_entropy(logits, torch.tensor(ids[-targets:]), reduction="none")
        for lost, target in zip(losses.double().tolist(), ids[-targets:], strict=True):
            length = len(encoder.decode_bytes([target])) if target >= 5 else 0
            nats = nats + lost
            tokens = tokens + 1
            text_nats = text_nats + (lost if length else 0)
            text_bytes = text_bytes + length
    return nats / tokens, text_nats / math.log(2) / text_bytes, tokens, text_bytes


@pytest.mark.parametrize("length", [32, 7, 48])
@torch.inference_mode()
def test_a_source_is_scored_like_a_loop_over_its_windows(length, run, model, encoder, held_out):
    scores = score_all(changed(run, sequence_length=length), model, encoder)
    assert tuple(scores) == held_out.sources == ("books", "web")
    for source, found in scores.items():
        count = held_out.tokens(source)
        ids = held_out.read_window(source, 0, count).tolist()
        # Each id but the first is a target once, and sees at most the `length` ids before it.
        windows = []
        for start in range(0, count - 1, length):
            window = ids[start : start + length + 1]
            windows.append((window, len(window) - 1))
        loss, bits_per_byte, tokens, text_bytes = plain_score(model, windows, encoder)
        assert (found.tokens, found.bytes) == (tokens, text_bytes) and tokens == count - 1
        assert found.loss == pytest.approx(loss, rel=1e-6)
        assert found.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
        assert found.bits_per_byte == pytest.approx(bits_per_byte, rel=1e-6)


def test_the_bytes_of_a_source_equal_its_texts(run, model, encoder, held_out):
    scores = score_all(run, model, encoder)
    for source in held_out.sources:
        documents = held_out.read_documents(source, 0, held_out.tokens(source))
        # the first id is no target
        first = encoder.byte_lengths[held_out.read_window(source, 0, 1)].sum()
        text = sum(document.text_bytes for document in documents)
        assert len(documents) > 3 and scores[source].bytes == text - first


def test_an_untrained_models_perplexity_is_the_vocabulary_size(run, encoder):
    ignorant = Decoder(CONFIG)
    for parameter in ignorant.parameters():
        torch.nn.init.zeros_(parameter)
    for found in score_all(run, ignorant, encoder).values():
        assert found.perplexity == pytest.approx(VOCABULARY, rel=1e-6)
        assert found.loss == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    ids = np.array([[0, 70, 80, 4]])
    # two text tokens of one byte each, and one special token
    targets = np.array([[70, 80, 4, IGNORE]])
    found = score(ignorant, [(ids, targets)], encoder.byte_lengths)
    assert (found.tokens, found.bytes) == (3, 2)
    assert found.bits_per_byte == pytest.approx(math.log2(VOCABULARY), rel=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_rows_at_a_time_do_not_change_the_score(rows, run, model, encoder):
    eight = score_all(run, model, encoder)
    for source, found in score_all(changed(run, micro_batch=rows), model, encoder).items():
        assert found.loss == pytest.approx(eight[source].loss, rel=1e-6)
        assert found.bits_per_byte == pytest.approx(eight[source].bits_per_byte, rel=1e-6)
        assert (found.tokens, found.bytes) == (eight[source].tokens, eight[source].bytes)


def test_the_number_of_scored_tokens_is_limited(run, model, encoder, held_out):
    for wanted in (1, 32, 50, 10**9):
        scores = score_all(changed(run, tokens_per_source=wanted), model, encoder)
        for source, found in scores.items():
            assert found.tokens == min(wanted, held_out.tokens(source) - 1)


@torch.inference_mode()
def test_of_conversations_the_assistants_words_are_scored(run, model, encoder, tokens, tmp_path):
    path = tmp_path / "chats.jsonl"
    chats = [{"prompt": f"is it {n}", "completion": f"a mirror, é {n}"} for n in range(5)]
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    folder = str(tmp_path / "encoded")
    source = RowFiles(paths=(str(path),), source="chats", split="held_out")
    taught = RowFiles(paths=(str(path),), source="chats", split="train")
    encoding = ConversationEncoding(
        sources=(source, taught), tokenizer=tokens, output=folder, workers=0, sequence_length=48
    )
    encode_conversations(encoding)
    found = score_all(changed(run, conversations=folder), model, encoder)["conversations"]
    windows = []
    for chat in chats:
        asked = f"<|user|>{chat['prompt']}<|end_of_turn|><|assistant|>"
        encoded = [i.tolist() for i in encoder.encode_batch([chat["prompt"], chat["completion"]])]
        end = encoder.find_special("<|end_of_turn|>")
        names = ("<|user|>", "<|assistant|>")
        user, assistant = (encoder.find_special(name) for name in names)
        assert asked.startswith(names[0])
        ids = [encoder.end_of_text, user, *encoded[0], end, assistant, *encoded[1], end]
        windows.append((ids, len(encoded[1]) + 1))
    loss, bits_per_byte, count, text_bytes = plain_score(model, windows, encoder)
    assert (found.tokens, found.bytes) == (count, text_bytes)
    assert text_bytes == sum(len(chat["completion"].encode()) for chat in chats)
    assert found.loss == pytest.approx(loss, rel=1e-6)
    assert found.bits_per_byte == pytest.approx(bits_per_byte, rel=1e-6)


# --- the stage


def test_the_scorecard_holds_the_scores_of_the_newest_checkpoint(run, model, encoder, tmp_path):
    manifest = evaluate(run)
    card = json.loads((tmp_path / "card" / "scorecard.json").read_bytes())
    assert card["step"] == 0
    found = {source: SourceScore(**values) for source, values in card["scores"].items()}
    assert found == score_all(run, model, encoder)
    assert manifest.counts["bits_per_byte"] == {n: s.bits_per_byte for n, s in found.items()}
    assert set(manifest.files) == {"report.html", "scorecard.json"}
    assert set(manifest.inputs) == {"checkpoint", "tokens"}


def test_the_same_evaluation_is_not_done_twice_and_another_is_refused(run, monkeypatch):
    manifest = evaluate(run)
    monkeypatch.setattr(evaluation, "HeldOutPlan", None)
    assert evaluate(run) == manifest
    with pytest.raises(OutputTaken, match="sequence_length: 32 there, 31 here"):
        evaluate(changed(run, sequence_length=31))


@pytest.mark.slow
def test_tokens_of_another_tokenizer_are_refused(run, make_tokens, tmp_path):
    other = make_tokens(tmp_path, entries=300)
    with pytest.raises(DataError, match="not from the checkpoint's tokenizer"):
        evaluate(changed(run, tokens=other))


@pytest.mark.slow
def test_tokens_of_which_nothing_is_held_out_are_refused(run, make_tokens, tmp_path):
    other = make_tokens(tmp_path, held_out=0.0)
    with pytest.raises(DataError, match="tokenize with a larger `held_out`"):
        evaluate(changed(run, tokens=other))


def test_windows_longer_than_the_model_can_read_are_refused(run):
    with pytest.raises(ConfigError, match=r"sequence_length \(49\) exceeds the model's 48"):
        evaluate(changed(run, sequence_length=49))


def test_missing_inputs_are_named(run, tmp_path):
    for field, message in {
        "checkpoint": "no such folder",
        "tokens": "no such folder; run the stage that writes it",
        "conversations": "no such folder; run the stage that writes it",
    }.items():
        with pytest.raises(DataError, match=f"nowhere: {message}"):
            evaluate(changed(run, **{field: str(tmp_path / "nowhere")}))


def test_nothing_but_special_tokens_has_no_score(model, encoder):
    rows = [(np.array([[70, 0]]), np.array([[0, IGNORE]]))]
    with pytest.raises(DataError, match="no token of text"):
        score(model, rows, encoder.byte_lengths)
