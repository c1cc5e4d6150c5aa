"""How a written answer is compared with the right ones: one union, told apart by `kind`."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings


class ExactMatch(Settings):
    """The same text as one of the targets, but for white space at both ends."""

    kind: Literal["ExactMatch"] = "ExactMatch"
    ignore_case: bool = False  # whether "Paris" is "paris"
    ignore_punctuation: bool = False  # whether "Paris." is "Paris"


class NumericMatch(Settings):
    """The same number as one of the targets: "1,234.0", "$1234" and "1234" are one."""

    kind: Literal["NumericMatch"] = "NumericMatch"
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # largest difference


class PatternMatch(Settings):
    """A text in which one of the targets, regular expressions, is found."""

    kind: Literal["PatternMatch"] = "PatternMatch"
    whole: bool = False  # whether all of the text has to match


class TokenF1(Settings):
    """The overlap of words with the nearest target, as SQuAD has it (arXiv:1606.05250, sec. 6.1).

    Its score lies between 0 and 1; exact_match is reported beside it.
    """

    kind: Literal["TokenF1"] = "TokenF1"


class MathsMatch(Settings):
    """The same formula as one of the targets after LaTeX is written in one way.

    What is compared is the last `\\boxed{…}` of the answer, else what stands between its first and
    last dollar signs, else all of it: as MATH was published (arXiv:2103.03874).
    """

    kind: Literal["MathsMatch"] = "MathsMatch"


class InstructionMatch(Settings):
    """Whether every instruction of the row was followed, as IFEval has it (arXiv:2311.07911).

    `targets` gives a list of tables, each an instruction's `id` and its `arguments`.
    """

    kind: Literal["InstructionMatch"] = "InstructionMatch"


AnswerCheck = Annotated[
    ExactMatch | NumericMatch | PatternMatch | TokenF1 | MathsMatch | InstructionMatch,
    Field(discriminator="kind"),
]
