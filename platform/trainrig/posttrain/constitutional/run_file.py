"""What a chain of critique and revision is told."""

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from trainrig.config import NOT_IDENTITY, Field, Settings
from trainrig.errors import ConfigError
from trainrig.evaluate.tasks.templates import compile_template
from trainrig.posttrain.rewards.verifier import check_pattern
from trainrig.posttrain.sampling.run_file import PromptedRunFile

CRITIQUE = """Question:
{{ prompt }}

Answer:
{{ answer }}

Point out in which ways the answer does not follow this principle: {{ principle }}

Critique:"""
REVISION = """Question:
{{ prompt }}

Answer:
{{ answer }}

Critique:
{{ critique }}

Rewrite the answer so that it follows this principle: {{ principle }}

Revision:"""
JUDGEMENT = """Question:
{{ prompt }}

Answer A:
{{ a }}

Answer B:
{{ b }}

Which answer follows this principle better: {{ principle }}

The better one is answer"""


class AnswerRule(Settings):
    """What can be seen in an answer without a model."""

    pattern: str  # regular expression, in which a dot is any character, a newline too
    # Whether an answer has to have what matches, or must not have it.
    match: Literal["required", "forbidden"] = "required"
    says: str = Field(min_length=1)  # critique of an answer that breaks it

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, given: str) -> str:
        return check_pattern(given)

    def is_broken_by(self, text: str) -> bool:
        """Whether `text` breaks it."""
        found = re.search(self.pattern, text, re.DOTALL) is not None
        return found == (self.match == "forbidden")


class ConstitutionalChain(PromptedRunFile):
    """`trainrig constitutional`: answers, criticised and revised by principles, and judged (Bai et
    al. 2022, arXiv:2212.08073)."""

    verb: ClassVar[str] = "constitutional"

    stage: Literal["constitutional"] = "constitutional"
    # Principles, a file of text: one in each paragraph; lines that begin with # say nothing.
    principles: Annotated[str, NOT_IDENTITY]
    rounds: int = Field(default=1, ge=1)  # critiques and revisions, each of what the last one left
    # Who criticises and judges: "model", the checkpoint itself; "rules", the rules below, for
    # models that are too small for it. Revisions are the model's either way.
    critic: Literal["model", "rules"] = "model"
    # What answers are checked by before and after; what the last revision still breaks is in no
    # row.
    rules: tuple[AnswerRule, ...] = ()
    # Template of what the model is asked for a critique, in Jinja's sandbox, over prompt, answer
    # and principle.
    critique: str = CRITIQUE
    # Template of what it is asked for a revision, over these and critique.
    revision: str = REVISION
    # Template of what it is asked for a judgement, over prompt, principle, a and b; it goes on with
    # A or B.
    judgement: str = JUDGEMENT
    # What is judged: the first answer and its last revision, or two answers, neither revised.
    compare: Literal["revision", "samples"] = "revision"

    @field_validator("critique", "revision", "judgement")
    @classmethod
    def _is_a_template(cls, given: str) -> str:
        try:
            compile_template(given, "template")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return given

    @model_validator(mode="after")
    def _rules_are_there_if_wanted(self) -> Self:
        if self.critic == "rules" and not self.rules:
            raise ValueError('rules: critic = "rules" has none to go by; write one under [[rules]]')
        return self
