"""Preferences of a judge between answers: a reward model or a language model."""

import json

import pytest
import torch

from trainrig.errors import DataError, OutputTaken
from trainrig.evaluate.engine.opened_models import OpenedJudge, Pair
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation, TaskChoice
from trainrig.evaluate.scorecards import read_scorecard, read_scored
from trainrig.evaluate.tasks.task_definition import PreferredAnswer
from trainrig.evaluate.tasks.task_prompts import Question
from trainrig.models.decoder import Decoder, initialise
from trainrig.train.checkpoint import write_model

TASK = """
name = "better"
rows = "rows.jsonl"
prompt = "Question {{ query }} Answer"
[scoring]
kind = "PreferredAnswer"
against = "{{ other }}"
judge = "JUDGE"
maximum_tokens = 5
"""


@pytest.fixture
def judges(tmp_path, tiny_model, tiny_encoder):
    """Write the folders of a model to evaluate and of two judges."""
    reward = Decoder(tiny_model.config.with_score_head())
    initialise(reward, seed=9)
    asked = Decoder(tiny_model.config)
    initialise(asked, seed=11)
    for name, model in {"run": tiny_model, "reward": reward, "asked": asked}.items():
        path = str(tmp_path / name)
        write_model(path, model.config, tiny_encoder.text, model.state_dict())
    return tmp_path


def make_run(judges, judge, output="card"):
    rows = [{"query": f"the sea {n}", "other": f" grey{' and' * n}"} for n in range(6)]
    (judges / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (judges / "task.toml").write_text(TASK.replace("JUDGE", str(judges / judge)))
    return Evaluation(
        checkpoint=str(judges / "run"),
        output=str(judges / output),
        tasks=(TaskChoice(task=str(judges / "task.toml")),),
        task_rows=str(judges),
        shard_rows=4,
    )


def pair(mine, other):
    question = Question(row=1, where="here", prompt="the sea", fields={})
    return Pair(question, "the sea ", [("user", "the sea")], mine, other)


def load_judge(judges, name, tiny_model):
    scoring = PreferredAnswer(against="", judge=str(judges / name))
    return OpenedJudge.open(scoring, make_run(judges, name), tiny_model, chat=False), scoring


def test_a_reward_model_prefers_the_higher_score(judges, tiny_model, tiny_encoder):
    judge, scoring = load_judge(judges, "reward", tiny_model)

    def score(text):
        (ids,) = tiny_encoder.encode_batch([text])
        ids = [tiny_encoder.end_of_text, *map(int, ids)]
        return float(judge.model(torch.tensor([ids])).logits[0, -1, 0].detach())

    answers = ["grey", "and because the mirror", "because"]
    for mine in answers:
        for other in answers:
            (found,) = judge.compare([pair(mine, other)], scoring)
            wanted = score(f"the sea {mine}") - score(f"the sea {other}")
            assert found.margins == (pytest.approx(wanted, abs=1e-5),)
            same = mine == other
            better = wanted > 0
            assert found.preferred == (0.5 if same else float(better))


def test_a_language_model_judges_in_both_orders_and_its_bias_cancels(judges, tiny_model):
    judge, scoring = load_judge(judges, "asked", tiny_model)
    pairs = [pair("grey", "because"), pair("because", "grey"), pair("and", "and")]
    there, back, same = judge.compare(pairs, scoring)
    assert there.margins[0] == pytest.approx(-back.margins[1], abs=1e-5)
    assert there.preferred == 1 - back.preferred
    # The judge favours one letter whatever it reads. Neither of two equal answers gains by that.
    assert same.margins[0] == -same.margins[1] != 0 and same.preferred == 0.5
    (alone,) = judge.compare(pairs[:1], scoring)
    assert alone.margins == pytest.approx(there.margins, abs=1e-5)


@pytest.mark.parametrize("judge", ["reward", "asked"])
def test_the_scorecard_has_how_often_the_models_answer_wins(judges, judge):
    run = make_run(judges, judge)
    evaluate(run)
    rows = read_scored(run.output, "better")
    assert [row["expected"] for row in rows] == [f" grey{' and' * n}" for n in range(6)]
    points = [row["scores"]["win_rate"] for row in rows]
    score = read_scorecard(run.output).tasks["better"]
    assert score.metric == "win_rate" and score.headline.value == pytest.approx(sum(points) / 6)
    assert all(len(row["margins"]) == (1 if judge == "reward" else 2) for row in rows)


def test_a_missing_or_changed_judge_is_reported(judges):
    evaluate(make_run(judges, "reward"))
    with pytest.raises(OutputTaken, match="task 'better'"):
        evaluate(make_run(judges, "asked"))
    with pytest.raises(DataError, match="nowhere: no such folder"):
        evaluate(make_run(judges, "nowhere", output="other"))
