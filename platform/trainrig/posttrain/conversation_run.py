"""What the stage `conversations` is told."""

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
    Settings,
)
from trainrig.tokens.chat.rows import RowFormat
from trainrig.tokens.chat_template import TODAY
from trainrig.tokens.documents.document_set import SPLIT_BYTES


class RowFiles(Settings):
    """Files whose rows are conversations, or pairs or labels of answers."""

    # "JSONL": JSON lines (.jsonl, .ndjson, .json); "Parquet". JSON lines may be packed (.gz, .zst).
    kind: Literal["JSONL", "Parquet"] = "JSONL"
    # Files, folders and patterns (* and ? are wildcards), on disk or s3://.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY, Field(min_length=1)]
    # Name of the source: `posttrain` mixes by it and logs losses by it.
    source: Annotated[str, Field(min_length=1)]
    # What its rows are; None: told by the fields of each row.
    format: RowFormat | None = None
    # Where fields lie that have other names, as field = "column"; `a.b.0` is inside others.
    columns: dict[str, str] = Field(default_factory=dict)
    # Where its rows go; None: a share `held_out` of them is held out, by the hash of the prompt.
    split: Literal["train", "held_out"] | None = None


class ConversationEncoding(RunFile):
    """`trainrig conversations`: rows to token shards with a mask."""

    verb: ClassVar[str] = "conversations"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["conversations"] = "conversations"
    # What a row becomes: a conversation to imitate, a pair of answers of which one was chosen, an
    # answer with a label, or a solution with a label of each of its steps; for objectives of whole
    # texts, a text or a pair of texts with its class, or a question with the text that answers it.
    rows: Literal["conversations", "pairs", "labelled", "steps", "classified", "questions"] = (
        "conversations"
    )
    # Of "classified", names of the classes in the order of their numbers; (): those that rows have,
    # names by the alphabet. They are written to the manifest, and into every model that learns
    # them.
    labels: tuple[str, ...] = ()
    sources: Annotated[tuple[RowFiles, ...], Field(min_length=1)]  # files to read
    # Tokenizer of the model to be tuned: a folder that `tokenizer` wrote, a run folder, a
    # checkpoint, or a folder of Hugging Face.
    tokenizer: Annotated[str, NOT_IDENTITY]
    # Chat template, a file of Jinja; None: the one that came with the tokenizer, else trainrig's.
    template: Annotated[str | None, NOT_IDENTITY] = None
    # What the template may name besides messages and tools, such as enable_thinking.
    variables: dict[str, bool | int | float | str] = Field(default_factory=dict)
    date: str = TODAY.isoformat()  # the day that templates take for today, as YYYY-MM-DD
    # Turns of the assistant to train on; of pairs and labelled answers, what follows the prompt.
    train_on: Literal["all", "last"] = "all"
    # What becomes of a conversation whose earlier turns the template renders otherwise once others
    # follow, as Qwen 3 drops their thoughts: "split" makes several samples of it, so that each
    # answer is trained on as inference makes it, which repeats tokens; "last" makes the sample of
    # the last answer alone. Other conversations make one sample with all answers.
    rewritten_turns: Literal["split", "last"] = "split"
    # Longest conversation, in tokens; rows of so many are packed for `posttrain`.
    sequence_length: int = Field(ge=2)
    # What is done about a longer one: "refuse" puts it into quarantine; "drop_turns" leaves out its
    # last turns, of pairs and labelled answers the first turns of the prompt after a system turn.
    # An answer is never cut. "cut" is for texts alone: one token at a time goes from the end of the
    # longer text of a pair, as Transformers cuts; of a question, from the end of its context.
    too_long: Literal["refuse", "drop_turns", "cut"] = "refuse"
    # Share of rows to hold out for evaluation, by the hash of the prompt.
    held_out: float = Field(default=0.01, ge=0, lt=1)
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    # Worker processes; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Bytes of the rows of a shard, about; also what one worker does at a time.
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
        if self.labels and self.rows != "classified":
            raise ValueError(f'labels: rows = "{self.rows}" have no classes; leave it out')
        if len(set(self.labels)) != len(self.labels) or len(self.labels) == 1:
            raise ValueError("labels: two or more, each once")
        if self.too_long == ("drop_turns" if texts else "cut"):
            fitting = '"refuse" or "cut"' if texts else '"refuse" or "drop_turns"'
            raise ValueError(f'too_long = "{self.too_long}": rows = "{self.rows}" take {fitting}')
        if texts and (self.template or self.variables or self.train_on != "all"):
            raise ValueError(
                f'template, variables and train_on are of conversations; rows = "{self.rows}" are '
                "read as they are; leave them out"
            )
        if self.rewritten_turns != "split" and self.rows != "conversations":
            raise ValueError(
                f'rewritten_turns is of rows = "conversations"; rows = "{self.rows}" make one '
                "sample an answer; leave it out"
            )
        formats = [source.format for source in self.sources if source.format]
        if texts and formats:
            raise ValueError(
                f'sources: format = "{formats[0]}" is of conversations; leave it out for '
                f'rows = "{self.rows}", and say in `columns` where fields lie'
            )
        return self

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, on cores."""
        return ResourceRequest.on_cores(self.workers)
