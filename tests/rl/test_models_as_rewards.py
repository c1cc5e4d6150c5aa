"""A reward model and a judge as rewards: their scores, and inputs they cannot read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.completions import completion

from trainrig.errors import ConfigError, DataError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.rewards import JudgeModel, RewardModel
from trainrig.posttrain.rewards.reward_contract import Fault
from trainrig.posttrain.rewards.weighted_rewards import build_rewards
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.rl.reinforcement_stage import prepare
from trainrig.tokens.batches import REWARD_PART, REWARDS
from trainrig.tokens.chat.chat_messages import Conversation, Message
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.train import checkpoint
from trainrig.train.checkpoint import write_model
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches

CONFIG = DecoderConfig(layers=2, channels=32, heads=4, positions=96, vocabulary=320)


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory, encoder):
    """Return a run folder with a reward model."""
    folder = str(tmp_path_factory.mktemp("scores") / "run")
    model = Decoder(CONFIG.with_score_head())
    initialise(model, seed=2)
    with torch.no_grad():
        model.head.weight.mul_(20)
    write_model(folder, model.config, encoder.text, model.state_dict())
    return folder


def score_answer(path, prompt, text):
    """Return the score of one answer, read at the token before its end token."""
    opened = checkpoint.open_model(path)
    renderer = ChatTokenizer(checkpoint.read_tokenizer_files(opened.path)).build_renderer()
    rendered = renderer.render(Conversation((Message("user", prompt), Message("assistant", text))))
    last = int(np.flatnonzero(rendered.weights)[-1]) - 1
    with torch.no_grad():
        return opened.build()(torch.from_numpy(rendered.ids)[None]).logits[0, last, 0].item()


def test_a_reward_model_scores_a_completion_as_an_answer(reward_model):
    scorer = RewardModel(checkpoint=reward_model, batch=2).open()
    texts = ["yes", "no, not at all", "e"]
    found = scorer.score([completion(text, "is it?") for text in texts])
    expected = [score_answer(reward_model, "is it?", text) for text in texts]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(set(found)) == 3


def test_a_reward_model_reads_all_of_a_conversation_as_it_reads_rows(reward_model):
    asked = (Message("system", "s"), Message("user", "a"), Message("assistant", "b"))
    chat = Conversation((*asked, Message("user", "is it?")))
    scorer = RewardModel(checkpoint=reward_model).open()
    told = [
        replace(completion("yes", "is it?"), chat=conversation) for conversation in (chat, None)
    ]
    whole, alone = scorer.score(told)
    opened = checkpoint.open_model(reward_model)
    renderer = ChatTokenizer(checkpoint.read_tokenizer_files(opened.path)).build_renderer()
    ids = renderer.render(
        replace(chat, messages=(*chat.messages, Message("assistant", "yes"))).train_on_last()
    ).ids
    with torch.no_grad():  # at the token before the answer's end token
        expected = opened.build()(torch.from_numpy(ids)[None]).logits[0, -2, 0].item()
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    assert abs(whole - alone) > 1e-3


def test_a_completion_too_long_for_the_reward_model_is_a_fault(reward_model):
    scorer = RewardModel(checkpoint=reward_model).open()
    first, long, empty = scorer.score([completion("a"), completion("a b " * 90), completion("")])
    assert isinstance(first, float)
    assert [f.kind for f in (long, empty) if isinstance(f, Fault)] == ["unreadable"] * 2
    assert "more than the 96 that the model can read" in long.detail


def test_a_model_of_the_wrong_kind_is_refused_in_one_line(reward_model, fresh, tmp_path):
    with pytest.raises(ConfigError, match="language model, not"):
        RewardModel(checkpoint=fresh).open()
    with pytest.raises(ConfigError, match="reward model, which generates"):
        JudgeModel(checkpoint=reward_model, question="?").open()
    with pytest.raises(DataError, match="no valid checkpoint there"):
        RewardModel(checkpoint=str(tmp_path)).open()


def test_a_run_learns_of_a_reward_model(ranks, make_run, reward_model, tmp_path):
    run = make_run(
        tmp_path / "run",
        rewards=(
            {"kind": "RewardModel", "checkpoint": reward_model},
            {"kind": "ExactAnswer", "weight": 0.0},
        ),
        training={"steps": 1},
    )
    job, inputs, _ = prepare(run)
    key = checkpoint.compute_content_key(checkpoint.resolve(reward_model))
    assert inputs["rewards[0].checkpoint"] == key
    ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    micro = list_stored_batches(RunFolder(job.folder))[0].read_micro_batch(0)
    np.testing.assert_array_equal(micro.arrays[REWARDS], micro.arrays[f"{REWARD_PART}reward_model"])
    assert f"{REWARD_PART}exact" in micro.arrays


def test_a_judge_is_asked_and_its_verdict_read(fresh):
    question = "{{ prompt }} {{ completion }} {{ grade }}:"
    part = JudgeModel(
        checkpoint=fresh, question=question, chat=False, verdict="[a-z]", maximum_tokens=8
    )
    part = part.model_copy(
        update={"worth": {letter: float(ord(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"}}
    )
    rows = [completion(text, grade="A") for text in ("yes", "no", "e")]
    found = part.open().score([*rows, completion("no grade"), completion("x" * 99, grade="A")])
    sampling = Sampling(temperature=0.0, maximum_tokens=8)
    judge = TextGenerator.open(fresh, "cpu")
    for score, row in zip(found, rows, strict=False):
        said = judge.speak(f"p {row.text} A:", sampling).text
        assert score == part.read(said)
    *_, missing, long = found
    assert isinstance(missing, Fault) and missing.kind == "no_target"
    assert isinstance(long, Fault) and long.kind == "unreadable"


@pytest.mark.parametrize(
    ("settings", "said", "score"),
    [
        ({}, "I give it 7, no: 8.5", 8.5),
        ({"verdict": r"grade (\d)"}, "grade 3 of 5", 3.0),
        ({"verdict": "yes|no", "worth": {"yes": 1.0, "no": -1.0}}, "no. yes.", 1.0),
        ({"verdict": "yes|no", "worth": {"yes": 1.0}}, "no", "'no' is none of yes"),
        ({"verdict": "[a-z]+"}, "fine", "'fine' is not a number"),
        ({}, "nothing", "no verdict in 'nothing'"),
        ({"verdict": "x(y)?"}, "x", "no verdict in 'x'"),
    ],
)
def test_a_verdict_is_a_number_or_worth_one(settings, said, score):
    found = JudgeModel(checkpoint="x", question="?", **settings).read(said)
    if isinstance(score, str):
        assert isinstance(found, Fault) and (found.kind, found.detail) == ("no_verdict", score)
    else:
        assert found == score


def test_a_judge_that_gives_no_verdict_at_all_ends_the_run(fresh):
    part = JudgeModel(checkpoint=fresh, question="{{ completion }}", chat=False, verdict="NEVER")
    with pytest.raises(DataError, match="'judge' scored none of 2 completions"):
        build_rewards([part]).score([completion("a", "p"), completion("b", "q")])
