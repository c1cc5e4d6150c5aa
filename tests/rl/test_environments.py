"""Environments alone: a calculator, and a user's class."""

from pathlib import Path

import pytest

from trainrig.errors import ConfigError
from trainrig.posttrain.rewards.reward_contract import Fault
from trainrig.rl.environments import Calculator, PythonEnvironment, StepResult, evaluate_sum

SOURCE = """
import os, time

class Environment:
    def reset(self, row):
        self.said = []
        return row.get("hint")

    def step(self, text):
        self.said.append(text)
        if text == "raise":
            raise ValueError("no")
        if text == "hang":
            time.sleep(60)
        if text == "nan":
            return "", float("nan"), False
        if text == "short":
            return "only this"
        return " ".join(self.said), len(self.said) / 2, text == "end"
"""


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("48/2", "24"),
        (" 2 * (3 + 4) ", "14"),
        ("1/3", "0.333333"),
        ("1,000*3", "3000"),
        ("-5+.5", "-4.5"),
        ("0.1+0.2", "0.3"),
        ("1/0", None),
        ("2**9", None),
        ("__import__('os')", None),
        ("1e30*1", None),
        ("(" * 150, None),
        ("1+" * 120 + "1", None),
        ("True + 1", None),
        ("", None),
    ],
)
def test_a_sum_has_its_value(written: str, value: str | None) -> None:
    assert evaluate_sum(written) == value


def test_the_calculator_answers_what_is_asked_last() -> None:
    calculator = Calculator().open()
    assert calculator.stops == (">>",)
    assert calculator.reset(0, {}) == ""
    assert calculator.step(0, "first <<1+1>>=2, then <<6*7") == StepResult("=42", 0.0, False)
    assert calculator.step(0, "nothing <<what?") == StepResult("=?", 0.0, False)
    assert calculator.step(0, "none is asked") == StepResult("", 0.0, False)


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "environment.py"
    path.write_text(SOURCE)
    return str(path)


def test_episodes_know_nothing_of_each_other(source: str) -> None:
    episodes = PythonEnvironment(file=source, stop=("</call>",)).open()
    assert episodes.reset(0, {"hint": "think"}) == "think"
    assert episodes.reset(7, {}) == ""
    assert episodes.step(0, "a") == StepResult("a", 0.5, False)
    assert episodes.step(7, "b") == StepResult("b", 0.5, False)
    assert episodes.step(0, "end") == StepResult("a end", 1.0, True)
    episodes.forget()
    assert episodes.reset(0, {}) == ""
    assert episodes.step(0, "c") == StepResult("c", 0.5, False)


@pytest.mark.parametrize(
    ("text", "kind", "detail"),
    [
        ("raise", "raised", "ValueError: no (line 12 of environment.py)"),
        ("nan", "not_finite", "the reward of a step is nan"),
        ("short", "raised", "step returned 'only this', not (observation, reward, done)"),
    ],
)
def test_an_error_in_a_step_is_a_fault(text: str, kind: str, detail: str, source: str) -> None:
    episodes = PythonEnvironment(file=source).open()
    episodes.reset(0, {})
    fault = episodes.step(0, text)
    assert isinstance(fault, Fault) and (fault.kind, fault.detail) == (kind, detail)
    assert isinstance(episodes.reset(1, {"hint": 3}), Fault)


def test_an_episode_is_brought_back_where_anothers_step_was_ended(source: str) -> None:
    environment = PythonEnvironment(file=source)
    episodes = environment.open()
    for episode in (0, 1):
        episodes.reset(episode, {})
        episodes.step(episode, f"of {episode}")
    episodes.code._settings = environment.model_copy(update={"seconds": 0.2})
    assert episodes.step(0, "hang") == Fault("timed_out", "no answer within 0.2 s")
    episodes.code._settings = environment
    assert episodes.step(1, "more") == StepResult("of 1 more", 1.0, False)
    assert episodes.code.starts == 2


def test_a_class_that_is_not_there_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="no 'Game'"):
        PythonEnvironment(file=source, environment="Game").open()
    assert list(PythonEnvironment(file=source).hash_inputs()) == ["source"]
