"""A task file: TOML that defines where a benchmark's rows are, their prompts and their scoring.

Two kinds of strings use the fields of a row. A *template* is text with `{{ field }}` in it. An
*expression* is the part between such braces, and evaluates to a list, a number or a text. Both are
evaluated in Jinja's sandbox, and a field that a row lacks is an error. This module does not import
torch.

The settings for requesting and scoring an answer, and those for comparing it with the right ones,
are unions with the discriminator `kind`.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import NOT_IDENTITY, Settings


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


class MultipleChoice(Settings):
    """The accuracy of choosing the likeliest of several given answers, as in lm-evaluation-harness.

    The metrics differ in how the log-likelihood l of a choice after the prompt is normalised: acc
    takes the largest l, acc_norm the largest l / characters of the choice, acc_bytes the largest
    l / UTF-8 bytes, and acc_mutual_info the largest difference of l and the log-likelihood after no
    prompt. The first of equal choices is taken.
    """

    kind: Literal["MultipleChoice"] = "MultipleChoice"
    choices: str | tuple[str, ...]  # expression for a list of texts, or a template for each choice
    gold: str  # expression for the right choice: its index from 0, or its text
    # Expression for a list of prompts, one for each choice, in place of the prompt. The choices
    # then differ in the prompt, and `choices` gives the same text after each.
    contexts: str | None = None
    metric: Literal["acc", "acc_norm", "acc_bytes", "acc_mutual_info"] = "acc"  # headline score
    # Also score the choices without the prompt, for acc_mutual_info; this doubles the cost.
    unconditional: bool = False


class Continuation(Settings):
    """The share of rows for which greedy decoding gives exactly the target text."""

    kind: Literal["Continuation"] = "Continuation"
    target: str  # template of the right text


class GeneratedAnswer(Settings):
    """A greedily generated answer that is compared with the right answers."""

    kind: Literal["GeneratedAnswer"] = "GeneratedAnswer"
    # Expression for the right answer: a text, a number, or a list of right answers.
    targets: str
    # Template of the answer in few-shot examples; None: the first of `targets`.
    shown: str | None = None
    until: tuple[str, ...] = ("\n",)  # stop texts, which are not part of the answer
    maximum_tokens: int = Field(default=64, ge=1)  # most tokens of an answer
    # Regular expression for the part of an answer that is compared: the first group, or the whole
    # match if there is no group. None: the whole answer. An answer without a match is wrong.
    extract: str | None = None
    take: Literal["first", "last"] = "first"  # the match of `extract` to use
    check: AnswerCheck = ExactMatch()  # rule for comparing answers


class PreferredAnswer(Settings):
    """The win rate of greedily generated answers against reference answers, decided by a judge.

    A reward model scores both answers. A language model is asked which answer is better, in both
    orders; a win in only one of the orders counts half.
    """

    kind: Literal["PreferredAnswer"] = "PreferredAnswer"
    against: str  # template of the reference answer
    judge: Annotated[str, NOT_IDENTITY]  # run folder or checkpoint of the judge
    # Template of the prompt for a language model as a judge, which continues it with A or B. It can
    # use the row's fields, `question`, `first` and `second`.
    judge_prompt: str = (
        "Question:\n{{ question }}\n\nAnswer A:\n{{ first }}\n\nAnswer B:\n{{ second }}\n\n"
        "Which answer is better, A or B? The better answer is"
    )
    until: tuple[str, ...] = ()  # stop texts, which are not part of the answer
    maximum_tokens: int = Field(default=256, ge=1)  # most tokens of an answer


class RollingText(Settings):
    """The perplexity and the bits per byte of each row's whole prompt."""

    kind: Literal["RollingText"] = "RollingText"


class ProgramTests(Settings):
    """A program generated by the model, run in a sandbox with the tests of its row.

    Programs run only if the run file has `run_code = true`, and only if the kernel supports the
    sandbox.
    """

    kind: Literal["ProgramTests"] = "ProgramTests"
    # Template of the program, in which `completion` is the generated text.
    program: str
    # Template of the tests, without `completion`. They run in another process, and call the
    # program.
    tests: str = Field(min_length=1)
    # Template of the answer in few-shot examples.
    shown: str | None = None
    # Stop texts, which are not part of the answer.
    until: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    maximum_tokens: int = Field(default=512, ge=1)  # most tokens of an answer
    seconds: float = Field(default=5.0, gt=0)  # time limit of a program, in seconds
    memory_mib: int = Field(default=512, ge=64)  # limit of its address space, in MiB


Scoring = Annotated[
    MultipleChoice | Continuation | GeneratedAnswer | PreferredAnswer | RollingText | ProgramTests,
    Field(discriminator="kind"),
]


class FewShot(Settings):
    """Few-shot examples: solved rows before each prompt."""

    count: int = Field(default=0, ge=0)  # number of examples; 0: none
    # File of the examples' rows; None: the task's file, without the row that is asked.
    rows: str | None = None
    # Choice of rows: the first of the file, or a random draw by `seed`. All prompts get the same
    # rows, except that a row is never an example for itself.
    draw: Literal["first", "random"] = "random"
    seed: int = Field(default=0, ge=0)  # random seed of the draw
    separator: str = "\n\n"  # text after each example


class Task(Settings):
    """One benchmark."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")  # name of the task in scorecards
    description: str = ""  # description of the task, for reports
    source: str = ""  # paper of the task, or its publisher's page
    # File of the task's rows: JSON Lines (plain or .gz) or Parquet. A relative path is below the
    # run file's `task_rows`.
    rows: str
    # Named expressions, which templates and other expressions can use by name.
    values: Mapping[str, str] = {}
    preamble: str = ""  # text before the few-shot examples and the prompt
    prompt: str = "{{ prompt }}"  # template of the prompt
    delimiter: str = " "  # text between a prompt and its answer
    # Expression for the group of a row, such as its passage. Standard errors treat the rows of one
    # group as one sample. None: each row is a sample.
    group: str | None = None
    few_shot: FewShot = FewShot()  # solved rows before each prompt
    scoring: Scoring  # kind of request to the model, and how its answer is scored

    @model_validator(mode="after")
    def _one_prompt_a_row(self) -> Self:
        contexts = isinstance(self.scoring, MultipleChoice) and self.scoring.contexts
        if contexts and self.few_shot.count:
            raise ValueError(
                "few_shot.count: rows with `contexts` have several prompts, so they cannot be "
                "shown solved; set it to 0"
            )
        return self
