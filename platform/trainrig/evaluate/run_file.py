"""What an evaluation is told."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import NOT_IDENTITY, OUTPUT, RunFile, Settings
from trainrig.config.resource_request import ResourceRequest


class TaskChoice(Settings):
    """A task of an evaluation. What is left out is as its task file says."""

    task: str  # name of a task that trainrig ships, or a task file: a path that ends in .toml
    # File of the task's rows, in place of the one that its task file names.
    rows: Annotated[str | None, NOT_IDENTITY] = None
    few_shot: int | None = Field(default=None, ge=0)  # solved rows before each prompt
    # Rows to ask, the first ones; None: all.
    limit: int | None = Field(default=None, ge=1)
    # Whether prompts are a user's words, in the format that the checkpoint's tokenizer has for
    # conversations.
    chat: bool = False


class Evaluation(RunFile):
    """`trainrig evaluate`: a scorecard for one checkpoint."""

    verb: ClassVar[str] = "evaluate"
    resumes: ClassVar[bool] = True
    output_format: ClassVar[int] = 2

    stage: Literal["evaluate"] = "evaluate"
    checkpoint: Annotated[str, NOT_IDENTITY]  # run folder or checkpoint to evaluate
    # Folder that `tokenize` wrote, whose held-out split is predicted; None: none is.
    tokens: Annotated[str | None, NOT_IDENTITY] = None
    # Folder that `conversations` wrote, of whose held-out rows the answers are scored; None: none.
    conversations: Annotated[str | None, NOT_IDENTITY] = None
    tasks: tuple[TaskChoice, ...] = ()  # benchmarks to ask
    # Task files of vectors: linear probes and retrieval, of encoders too.
    vector_tasks: Annotated[tuple[str, ...], NOT_IDENTITY] = ()
    # Folder of the tasks' row files; None: task files name them by whole paths.
    task_rows: Annotated[str | None, NOT_IDENTITY] = None
    # Folder that `curate` wrote with [decontamination], of what the checkpoint was trained on: the
    # scorecard then says how much of each task it held; None: it says nothing of that.
    corpus: Annotated[str | None, NOT_IDENTITY] = None
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    # Worker processes, on Ray; 0: this process alone.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=0, ge=0)
    # Most tokens that a prediction of held-out text can look back on; None: needed for none.
    sequence_length: int | None = Field(default=None, ge=1)
    micro_batch: int = Field(default=8, ge=1)  # sequences of held-out text in one forward pass
    # Tokens of each source to read, the first ones; None: all.
    tokens_per_source: int | None = Field(default=None, ge=1)
    # Tokens of one pass over a task's prompts, with padding: 4,096 fit the caches of a CPU, a GPU
    # wants more. Another number gives other last digits.
    batch_tokens: int = Field(default=4096, ge=1)
    # Rows of a task that one worker asks at a time, and that a stopped evaluation asks again.
    shard_rows: int = Field(default=256, ge=1)
    # Whether prompts begin with the end-of-text token, as texts do in training.
    document_start: bool = True
    # Consent to run the programs that the model writes for tasks of programs, confined.
    run_code: Annotated[bool, NOT_IDENTITY] = False
    # Where to compute; "auto": on the GPU if there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"  # number format of the weights
    threads: int = Field(default=1, ge=1)  # CPU threads; another number gives other last digits

    @model_validator(mode="after")
    def _something_to_score(self) -> Self:
        if not (self.tokens or self.conversations or self.tasks or self.vector_tasks):
            raise ValueError(
                "nothing to score; give `tokens`, `conversations`, `[[tasks]]` or `vector_tasks`"
            )
        if (self.tokens or self.conversations) and self.sequence_length is None:
            raise ValueError("`sequence_length` is missing; `tokens` and `conversations` need it")
        names = [choice.task for choice in self.tasks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tasks: '{name}' is there {names.count(name)} times")
        return self

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, on cores."""
        return ResourceRequest.on_cores(self.workers)
