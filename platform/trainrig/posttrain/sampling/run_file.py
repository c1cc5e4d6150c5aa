"""What stages that have a model answer prompts are told, and what `sample` is."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, ProgressUnit, ResourceRequest, RunFile
from trainrig.posttrain.rewards import RewardSettings
from trainrig.posttrain.rollouts.run_file import PromptFiles


class PromptedRunFile(RunFile):
    """What all of them share: a model, prompts, and how answers are drawn."""

    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    # Model that answers: a run folder, also of an adapter, or a checkpoint.
    checkpoint: Annotated[str, NOT_IDENTITY]
    prompts: PromptFiles  # what the model is asked
    prompt_tokens: int = Field(default=512, ge=1)  # longest prompt; longer ones are left out
    maximum_tokens: int = Field(default=256, ge=1)  # of an answer, at most
    # What logits are divided by before a token is drawn; 0: always the likeliest.
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    # Draw among the likeliest tokens that together have this probability.
    top_p: float = Field(default=1.0, gt=0, le=1)
    # Texts that end an answer where one first appears; they are no part of it.
    stop: tuple[str, ...] = ()
    seed: int = 0  # random seed of what is drawn
    # Prompts that are answered together. Another number may give other answers.
    batch: int = Field(default=8, ge=1)
    # Threads of a worker on a CPU. Another number may give other answers.
    threads: int = Field(default=1, ge=1)
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    # Worker processes, on Ray; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Prompts of an output file; also what one worker does at a time.
    shard_prompts: int = Field(default=256, ge=1)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, on cores."""
        return ResourceRequest.on_cores(self.workers)


class AnswerSampling(PromptedRunFile):
    """`trainrig sample`: several answers to each prompt, and the best as rows to train on."""

    verb: ClassVar[str] = "sample"

    stage: Literal["sample"] = "sample"
    samples: int = Field(default=4, ge=1)  # answers to each prompt
    # What answers are worth: a weighted sum of all.
    rewards: Annotated[tuple[RewardSettings, ...], Field(min_length=1)]
    # Answers to each prompt that become rows, the best first; no text twice. All that are good
    # enough: as many as `samples`.
    keep: int = Field(default=1, ge=1)
    # Reward that an answer needs to become a row; None: none, the best always does.
    least: float | None = Field(default=None, allow_inf_nan=False)
    # Whether only answers that the model ended itself become rows, none that the limit cut.
    finished: bool = True
    # Reward by which the best answer to a prompt has to be ahead of the worst for them to be a
    # pair; of equal ones none is.
    margin: float = Field(default=0.0, ge=0, allow_inf_nan=False)
