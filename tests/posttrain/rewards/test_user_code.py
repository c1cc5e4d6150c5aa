"""A user's reward function: its scores, and faults for any other behaviour."""

import os
import sys
from pathlib import Path

import pytest
from support.completions import completion

from trainrig.errors import ConfigError, DataError
from trainrig.posttrain.rewards import PythonFunction
from trainrig.posttrain.rewards.reward_contract import Fault
from trainrig.posttrain.rewards.weighted_rewards import build_rewards, hash_reward_inputs

SOURCE = """
import math, os, sys, time

def reward(prompt, completion, row):
    print("noise of the user's own")
    if completion == "raise":
        raise KeyError("what is this")
    if completion == "hang":
        while True:
            time.sleep(0.01)
    if completion == "exit":
        sys.exit(3)
    if completion == "die":
        os._exit(4)
    odd = {"nan": math.nan, "words": "many", "true": True}
    return odd.get(completion, len(completion) + row.get("more", 0))
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "rewards.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_function_scores_by_prompt_text_and_row(source: str) -> None:
    scorer = PythonFunction(file=source).open()
    assert scorer.score([completion("four"), completion("four", more=3)]) == [4.0, 7.0]
    assert scorer.score([completion("true")]) == [1.0]


def test_an_error_of_a_function_is_a_fault_and_scoring_continues(source: str) -> None:
    scorer = PythonFunction(file=source).open()
    wrong = ["raise", "words", "exit", "die"]
    given = [completion(text) for text in ("a", *wrong, "ab")]
    first, *faults, last = scorer.score(given)
    assert (first, last) == (1.0, 2.0)
    assert [fault.kind for fault in faults if isinstance(fault, Fault)] == ["raised"] * 4
    told = [fault.detail for fault in faults if isinstance(fault, Fault)]
    assert told[0] == "KeyError: 'what is this' (line 7 of rewards.py)"
    assert "returned 'many', which is not a number" in told[1]
    assert told[2] == "SystemExit: 3 (line 12 of rewards.py)"
    assert told[3] == "the process of the code ended with exit code 4"


def test_faults_are_counted_and_logged(source: str, caplog: pytest.LogCaptureFixture) -> None:
    part = PythonFunction(file=source, name="mine", fault_score=-2.0, weight=0.5)
    scores = build_rewards([part]).score([completion(t) for t in ("abc", "nan", "raise")])
    assert scores.totals == (1.5, -1.0, -1.0)
    assert scores.faults == {"mine/not_finite": 1, "mine/raised": 1}
    assert "reward 'mine': 2 of 3 completions have no score" in caplog.text
    with pytest.raises(DataError, match="'mine' scored none of 2 completions"):
        build_rewards([part]).score([completion("raise", "p"), completion("raise", "q")])


def test_a_function_that_never_returns_is_ended(source: str) -> None:
    scorer = PythonFunction(file=source, seconds=0.2).open()
    (fault,) = scorer.score([completion("hang")])
    assert fault == Fault("timed_out", "no answer within 0.2 s")
    assert not scorer.code.running and scorer.code.starts == 1


def test_the_process_ends_with_its_parent(source: str) -> None:
    scorer = PythonFunction(file=source).open()
    process = scorer.code._process
    assert process is not None and process.poll() is None
    del scorer
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("text", "function", "said"),
    [
        ("def other(): pass", "reward", "no 'reward'; the code defines other"),
        ("reward = 3", "reward", "no 'reward'; the code defines none"),
        ("def reward(:", "reward", "SyntaxError: invalid syntax"),
        ("import no_such_package_of_mine", "reward", "No module named 'no_such_package_of_mine'"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_a_one_line_error(
    text: str, function: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        PythonFunction(file=str(path), function=function).open()
    assert said in str(refused.value) and str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_place_is_a_file_or_a_module(source: str) -> None:
    for given in ({}, {"file": source, "module": "os"}):
        with pytest.raises(ValueError, match="file, module: give exactly one"):
            PythonFunction.model_validate(given)
    with pytest.raises(ConfigError, match=r"nowhere\.py: no such file"):
        PythonFunction(file="nowhere.py").hash_inputs()
    with pytest.raises(ConfigError, match="'no_such' is not installed"):
        PythonFunction(module="no_such.rewards").hash_inputs()


def test_its_source_is_part_of_the_fingerprint(source: str, tmp_path: Path) -> None:
    before = hash_reward_inputs([PythonFunction(file=source)])
    assert list(before) == ["rewards[0].source"]
    Path(source).write_text(SOURCE + "# changed\n")
    assert hash_reward_inputs([PythonFunction(file=source)]) != before


def test_a_module_of_an_installed_package_scores_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rewards.py").write_text("def reward(prompt, completion, row):\n    return 0.25\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), before]))
    part = PythonFunction(module="mine_for_tests.rewards")
    first = part.hash_inputs()
    assert part.open().score([completion("x")]) == [0.25]
    (package / "helper.py").write_text("X = 1\n")  # the package is one unit
    assert part.hash_inputs() != first
    assert "mine_for_tests" not in sys.modules
