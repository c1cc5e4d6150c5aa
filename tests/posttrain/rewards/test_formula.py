import pytest
from support.completions import completion

from trainrig.posttrain.rewards import FormulaAnswer


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        (r"so \boxed{\dfrac12}", r"\frac{1}{2}", 1.0),
        (r"we get $x=3$.", "3", 1.0),
        ("0.5", r"the answer is $\frac{1}{2}$", 1.0),
        (r"\boxed{4}", r"\boxed{5}", 0.0),
        ("2/4", "1/2", 0.0),
        ("", "1", 0.0),
    ],
)
def test_formulas_are_brought_to_one_way_of_writing(text: str, answer: str, score: float) -> None:
    assert FormulaAnswer().score([completion(text, answer=answer)]) == [score]
