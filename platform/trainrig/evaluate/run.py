"""What an evaluation is told."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import PLACE, RunFile


class Evaluation(RunFile):
    """`trainrig evaluate`: a scorecard for one checkpoint."""

    verb: ClassVar[str] = "evaluate"

    stage: Literal["evaluate"] = "evaluate"
    checkpoint: Annotated[str, PLACE]  # run folder, or one step in it
    tokens: Annotated[str, PLACE]  # folder that `tokenize` wrote; its held-out split is read
    conversations: Annotated[str | None, PLACE] = None  # JSONL; the assistant's words are scored
    output: Annotated[str, PLACE]
    sequence_length: int = Field(ge=1)  # tokens that a prediction can look back on, at most
    micro_batch: int = Field(default=8, ge=1)  # sequences at a time
    tokens_per_source: int | None = Field(default=None, ge=1)  # the first that many; None: all
    threads: int = Field(default=1, ge=1)  # another number gives other last digits
