"""The run file of the stage `score`, which scores or classifies rows."""

import datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from trainrig.config import (
    NOT_IDENTITY,
    OUTPUT,
    Field,
    ProgressUnit,
    ResourceRequest,
    RunFile,
)
from trainrig.tokens.chat.example_rows import RowFormat
from trainrig.tokens.chat_template import TODAY
from trainrig.tokens.document_set import SPLIT_BYTES


class AnswerScoring(RunFile):
    """Run file of `trainrig score`, which adds a model's scores to the rows of files."""

    verb: ClassVar[str] = "score"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["score"] = "score"
    # Reward model: a run folder of `posttrain` with the objective Reward or ProcessReward (also of
    # an adapter), or a checkpoint in it. rows = "classified" and "questions" need a model of the
    # objective Classification or AnswerSpan.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Format of the files and of the output. "JSONL" is JSON lines, also compressed (.gz, .zst).
    kind: Literal["JSONL", "Parquet"] = "JSONL"
    # Files, folders and patterns with the wildcards * and ?, on disk or s3://. Their order counts.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY, Field(min_length=1)]
    # Kind of the rows. A conversation or labelled answer gets one score, for its last answer; a
    # pair gets one for each answer; a solution ("steps") one for each step. A text ("classified")
    # gets the name of its likeliest class and the probability of each. A question gets its answer,
    # and the sum of the answer's start and end logits.
    rows: Literal["conversations", "pairs", "labelled", "steps", "classified", "questions"] = (
        "conversations"
    )
    # For "classified" and "questions": treatment of a text longer than the model's positions.
    # "refuse" moves the row to quarantine; "cut" truncates as `conversations` does.
    too_long: Literal["refuse", "cut"] = "refuse"
    # Format of the rows. None: detected from the fields of each row.
    format: RowFormat | None = None
    # Columns of fields that have other names, as field = "column"; `a.b.0` is a nested path.
    columns: dict[str, str] = Field(default_factory=dict)
    # Jinja file of the chat template. None: the template that the model was tuned with.
    template: Annotated[str | None, NOT_IDENTITY] = None
    # Values that the template may use besides messages and tools, such as enable_thinking.
    variables: dict[str, bool | int | float | str] = Field(default_factory=dict)
    date: str = TODAY.isoformat()  # Date that templates use as today, as YYYY-MM-DD.
    # Name of the new column. Pairs get `chosen_NAME` and `rejected_NAME`, steps get `step_NAMEs`,
    # texts get `NAME_label` and `NAME_probabilities`, questions get `NAME_answer` and `NAME`.
    name: str = Field(default="score", min_length=1)
    # Rows in a forward pass. Another number may change the last digits of the scores.
    batch: int = Field(default=8, ge=1)
    # CPU threads of a worker. Another number may change the last digits of the scores.
    threads: int = Field(default=1, ge=1)
    output: Annotated[str, OUTPUT]  # Folder to write, on disk or s3://.
    # Number of worker processes on Ray. 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Approximate bytes of input rows in an output file, which is also the work of one task.
    shard_bytes: int = Field(default=SPLIT_BYTES, ge=1_024)

    @field_validator("date")
    @classmethod
    def _is_a_day(cls, given: str) -> str:
        try:
            return datetime.date.fromisoformat(given).isoformat()
        except ValueError:
            raise ValueError(f"'{given}' is not a date; write it as {TODAY.isoformat()}") from None

    @model_validator(mode="after")
    def _settings_are_of_these_rows(self) -> Self:
        texts = self.rows in ("classified", "questions")
        if texts and (self.template or self.variables or self.format):
            raise ValueError(
                f'template, variables and format are for conversations; rows = "{self.rows}" '
                "use no chat template, so leave them out"
            )
        if self.too_long == "cut" and not texts:
            raise ValueError(
                f'too_long = "cut" does not fit rows = "{self.rows}", whose answers stay '
                'whole; use "refuse"'
            )
        return self

    @property
    def new_columns(self) -> tuple[str, ...]:
        """The names of the columns that are added to a row."""
        if self.rows == "pairs":
            return f"chosen_{self.name}", f"rejected_{self.name}"
        if self.rows == "classified":
            return f"{self.name}_label", f"{self.name}_probabilities"
        if self.rows == "questions":
            return f"{self.name}_answer", self.name
        return (f"step_{self.name}s",) if self.rows == "steps" else (self.name,)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return the CPU cores that the workers need."""
        return ResourceRequest.on_cores(self.workers)
