"""The run file of the stage `constitutional`, which criticises and revises answers."""

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
    """A rule for answers that a regular expression checks without a model."""

    pattern: str  # Regular expression, in which a dot also matches a newline.
    # Whether an answer must contain a match, or must not.
    match: Literal["required", "forbidden"] = "required"
    says: str = Field(min_length=1)  # Critique of an answer that breaks the rule.

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, given: str) -> str:
        return check_pattern(given)

    def is_broken_by(self, text: str) -> bool:
        """Return whether `text` breaks the rule."""
        found = re.search(self.pattern, text, re.DOTALL) is not None
        return found == (self.match == "forbidden")


class ConstitutionalChain(PromptedRunFile):
    """Run file of `trainrig constitutional`: criticise, revise and judge answers by principles.

    The method is that of Bai et al. 2022, arXiv:2212.08073.
    """

    verb: ClassVar[str] = "constitutional"

    stage: Literal["constitutional"] = "constitutional"
    # Text file of principles, one in each paragraph. Lines that begin with # are comments.
    principles: Annotated[str, NOT_IDENTITY]
    # Rounds of critique and revision. Each round continues from the last revision.
    rounds: int = Field(default=1, ge=1)
    # Source of critiques and judgements. "model" is the checkpoint itself; "rules" are the `rules`
    # below, for models that are too small to criticise. The model always writes the revisions.
    critic: Literal["model", "rules"] = "model"
    # Rules that check the answers before and after revision. A text that still breaks a rule after
    # the last revision is written to no row of `revisions`.
    rules: tuple[AnswerRule, ...] = ()
    # Jinja template of the critique prompt. Its variables are prompt, answer and principle.
    critique: str = CRITIQUE
    # Jinja template of the revision prompt. Its variables also include critique.
    revision: str = REVISION
    # Jinja template of the judgement prompt, which the model continues with A or B. Its variables
    # are prompt, principle, a and b.
    judgement: str = JUDGEMENT
    # Texts to judge: "revision" compares the first answer with its last revision; "samples"
    # compares two unrevised answers.
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
            raise ValueError(
                'rules: critic = "rules" needs at least one rule; write it under [[rules]]'
            )
        return self
