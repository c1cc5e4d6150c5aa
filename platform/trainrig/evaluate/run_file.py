"""What an evaluation is told."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import NOT_IDENTITY, RunFile


class Evaluation(RunFile):
    """`trainrig evaluate`: a scorecard for one checkpoint."""

    verb: ClassVar[str] = "evaluate"

    stage: Literal["evaluate"] = "evaluate"
    checkpoint: Annotated[str, NOT_IDENTITY]  # run folder or checkpoint to evaluate
    tokens: Annotated[str, NOT_IDENTITY]  # folder that `tokenize` wrote; its held-out split is read
    # JSONL file of conversations whose assistant's words are scored; None: none.
    conversations: Annotated[str | None, NOT_IDENTITY] = None
    output: Annotated[str, NOT_IDENTITY]  # folder to write, on disk or s3://
    sequence_length: int = Field(ge=1)  # most tokens that a prediction can look back on
    micro_batch: int = Field(default=8, ge=1)  # sequences of one forward pass
    # Tokens of each source to read, the first ones; None: all.
    tokens_per_source: int | None = Field(default=None, ge=1)
    threads: int = Field(default=1, ge=1)  # CPU threads; another number gives other last digits
