"""What scoring is told."""

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
from trainrig.tokens.chat.rows import RowFormat
from trainrig.tokens.chat_template import TODAY
from trainrig.tokens.documents.document_set import SPLIT_BYTES


class AnswerScoring(RunFile):
    """`trainrig score`: rows with what a reward model gives for their answers."""

    verb: ClassVar[str] = "score"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["score"] = "score"
    # Reward model: a run folder of `posttrain` with the objective Reward or ProcessReward, also of
    # an adapter, or a checkpoint in it. For "classified" and "questions", one of Classification or
    # AnswerSpan.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Form of the files, and of what is written. "JSONL": JSON lines, may be packed (.gz, .zst).
    kind: Literal["JSONL", "Parquet"] = "JSONL"
    # Files, folders and patterns (* and ? are wildcards), on disk or s3://; their order counts.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY, Field(min_length=1)]
    # What a row is: a conversation or labelled answer gets one score, that of its last answer; a
    # pair one for each answer; a solution one for each step. A text ("classified") gets the name of
    # its likeliest class, and what is likely of each; a question its answer, and the sum of the two
    # logits by which that was chosen.
    rows: Literal["conversations", "pairs", "labelled", "steps", "classified", "questions"] = (
        "conversations"
    )
    # Of "classified" and "questions", what is done about more tokens than the model can read: see
    # `conversations`.
    too_long: Literal["refuse", "cut"] = "refuse"
    # Format of each row; None: told by its fields.
    format: RowFormat | None = None
    # Where fields lie that have other names, as field = "column"; `a.b.0` is inside others.
    columns: dict[str, str] = Field(default_factory=dict)
    # Chat template, a file of Jinja; None: the one that the model was tuned with.
    template: Annotated[str | None, NOT_IDENTITY] = None
    # What the template may name besides messages and tools, such as enable_thinking.
    variables: dict[str, bool | int | float | str] = Field(default_factory=dict)
    date: str = TODAY.isoformat()  # the day that templates take for today, as YYYY-MM-DD
    # Name of the new column; of pairs `chosen_NAME` and `rejected_NAME`, of steps `step_NAMEs`; of
    # texts `NAME_label` and `NAME_probabilities`, of questions `NAME_answer` and `NAME`.
    name: str = Field(default="score", min_length=1)
    # Rows of a forward pass. Another number may give other last digits.
    batch: int = Field(default=8, ge=1)
    # Threads of a worker on a CPU. Another number may give other last digits.
    threads: int = Field(default=1, ge=1)
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    # Worker processes, on Ray; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Bytes of the rows of an output file, about; also what one worker does at a time.
    shard_bytes: int = Field(default=SPLIT_BYTES, ge=1_024)

    @field_validator("date")
    @classmethod
    def _is_a_day(cls, given: str) -> str:
        try:
            return datetime.date.fromisoformat(given).isoformat()
        except ValueError:
            raise ValueError(f"'{given}' is no day; write it as {TODAY.isoformat()}") from None

    @model_validator(mode="after")
    def _settings_are_of_these_rows(self) -> Self:
        texts = self.rows in ("classified", "questions")
        if texts and (self.template or self.variables or self.format):
            raise ValueError(
                f'template, variables and format are of conversations; rows = "{self.rows}" are '
                "read as they are; leave them out"
            )
        if self.too_long == "cut" and not texts:
            raise ValueError(f'too_long = "cut": an answer is never cut, and rows = "{self.rows}"')
        return self

    @property
    def new_columns(self) -> tuple[str, ...]:
        """Names of what is added to a row."""
        if self.rows == "pairs":
            return f"chosen_{self.name}", f"rejected_{self.name}"
        if self.rows == "classified":
            return f"{self.name}_label", f"{self.name}_probabilities"
        if self.rows == "questions":
            return f"{self.name}_answer", self.name
        return (f"step_{self.name}s",) if self.rows == "steps" else (self.name,)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, on cores."""
        return ResourceRequest.on_cores(self.workers)
