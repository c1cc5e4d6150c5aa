import pytest
from support.completions import completion

from trainrig.posttrain.rewards import OverlongPenalty, PatternShape


@pytest.mark.parametrize(
    ("tokens", "score"), [(0, 0), (12, 0), (13, -0.25), (14, -0.5), (16, -1), (17, -1), (40, -1)]
)
def test_the_penalty_is_that_of_dapo(tokens: int, score: float) -> None:
    assert OverlongPenalty(longest=16, margin=4).score([completion("x" * tokens)]) == [score]


def test_a_margin_is_within_the_length() -> None:
    with pytest.raises(ValueError, match=r"at most longest \(4\)"):
        OverlongPenalty(longest=4, margin=5)


def test_a_form_is_matched_whole_or_anywhere() -> None:
    said = [completion("<think>a\nb</think> 4\n"), completion("so <think>a</think> 4")]
    pattern = r"<think>.*</think> \d+"
    assert PatternShape(pattern=pattern).score(said) == [1.0, 0.0]
    assert PatternShape(pattern=pattern, whole=False).score(said) == [1.0, 1.0]
    with pytest.raises(ValueError, match="not a regular expression"):
        PatternShape(pattern="[")
