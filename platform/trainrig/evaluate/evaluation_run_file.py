"""The run file of `trainrig evaluate`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import NOT_IDENTITY, OUTPUT, RunFile, Settings
from trainrig.config.resource_request import ResourceRequest


class TaskChoice(Settings):
    """A task of an evaluation; its task file gives the defaults."""

    task: str  # name of a task shipped with trainrig, or the path of a task file, ending in .toml
    # File of the task's rows; None: the file that the task file names.
    rows: Annotated[str | None, NOT_IDENTITY] = None
    # Number of few-shot examples before each prompt; None: as the task file says.
    few_shot: int | None = Field(default=None, ge=0)
    # Number of rows to evaluate, from the first; None: all.
    limit: int | None = Field(default=None, ge=1)
    # Render prompts as user turns, with the chat template of the checkpoint's tokenizer.
    chat: bool = False


class Evaluation(RunFile):
    """The run file of `trainrig evaluate`, which writes a scorecard for one checkpoint."""

    verb: ClassVar[str] = "evaluate"
    resumes: ClassVar[bool] = True
    output_format: ClassVar[int] = 2

    stage: Literal["evaluate"] = "evaluate"
    checkpoint: Annotated[str, NOT_IDENTITY]  # run folder or checkpoint to evaluate
    # Folder that `tokenize` wrote, to score the model on its held-out split; None: no such score.
    tokens: Annotated[str | None, NOT_IDENTITY] = None
    # Folder that `conversations` wrote, to score the answers of its held-out conversations; None:
    # no such score.
    conversations: Annotated[str | None, NOT_IDENTITY] = None
    tasks: tuple[TaskChoice, ...] = ()  # benchmarks to evaluate
    # Task files for text embeddings: linear probes and retrieval, which encoders can do, too.
    vector_tasks: Annotated[tuple[str, ...], NOT_IDENTITY] = ()
    # Folder of the tasks' row files; None: task files have absolute paths.
    task_rows: Annotated[str | None, NOT_IDENTITY] = None
    # Training corpus of the checkpoint: a folder that `curate` wrote with [decontamination]. The
    # scorecard then reports how many rows of each task the corpus contains; None: no such report.
    corpus: Annotated[str | None, NOT_IDENTITY] = None
    output: Annotated[str, OUTPUT]  # folder to write, on disk or in a bucket
    # Worker processes on Ray, each with a GPU if the cluster has some; 0: run in this process.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=0, ge=0)
    # Context length for held-out text, in tokens. Required with `tokens` or `conversations`.
    sequence_length: int | None = Field(default=None, ge=1)
    micro_batch: int = Field(default=8, ge=1)  # sequences of held-out text in one forward pass
    # Number of tokens to score of each source, from the first; None: all.
    tokens_per_source: int | None = Field(default=None, ge=1)
    # Most tokens of one forward pass over a task's prompts, padding included. 4,096 suit a CPU's
    # caches; use more on a GPU. Changing it may change the last digits of scores.
    batch_tokens: int = Field(default=4096, ge=1)
    # Rows of a task in one shard: a unit of work, which is computed again after an interruption.
    shard_rows: int = Field(default=256, ge=1)
    # Begin prompts with the end-of-text token, as texts begin in training.
    document_start: bool = True
    # Allow tasks with programs to run code that the model generates, in a sandbox.
    run_code: Annotated[bool, NOT_IDENTITY] = False
    # Device to compute on; "auto": the GPU if there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"  # number format of the weights
    # CPU threads of a worker. Changing it may change the last digits of scores.
    threads: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _something_to_score(self) -> Self:
        if not (self.tokens or self.conversations or self.tasks or self.vector_tasks):
            raise ValueError(
                "nothing to evaluate; set `tokens`, `conversations`, `[[tasks]]` or `vector_tasks`"
            )
        if (self.tokens or self.conversations) and self.sequence_length is None:
            raise ValueError("`sequence_length` is missing; `tokens` and `conversations` need it")
        names = [choice.task for choice in self.tasks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"tasks: '{name}' is listed {names.count(name)} times; list it one time"
                )
        return self

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return the resources of the workers: a GPU each if there are any and may be used."""
        return ResourceRequest.for_models(self.workers, there_are_gpus and self.device != "cpu")
