"""Reward for completions whose answer is the right formula."""

from typing import Literal

from trainrig.evaluate.checks.answers import is_right
from trainrig.evaluate.checks.maths import extract_formula
from trainrig.evaluate.checks.settings import MathsMatch
from trainrig.posttrain.rewards.verifier import Verifier


class FormulaAnswer(Verifier):
    r"""Reward of 1 if the answer is the right LaTeX formula, else 0.

    The formula is read from `\boxed{}`, else from between dollar signs, else from the whole text.
    Both formulas are normalised as in evaluation: `\dfrac12` equals `\frac{1}{2}`, and `x=3` equals
    `3`. Formulas that differ after that are different, even if their values are equal.
    """

    kind: Literal["FormulaAnswer"] = "FormulaAnswer"
    name: str = "formula"  # name of this reward in metrics

    def is_right(self, given: str, target: str) -> bool:
        """Return whether `given` and `target` are the same formula after normalisation."""
        return is_right(MathsMatch(), given, extract_formula(target))
