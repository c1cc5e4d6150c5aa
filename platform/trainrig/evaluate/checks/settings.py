"""Settings for comparing an answer with the right ones: a union with the discriminator `kind`."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings


class ExactMatch(Settings):
    """A match if the answer equals one of the targets, ignoring white space at both ends."""

    kind: Literal["ExactMatch"] = "ExactMatch"
    ignore_case: bool = False  # true: "Paris" equals "paris"
    ignore_punctuation: bool = False  # true: "Paris." equals "Paris"


class NumericMatch(Settings):
    """A match if the first numbers are equal: "1,234.0", "$1234" and "1234" are the same."""

    kind: Literal["NumericMatch"] = "NumericMatch"
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # largest difference


class PatternMatch(Settings):
    """A match if one of the targets, which are regular expressions, is found in the answer."""

    kind: Literal["PatternMatch"] = "PatternMatch"
    whole: bool = False  # true: the whole answer must match, not only a part of it


class TokenF1(Settings):
    """The F1 score of the words shared with the best target, as in SQuAD (arXiv:1606.05250).

    The score is between 0 and 1 (section 6.1 of the paper). exact_match is reported, too.
    """

    kind: Literal["TokenF1"] = "TokenF1"


class MathsMatch(Settings):
    r"""A match if the formula equals one of the targets after LaTeX is normalised, as in MATH.

    The formula is the last `\boxed{…}` of the answer, else the text between its first and last
    dollar signs, else the whole answer (arXiv:2103.03874).
    """

    kind: Literal["MathsMatch"] = "MathsMatch"


class InstructionMatch(Settings):
    """A match if the answer follows every instruction of the row, as in IFEval (arXiv:2311.07911).

    `targets` is a list of tables with the `id` and the `arguments` of one instruction each.
    """

    kind: Literal["InstructionMatch"] = "InstructionMatch"


AnswerCheck = Annotated[
    ExactMatch | NumericMatch | PatternMatch | TokenF1 | MathsMatch | InstructionMatch,
    Field(discriminator="kind"),
]
