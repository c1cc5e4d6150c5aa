"""The scorecard of an evaluation: its model, and reading it from disk."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from trainrig import manifest
from trainrig.evaluate.scores.task_score import TaskScore

SCORECARD = "scorecard.json"


@dataclass(frozen=True)
class SourceScore:
    """The scores of held-out text from one source."""

    loss: float  # nats per token
    perplexity: float  # e to the loss
    bits_per_byte: float  # bits per byte of text, without special tokens
    tokens: int
    bytes: int
    accuracy: float | None = None  # encoders: share of masked tokens predicted as the likeliest


class Scorecard(BaseModel):
    """The scores of one checkpoint, as `evaluate` writes them."""

    model_config = ConfigDict(frozen=True)

    checkpoint: str = ""
    step: int
    scores: dict[str, SourceScore]  # scores of held-out text by source
    tasks: dict[str, TaskScore] = {}
    # Training operations of the checkpoint's run, by the 6ND estimate; None: the checkpoint does
    # not record its training tokens.
    training_flops: float | None = None


def read_scorecard(folder: str) -> Scorecard:
    """Read the scorecard in `folder`. Raises DataError if `evaluate` did not write the folder."""
    manifest.read_input(folder, "evaluate")
    return Scorecard.model_validate_json(manifest.read_file(folder, SCORECARD))
