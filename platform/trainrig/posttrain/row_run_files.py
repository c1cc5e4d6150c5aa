"""Run files of the stages that read chat rows or their shards: `conversations`, `score`, `teacher`.

`conversations` encodes chat and preference data. `score` scores or classifies rows. `teacher`
stores a teacher's token probabilities.
"""

import datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, model_validator

from trainrig import config
from trainrig.tokens.chat.example_rows import RowFormat
from trainrig.tokens.chat_template import TODAY
from trainrig.tokens.document_set import SPLIT_BYTES


def _check_day(given: str) -> str:
    try:
        return datetime.date.fromisoformat(given).isoformat()
    except ValueError:
        raise ValueError(f"'{given}' is not a date; write it as {TODAY.isoformat()}") from None


Day = Annotated[str, AfterValidator(_check_day)]


class RowFiles(config.Settings):
    """Data files whose rows are conversations, preference pairs, labelled answers or texts."""

    # Format of the files. "JSONL" is JSON lines (.jsonl, .ndjson, .json), also compressed (.gz,
    # .zst).
    kind: Literal["JSONL", "Parquet"] = "JSONL"
    # Files, folders and patterns with the wildcards * and ?, on disk or in a bucket.
    paths: Annotated[tuple[str, ...], config.NOT_IDENTITY, config.Field(min_length=1)]
    # Name of the source. `posttrain` mixes by source and logs a loss for each.
    source: Annotated[str, config.Field(min_length=1)]
    # Format of the rows. None: detected from the fields of each row.
    format: RowFormat | None = None
    # Columns of fields that have other names, as field = "column"; `a.b.0` is a nested path.
    columns: dict[str, str] = config.Field(default_factory=dict)
    # Split that the rows go to. None: a share `held_out`, chosen by a hash of the prompt, is held
    # out.
    split: Literal["train", "held_out"] | None = None


class ConversationEncoding(config.RunFile):
    """Run file of `trainrig conversations`, which encodes rows as token shards with loss masks."""

    verb: ClassVar[str] = "conversations"
    resumes: ClassVar[bool] = True
    progress: ClassVar[config.ProgressUnit] = "splits"

    stage: Literal["conversations"] = "conversations"
    # Kind of training row to make. "conversations": text to imitate. "pairs": a chosen and a
    # rejected answer. "labelled": an answer with a label. "steps": a solution with a label for each
    # step. "classified": a text or a pair of texts with a class. "questions": a question with the
    # text that answers it.
    rows: Literal["conversations", "pairs", "labelled", "steps", "classified", "questions"] = (
        "conversations"
    )
    # Class names for rows = "classified", in the order of their numbers. Empty: collected from
    # the rows and sorted alphabetically. The manifest contains them, and so does every model
    # trained on these rows.
    labels: tuple[str, ...] = ()
    sources: Annotated[tuple[RowFiles, ...], config.Field(min_length=1)]  # Data files to read.
    # Tokenizer of the model to be tuned: a folder that `tokenizer` wrote, a run folder, a
    # checkpoint, or a Hugging Face folder.
    tokenizer: Annotated[str, config.NOT_IDENTITY]
    # Jinja file of the chat template. None: the tokenizer's own template, or else trainrig's.
    template: Annotated[str | None, config.NOT_IDENTITY] = None
    # Values that the template may use besides messages and tools, such as enable_thinking.
    variables: dict[str, bool | int | float | str] = config.Field(default_factory=dict)
    date: Day = TODAY.isoformat()  # Date that templates use as today, as YYYY-MM-DD.
    # Assistant turns to train on. Pairs and labelled answers train on what follows the prompt.
    train_on: Literal["all", "last"] = "all"
    # How to encode a conversation whose earlier turns the template renders differently once more
    # turns follow; Qwen 3, for example, removes their thoughts. "split" makes one sample for each
    # answer, rendered as at inference, which repeats tokens; "last" keeps only the sample of the
    # last answer. Other conversations make one sample with all answers.
    rewritten_turns: Literal["split", "last"] = "split"
    # Longest conversation in tokens. Rows of this length are packed for `posttrain`.
    sequence_length: int = config.Field(ge=2)
    # Treatment of a row longer than `sequence_length`. "refuse" moves the row to quarantine.
    # "drop_turns" removes the last turns. Pairs and labelled answers lose the prompt's first turns
    # after a system turn instead. An answer is never cut. "cut" applies to texts only: it
    # removes tokens from the end of the longer text of a pair, as Transformers does, and from the
    # end of a question's context.
    too_long: Literal["refuse", "drop_turns", "cut"] = "refuse"
    # Share of rows to hold out for evaluation, chosen by a hash of the prompt.
    held_out: float = config.Field(default=0.01, ge=0, lt=1)
    output: Annotated[str, config.OUTPUT]  # Folder to write, on disk or in a bucket.
    # Number of worker processes. 0: work in this process, without Ray.
    workers: Annotated[int, config.NOT_IDENTITY] = config.Field(default=2, ge=0)
    # Approximate bytes of input rows in a shard, which is also the work of one task.
    shard_bytes: int = config.Field(default=SPLIT_BYTES, ge=1_024)

    @model_validator(mode="after")
    def _settings_are_of_these_rows(self) -> Self:
        texts = self.rows in ("classified", "questions")
        if self.labels and self.rows != "classified":
            raise ValueError(f'labels: rows = "{self.rows}" have no classes; leave labels out')
        if len(set(self.labels)) != len(self.labels) or len(self.labels) == 1:
            raise ValueError("labels: name two or more different labels, or none")
        if self.too_long == ("drop_turns" if texts else "cut"):
            fitting = '"refuse" or "cut"' if texts else '"refuse" or "drop_turns"'
            raise ValueError(
                f'too_long = "{self.too_long}" does not fit rows = "{self.rows}"; use {fitting}'
            )
        if texts and (self.template or self.variables or self.train_on != "all"):
            raise ValueError(
                "template, variables and train_on are for conversations; rows = "
                f'"{self.rows}" use no chat template, so leave them out'
            )
        if self.rewritten_turns != "split" and self.rows != "conversations":
            raise ValueError(
                f'rewritten_turns is for rows = "conversations"; with rows = "{self.rows}" '
                "each answer is one sample, so leave it out"
            )
        formats = [source.format for source in self.sources if source.format]
        if texts and formats:
            raise ValueError(
                f'sources: format = "{formats[0]}" is for conversations; leave it out for '
                f'rows = "{self.rows}", and set `columns` to where the fields are'
            )
        return self

    def request_resources(self, there_are_gpus: bool) -> config.ResourceRequest:
        """Return the CPU cores that the workers need."""
        return config.ResourceRequest.on_cores(self.workers)


class AnswerScoring(config.RunFile):
    """Run file of `trainrig score`, which adds a model's scores to the rows of files."""

    verb: ClassVar[str] = "score"
    resumes: ClassVar[bool] = True
    progress: ClassVar[config.ProgressUnit] = "splits"

    stage: Literal["score"] = "score"
    # Reward model: a run folder of `posttrain` with the objective Reward or ProcessReward (also of
    # an adapter), or a checkpoint in it. rows = "classified" and "questions" need a model of the
    # objective Classification or AnswerSpan.
    checkpoint: Annotated[str, config.NOT_IDENTITY]
    # Format of the files and of the output. "JSONL" is JSON lines, also compressed (.gz, .zst).
    kind: Literal["JSONL", "Parquet"] = "JSONL"
    # Files, folders and patterns with wildcards (* and ?), on disk or in a bucket, in their order.
    paths: Annotated[tuple[str, ...], config.NOT_IDENTITY, config.Field(min_length=1)]
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
    columns: dict[str, str] = config.Field(default_factory=dict)
    # Jinja file of the chat template. None: the template that the model was tuned with.
    template: Annotated[str | None, config.NOT_IDENTITY] = None
    # Values that the template may use besides messages and tools, such as enable_thinking.
    variables: dict[str, bool | int | float | str] = config.Field(default_factory=dict)
    date: Day = TODAY.isoformat()  # Date that templates use as today, as YYYY-MM-DD.
    # Name of the new column. Pairs get `chosen_NAME` and `rejected_NAME`, steps get `step_NAMEs`,
    # texts get `NAME_label` and `NAME_probabilities`, questions get `NAME_answer` and `NAME`.
    name: str = config.Field(default="score", min_length=1)
    # Rows in a forward pass. Another number may change the last digits of the scores.
    batch: int = config.Field(default=8, ge=1)
    # CPU threads of a worker. Another number may change the last digits of the scores.
    threads: int = config.Field(default=1, ge=1)
    output: Annotated[str, config.OUTPUT]  # Folder to write, on disk or in a bucket.
    # Worker processes on Ray, each with a GPU if the cluster has some; 0: run in this process.
    workers: Annotated[int, config.NOT_IDENTITY] = config.Field(default=2, ge=0)
    # Approximate bytes of input rows in an output file, which is also the work of one task.
    shard_bytes: int = config.Field(default=SPLIT_BYTES, ge=1_024)

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

    def request_resources(self, there_are_gpus: bool) -> config.ResourceRequest:
        """Return one device for each worker: a GPU if there are any, otherwise a core."""
        return config.ResourceRequest.for_models(self.workers, there_are_gpus)


class TeacherScoring(config.RunFile):
    """Run file of `trainrig teacher`, which stores token probabilities of conversations."""

    verb: ClassVar[str] = "teacher"
    resumes: ClassVar[bool] = True
    progress: ClassVar[config.ProgressUnit] = "splits"

    stage: Literal["teacher"] = "teacher"
    # Teacher model with the conversations' tokenizer: a run folder (also of an adapter) or a
    # checkpoint.
    checkpoint: Annotated[str, config.NOT_IDENTITY]
    # Folder that `conversations` wrote with rows = "conversations".
    conversations: Annotated[str, config.NOT_IDENTITY]
    # Number of likeliest vocabulary entries to store for each target. Of all other entries, only
    # the total probability is stored. An entry takes 6 bytes (8 if the vocabulary exceeds 65,536).
    entries: int = config.Field(default=32, ge=1)
    # Temperature that divides the teacher's logits before the softmax (Hinton et al. 2015,
    # arXiv:1503.02531, section 2). The student's run must have the same temperature.
    temperature: float = config.Field(default=1.0, gt=0, allow_inf_nan=False)
    # Conversations in a forward pass. Another number may change the last digits of the results.
    batch: int = config.Field(default=8, ge=1)
    # CPU threads of a worker. Another number may change the last digits of the results.
    threads: int = config.Field(default=1, ge=1)
    output: Annotated[str, config.OUTPUT]  # Folder to write, on disk or in a bucket.
    # Worker processes on Ray, each with a GPU if the cluster has some; 0: run in this process.
    workers: Annotated[int, config.NOT_IDENTITY] = config.Field(default=2, ge=0)
    # Approximate tokens of the conversations in a file, which is also the work of one task.
    part_tokens: int = config.Field(default=2**18, ge=1)

    def request_resources(self, there_are_gpus: bool) -> config.ResourceRequest:
        """Return one device for each worker: a GPU if there are any, otherwise a core."""
        return config.ResourceRequest.for_models(self.workers, there_are_gpus)
