"""A reward for the right formula."""

from typing import Literal

from trainrig.evaluate.checks.answers import is_right
from trainrig.evaluate.checks.maths import extract_formula
from trainrig.evaluate.checks.settings import MathsMatch
from trainrig.posttrain.rewards.verifier import Verifier


class FormulaAnswer(Verifier):
    r"""1 for the right formula in LaTeX: what `\boxed{}` holds, else what stands between dollar
    signs, else all of it. Both are brought to one way of writing, as evaluation does: `\dfrac12` is
    `\frac{1}{2}` and `x=3` is `3`; formulas that are only worth the same are two.
    """

    kind: Literal["FormulaAnswer"] = "FormulaAnswer"
    name: str = "formula"  # of the part in metrics

    def is_right(self, given: str, target: str) -> bool:
        """Whether both are one formula."""
        return is_right(MathsMatch(), given, extract_formula(target))
