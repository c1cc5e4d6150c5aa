"""Run files of stages in which a model answers prompts, and the run file of `sample`."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, ProgressUnit, ResourceRequest, RunFile
from trainrig.posttrain.rewards import RewardSettings
from trainrig.posttrain.rollouts.run_file import PromptFiles


class PromptedRunFile(RunFile):
    """Settings shared by these stages: a model, prompts, and how answers are sampled."""

    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    # Model that answers: a run folder, which may hold an adapter, or a checkpoint.
    checkpoint: Annotated[str, NOT_IDENTITY]
    prompts: PromptFiles  # files with the prompts
    prompt_tokens: int = Field(
        default=512, ge=1
    )  # longest prompt, in tokens; longer ones are skipped
    maximum_tokens: int = Field(default=256, ge=1)  # longest answer, in tokens
    # Sampling temperature, which divides the logits; 0: always take the likeliest token.
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    # Sample from the fewest likeliest tokens whose probabilities add up to this; 1: from all.
    top_p: float = Field(default=1.0, gt=0, le=1)
    # Texts that end an answer at their first occurrence; they are not part of the answer.
    stop: tuple[str, ...] = ()
    seed: int = 0  # random seed of the sampled answers
    # Prompts that are answered in one batch. Another number may change the answers.
    batch: int = Field(default=8, ge=1)
    # CPU threads of a worker without a GPU. Another number may change the answers.
    threads: int = Field(default=1, ge=1)
    output: Annotated[str, OUTPUT]  # output folder, on disk or s3://
    # Worker processes on Ray; 0: run in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Prompts in one output file, which is also one unit of work.
    shard_prompts: int = Field(default=256, ge=1)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return one CPU core for each worker, whether or not there are GPUs."""
        return ResourceRequest.on_cores(self.workers)


class AnswerSampling(PromptedRunFile):
    """Run file of `trainrig sample`: several answers to each prompt, the best as training rows."""

    verb: ClassVar[str] = "sample"

    stage: Literal["sample"] = "sample"
    samples: int = Field(default=4, ge=1)  # answers to each prompt
    # Rewards that score the answers; the total is their weighted sum.
    rewards: Annotated[tuple[RewardSettings, ...], Field(min_length=1)]
    # Largest number of answers to each prompt that become rows, the best first, without repeated
    # texts. Set it to `samples` to keep every answer that passes `least` and `finished`.
    keep: int = Field(default=1, ge=1)
    # Lowest reward of an answer that becomes a row; None: no limit.
    least: float | None = Field(default=None, allow_inf_nan=False)
    # Skip answers that were cut at `maximum_tokens` when choosing rows and the best of a pair.
    finished: bool = True
    # Smallest difference in reward between the best and the worst answer to a prompt for the two to
    # be written as a preference pair. Answers with equal rewards never form a pair.
    margin: float = Field(default=0.0, ge=0, allow_inf_nan=False)
