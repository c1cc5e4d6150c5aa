"""Run files of the stages in which a model answers prompts: `sample` and `constitutional`."""

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from trainrig import config
from trainrig.evaluate.tasks.task_templates import Template
from trainrig.posttrain.prompt_files import PromptFiles
from trainrig.posttrain.rewards import RewardSettings
from trainrig.posttrain.rewards.rule_rewards import Pattern


class PromptedRunFile(config.RunFile):
    """Settings shared by these stages: a model, prompts, and how answers are sampled."""

    resumes: ClassVar[bool] = True
    progress: ClassVar[config.ProgressUnit] = "splits"

    # Model that answers: a run folder, which may hold an adapter, or a checkpoint.
    checkpoint: Annotated[str, config.NOT_IDENTITY]
    prompts: PromptFiles  # files with the prompts
    # Longest prompt, in tokens; longer ones are skipped.
    prompt_tokens: int = config.Field(default=512, ge=1)
    maximum_tokens: int = config.Field(default=256, ge=1)  # longest answer, in tokens
    # Sampling temperature, which divides the logits; 0: always take the likeliest token.
    temperature: float = config.Field(default=1.0, ge=0, allow_inf_nan=False)
    # Sample from the fewest likeliest tokens whose probabilities add up to this; 1: from all.
    top_p: float = config.Field(default=1.0, gt=0, le=1)
    # Texts that end an answer at their first occurrence; they are not part of the answer.
    stop: tuple[str, ...] = ()
    seed: int = 0  # random seed of the sampled answers
    # Prompts that are answered in one batch. Another number may change the answers.
    batch: int = config.Field(default=8, ge=1)
    # CPU threads of a worker without a GPU. Another number may change the answers.
    threads: int = config.Field(default=1, ge=1)
    output: Annotated[str, config.OUTPUT]  # output folder, on disk or in a bucket
    # Worker processes on Ray, each with a GPU if the cluster has some; 0: run in this process.
    workers: Annotated[int, config.NOT_IDENTITY] = config.Field(default=2, ge=0)
    # Prompts in one output file, which is also one unit of work.
    shard_prompts: int = config.Field(default=256, ge=1)

    def request_resources(self, there_are_gpus: bool) -> config.ResourceRequest:
        """Return one device for each worker: a GPU if there are any, otherwise a core."""
        return config.ResourceRequest.for_models(self.workers, there_are_gpus)


class AnswerSampling(PromptedRunFile):
    """Run file of `trainrig sample`: several answers to each prompt, the best as training rows."""

    verb: ClassVar[str] = "sample"

    stage: Literal["sample"] = "sample"
    samples: int = config.Field(default=4, ge=1)  # answers to each prompt
    # Rewards that score the answers; the total is their weighted sum.
    rewards: Annotated[tuple[RewardSettings, ...], config.Field(min_length=1)]
    # Largest number of answers to each prompt that become rows, the best first, without repeated
    # texts. Set it to `samples` to keep every answer that passes `least` and `finished`.
    keep: int = config.Field(default=1, ge=1)
    # Lowest reward of an answer that becomes a row; None: no limit.
    least: float | None = config.Field(default=None, allow_inf_nan=False)
    # Skip answers that were cut at `maximum_tokens` when choosing rows and the best of a pair.
    finished: bool = True
    # Smallest difference in reward between the best and the worst answer to a prompt for the two to
    # be written as a preference pair. Answers with equal rewards never form a pair.
    margin: float = config.Field(default=0.0, ge=0, allow_inf_nan=False)


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


class AnswerRule(config.Settings):
    """A rule for answers that a regular expression checks without a model."""

    pattern: Pattern  # Regular expression, in which a dot also matches a newline.
    # Whether an answer must contain a match, or must not.
    match: Literal["required", "forbidden"] = "required"
    says: str = config.Field(min_length=1)  # Critique of an answer that breaks the rule.

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
    principles: Annotated[str, config.NOT_IDENTITY]
    # Rounds of critique and revision. Each round continues from the last revision.
    rounds: int = config.Field(default=1, ge=1)
    # Source of critiques and judgements. "model" is the checkpoint itself; "rules" are the `rules`
    # below, for models that are too small to criticise. The model always writes the revisions.
    critic: Literal["model", "rules"] = "model"
    # Rules that check the answers before and after revision. A text that still breaks a rule after
    # the last revision is written to no row of `revisions`.
    rules: tuple[AnswerRule, ...] = ()
    # Jinja template of the critique prompt. Its variables are prompt, answer and principle.
    critique: Template = CRITIQUE
    # Jinja template of the revision prompt. Its variables also include critique.
    revision: Template = REVISION
    # Jinja template of the judgement prompt, which the model continues with A or B. Its variables
    # are prompt, principle, a and b.
    judgement: Template = JUDGEMENT
    # Texts to judge: "revision" compares the first answer with its last revision; "samples"
    # compares two unrevised answers.
    compare: Literal["revision", "samples"] = "revision"

    @model_validator(mode="after")
    def _rules_are_there_if_wanted(self) -> Self:
        if self.critic == "rules" and not self.rules:
            raise ValueError(
                'rules: critic = "rules" needs at least one rule; write it under [[rules]]'
            )
        return self
