import math
from collections.abc import Sequence

import pytest
from support.completions import completion

from trainrig.errors import ClusterError, ConfigError, DataError
from trainrig.posttrain.rewards import ExactAnswer, NumericAnswer
from trainrig.posttrain.rewards.reward_contract import Completion
from trainrig.posttrain.rewards.weighted_rewards import WeightedRewards, build_rewards

RIGHT = completion("7", "a", answer="7")
CLOSE = completion("it is 7", "b", answer="7")


class NotFinite:
    name = "own"

    def score(self, completions: Sequence[Completion]) -> list[float]:
        return [float(answer.text) for answer in completions]


def test_parts_are_added_by_weight_and_kept() -> None:
    rewards = build_rewards([ExactAnswer(weight=2.0), NumericAnswer(weight=0.5)])
    scores = rewards.score([RIGHT, CLOSE])
    assert scores.totals == (2.5, 0.5)
    assert scores.parts == {"exact": (1.0, 0.0), "numeric": (1.0, 1.0)}
    assert not scores.faults


def test_one_bad_row_is_counted_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rewards = build_rewards([ExactAnswer(fault_score=-1.0), NumericAnswer()])
    scores = rewards.score([RIGHT, completion("7", "c")])
    assert scores.totals == (2.0, -1.0)
    assert scores.faults == {"exact/no_target": 1, "numeric/no_target": 1}
    assert "reward 'exact': 1 of 2 completions have no score" in caplog.text


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_no_score(number: str) -> None:
    rewards = WeightedRewards(((ExactAnswer(name="own"), NotFinite()),))
    scores = rewards.score([completion("1"), completion(number)])
    assert scores.totals == (1.0, 0.0) and scores.faults == {"own/not_finite": 1}
    assert all(map(math.isfinite, scores.totals))


def test_a_reward_that_scores_nothing_ends_the_run_in_one_line() -> None:
    rewards = build_rewards([ExactAnswer()])
    with pytest.raises(DataError, match=r"rewards: 'exact' scored none of 2 completions"):
        rewards.score([completion("7", "a"), completion("7", "b")])
    assert rewards.score([completion("7", "a")] * 2).faults == {"exact/no_target": 2}


def test_rows_without_the_column_are_refused_before_anything_is_sampled() -> None:
    rewards = build_rewards([ExactAnswer(column="solution")])
    with pytest.raises(
        DataError,
        match=r"rows.jsonl, row 1: no column 'solution', .* 'exact' .* has prompt; .* `column`",
    ):
        rewards.check_rows([{"solution": "1"}, {"prompt": "x"}], "rows.jsonl")


def test_names_tell_parts_apart() -> None:
    with pytest.raises(ConfigError, match=r"rewards: 2 have the name 'exact'"):
        build_rewards([ExactAnswer(), ExactAnswer()])
    with pytest.raises(ConfigError, match=r"rewards: none is given"):
        build_rewards([])


class Raising:
    name = "own"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def score(self, completions: Sequence[Completion]) -> list[float]:
        if any(answer.text == "bad" for answer in completions):
            raise self.error
        return [1.0 for _ in completions]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ValueError("no\nnumber"),
            DataError,
            r"rewards: 'own' raised ValueError.*row 7, prompt 'b'",
        ),
        (
            ConnectionError("refused"),
            ClusterError,
            r"rewards: 'own' raised ConnectionError.*scored 2 completions",
        ),
    ],
)
def test_a_reward_that_raises_is_a_one_line_error_for_the_user(
    error: Exception, kind: type[Exception], message: str
) -> None:
    rewards = WeightedRewards(((ExactAnswer(name="own"), Raising(error)),))
    with pytest.raises(kind, match=message):
        rewards.score([completion("good", "a"), completion("bad", "b")], rows=[3, 7])
