"""What a task asks of a model and how an answer is judged: one union, told apart by `kind`."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import NOT_IDENTITY, Settings
from trainrig.evaluate.checks.settings import AnswerCheck, ExactMatch


class MultipleChoice(Settings):
    """The likeliest of a few given answers, as lm-evaluation-harness has it.

    With log-likelihood l of a choice after the prompt: acc is that of the largest l, acc_norm of
    the largest l by the choice's characters, acc_bytes by its UTF-8 bytes, and acc_mutual_info of
    the largest l less that of the choice after no prompt. Of equals the first is taken.
    """

    kind: Literal["MultipleChoice"] = "MultipleChoice"
    choices: str | tuple[str, ...]  # expression of a list of texts, or a template for each
    gold: str  # expression of the right one: its number from 0, or its text
    # Expression of a list of prompts, one a choice, in place of the prompt: what differs then is
    # what comes before, and `choices` gives the same text after each.
    contexts: str | None = None
    metric: Literal["acc", "acc_norm", "acc_bytes", "acc_mutual_info"] = "acc"  # headline score
    # Whether the choices are scored without the prompt as well: acc_mutual_info, at twice the cost.
    unconditional: bool = False


class Continuation(Settings):
    """Whether the one right text is what the model itself would go on with, token by token."""

    kind: Literal["Continuation"] = "Continuation"
    target: str  # template of the right text


class GeneratedAnswer(Settings):
    """A text that the model writes, greedily, checked against what is right."""

    kind: Literal["GeneratedAnswer"] = "GeneratedAnswer"
    # Expression of the right answer: a text, a number, or a list of those that are all right.
    targets: str
    # Template of the answer in a row that is shown solved; None: the first of `targets`.
    shown: str | None = None
    until: tuple[str, ...] = ("\n",)  # texts at which the answer ends, without them
    maximum_tokens: int = Field(default=64, ge=1)  # tokens of an answer, at most
    # Regular expression of the part of an answer that is checked, its first group if it has one;
    # None: all of it. An answer that does not match is wrong.
    extract: str | None = None
    take: Literal["first", "last"] = "first"  # which match of `extract`
    check: AnswerCheck = ExactMatch()  # when an answer is right


class PreferredAnswer(Settings):
    """A text that the model writes, greedily, and whether a judge prefers it to another.

    A judge with a score for a head scores both. A language model is asked which is better, in
    either order: half a win is one in one order alone.
    """

    kind: Literal["PreferredAnswer"] = "PreferredAnswer"
    against: str  # template of the answer that the model's is compared with
    judge: Annotated[str, NOT_IDENTITY]  # run folder or checkpoint of the judge
    # Template of what a language model is asked, of the row's fields, `question`, `first` and
    # `second`; it is to go on with A or B.
    judge_prompt: str = (
        "Question:\n{{ question }}\n\nAnswer A:\n{{ first }}\n\nAnswer B:\n{{ second }}\n\n"
        "Which answer is better, A or B? The better answer is"
    )
    until: tuple[str, ...] = ()  # texts at which the answer ends, without them
    maximum_tokens: int = Field(default=256, ge=1)  # tokens of an answer, at most


class RollingText(Settings):
    """How well each row's prompt is predicted, all of it: perplexity and bits per byte."""

    kind: Literal["RollingText"] = "RollingText"


class ProgramTests(Settings):
    """A program that the model writes, run confined with the tests of its row.

    It is run only if the run file says `run_code = true`, and only where the kernel can confine it.
    """

    kind: Literal["ProgramTests"] = "ProgramTests"
    # Template of the program, where `completion` is what the model wrote.
    program: str
    # Template of its tests, without `completion`: they run in another process and call the program.
    tests: str = Field(min_length=1)
    # Template of the answer in a row that is shown solved.
    shown: str | None = None
    # Texts at which the answer ends, without them.
    until: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    maximum_tokens: int = Field(default=512, ge=1)  # tokens of an answer, at most
    seconds: float = Field(default=5.0, gt=0)  # time that a program may take
    memory_mib: int = Field(default=512, ge=64)  # address space that it may take


Scoring = Annotated[
    MultipleChoice | Continuation | GeneratedAnswer | PreferredAnswer | RollingText | ProgramTests,
    Field(discriminator="kind"),
]
