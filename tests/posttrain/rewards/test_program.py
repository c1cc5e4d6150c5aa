import pytest
from support.completions import completion

from trainrig.posttrain.rewards import ProgramAnswer
from trainrig.posttrain.rewards.reward_contract import Fault

TESTS = "assert double(4) == 8"


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("def double(n): return 2 * n", 1.0),
        ("Thus:\n```python\ndef double(n):\n    return n + n\n```\nDone.", 1.0),
        ("def double(n): return n", 0.0),
        ("import sys; sys.exit(0)", 0.0),
        ("def double(n): open('/tmp/x', 'w'); return 8", 0.0),
    ],
)
def test_a_program_is_right_if_it_passes_its_tests(said: str, score: float) -> None:
    assert ProgramAnswer().open().score([completion(said, tests=TESTS)]) == [score]


@pytest.mark.slow
def test_a_program_that_never_ends_gets_nothing() -> None:
    reward = ProgramAnswer(seconds=0.5)
    assert reward.score([completion("while True: pass", tests=TESTS)]) == [0.0]


def test_a_row_that_lacks_what_is_run_is_a_fault() -> None:
    other = ProgramAnswer(program="{{ completion }}{{ entry_point }}")
    (bare,) = ProgramAnswer().score([completion("x")])
    (unnamed,) = other.score([completion("x", tests=TESTS)])
    assert isinstance(bare, Fault) and bare.detail == "column 'tests' has no tests"
    assert isinstance(unnamed, Fault) and "entry_point" in unnamed.detail


def test_an_invalid_template_is_rejected() -> None:
    with pytest.raises(ValueError, match="program: invalid template"):
        ProgramAnswer(program="{{ completion")
