import pytest
from support.completions import completion

from trainrig.posttrain.rewards import ExactAnswer, NumericAnswer
from trainrig.posttrain.rewards.reward_contract import Fault


@pytest.mark.parametrize(
    ("said", "answer", "score"),
    [(" 42 \n", "42", 1.0), ("4 2", "42", 0.0), ("x", ["y", "x"], 1.0), ("42", 42, 1.0)],
)
def test_an_exact_answer_is_the_text_but_for_white_space(
    said: str, answer: object, score: float
) -> None:
    assert ExactAnswer().score([completion(said, answer=answer)]) == [score]


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("48 / 2 = 24, so 48 + 24 = 72.", 1.0),
        ("#### 72", 1.0),
        ("$72.00", 1.0),
        ("72 clips, which is 6 dozen", 0.0),
        ("none", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_of_several_numbers_is_the_answer(said: str, score: float) -> None:
    """GSM8K is scored so; its column ends in `#### 72`."""
    reward = NumericAnswer(extract_target=r"#### (.+)")
    assert reward.score([completion(said, answer="48/2 = 24 and so on\n#### 72")]) == [score]


def test_the_first_number_can_be_the_answer_and_a_tolerance_is_inclusive() -> None:
    first = NumericAnswer(take="first", tolerance=0.5)
    assert first.score([completion("1,000.5 or 7", answer="1000")]) == [1.0]
    assert first.score([completion("1,000.51 or 7", answer="1000")]) == [0.0]


def test_an_answer_is_found_by_its_pattern() -> None:
    boxed = ExactAnswer(extract=r"<answer>(.*?)</answer>")
    said = "<answer>3</answer> no, <answer>4</answer>"
    assert boxed.score([completion(said, answer="4"), completion("4", answer="4")]) == [1.0, 0.0]


@pytest.mark.parametrize("row", [{}, {"answer": None}, {"answer": ""}, {"answer": []}])
def test_a_row_without_an_answer_is_a_fault(row: dict[str, object]) -> None:
    (score,) = ExactAnswer().score([completion("", **row)])
    assert isinstance(score, Fault) and score.kind == "no_target"


def test_an_invalid_regular_expression_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression"):
        ExactAnswer(extract="(")
