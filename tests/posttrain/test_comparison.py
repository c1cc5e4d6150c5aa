"""The report of a tuning run: the model before its first step and after its last."""

import json
from pathlib import Path

import pytest
import torch
from support.tuning_fixtures import build_tuning

from trainrig.errors import ConfigError
from trainrig.models.token_sampling import Sampling
from trainrig.objectives.cross_entropy import token_nats
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.train.evaluations import read_views
from trainrig.train.held_out_loss import RowSizes, open_held_out

CHATS = [{"prompt": f"is {n}", "completion": "yes é"} for n in range(12)]
PAIRS = [{"prompt": f"is {n}", "chosen": "yes é", "rejected": "no"} for n in range(12)]
GREEDY = Sampling(temperature=0, maximum_tokens=9)


@pytest.fixture
def tune(fresh, tokens, encode_rows, tmp_path, without_ray):
    """Return `tune(1, CHATS, lora={…})`: run on this number of workers and return the folder."""

    def run(workers, rows, kind="conversations", output="tuned", **changes):
        encode_rows(rows, kind, rows=kind, held_out=0.3, sequence_length=47)
        comparison = {"prompts": 2, "answer_tokens": 9, "text": tokens, "rows": 3}
        given = {"workers": workers, "comparison": comparison} | changes
        rows = str(tmp_path / kind)
        made = build_tuning(fresh, rows, tmp_path / output, None, {"steps": 5}, **given)
        posttrain(made)
        return made.output

    return run


def compute_loss(path, tokens, source):
    """Return nats per token of the rows of a source, by plain forward passes."""
    sets = open_held_out(TokenShards.open(f"{tokens}/{HELD_OUT}"), RowSizes(3, 47, 1, False))
    generator = TextGenerator.open(path)
    nats = 0.0
    count = 0
    for micro in sets.batches:
        if sets.sources[micro.sources[0]] == source:
            with torch.no_grad():
                logits = generator.model(torch.from_numpy(micro.ids)).logits
            nats += float(token_nats(logits, torch.from_numpy(micro.targets)).double().sum())
            count += int((micro.targets != IGNORE).sum())
    return nats / count


@pytest.mark.slow
def test_the_report_compares_the_first_and_the_last_model(tune, fresh, tokens):
    folder = tune(1, CHATS)
    before, after = read_views(folder)
    assert (before.step, after.step) == (0, 5)
    for view, path in ((before, fresh), (after, folder)):
        assert set(view.losses) == {"books", "web"}
        for source, loss in view.losses.items():
            assert loss == pytest.approx(compute_loss(path, tokens, source), rel=1e-5)
        generator = TextGenerator.open(path)
        assert len(view.answers) == 2
        for given in view.answers:
            question = next(row["prompt"] for row in CHATS if row["prompt"] in given.prompt)
            spoken = generator.speak(question, GREEDY, chat=True)
            assert (given.text, given.stopped) == (spoken.text, spoken.stopped)
            assert given.tokens == spoken.tokens
    page = (Path(folder) / "report.html").read_text()
    assert "Before and after" in page
    assert "Answers to 2 held-out prompts" in page
    assert "Loss on held-out text" in page
    two = tune(2, CHATS, output="two")
    assert read_views(two) == [before, after], "two ranks see something else"
    unseen = tune(1, CHATS, output="unseen", comparison={"prompts": 0})
    assert not read_views(unseen)[0].answers
    last = {
        json.loads((Path(path) / "manifest.json").read_text())["counts"]["loss_last"]
        for path in (folder, two, unseen)
    }
    assert len(last) == 1, "being looked at changes the run"


@pytest.mark.slow
def test_an_adapter_and_pairs_are_seen_too(tune, fresh):
    folder = tune(1, PAIRS, "pairs", objective={"kind": "DPO"}, lora={"rank": 2})
    before, after = read_views(folder)
    assert before.answers[0].prompt == after.answers[0].prompt
    question = next(row["prompt"] for row in PAIRS if row["prompt"] in before.answers[0].prompt)
    spoken = TextGenerator.open(fresh).speak(question, GREEDY, chat=True)
    assert before.answers[0].text == spoken.text


@pytest.mark.slow
def test_a_reward_model_is_asked_nothing(tune):
    assert read_views(tune(1, PAIRS, "pairs", objective={"kind": "Reward"})) == []


@pytest.mark.slow
def test_text_of_another_tokenizer_is_refused(tune, make_tokens, tmp_path):
    other = make_tokens(tmp_path / "other", entries=300)
    with pytest.raises(ConfigError, match=r"comparison\.text: .* another tokenizer"):
        tune(1, CHATS, comparison={"text": other})
