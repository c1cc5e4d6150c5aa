"""The scorecard of an evaluation, as it is written and read back."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from trainrig import manifest
from trainrig.evaluate.scores.task_score import TaskScore

SCORECARD = "scorecard.json"


@dataclass(frozen=True)
class SourceScore:
    """How one source was predicted."""

    loss: float  # nats per token
    perplexity: float  # e to the loss
    bits_per_byte: float  # of text; special tokens count neither as bits nor as bytes
    tokens: int
    bytes: int
    accuracy: float | None = None  # of encoders: share of tokens that come out likeliest


class Scorecard(BaseModel):
    """What `evaluate` says of a checkpoint."""

    model_config = ConfigDict(frozen=True)

    checkpoint: str = ""
    step: int
    scores: dict[str, SourceScore]  # of held-out text, by source
    tasks: dict[str, TaskScore] = {}
    # Operations of the run that the checkpoint is of, by 6ND over what it was trained on; None: of
    # no run that says.
    training_flops: float | None = None


def read_scorecard(folder: str) -> Scorecard:
    """The scorecard in `folder`, checked. Raises DataError if `evaluate` did not make it."""
    manifest.read_input(folder, "evaluate")
    return Scorecard.model_validate_json(manifest.read_file(folder, SCORECARD))
