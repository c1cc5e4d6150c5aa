"""What is asked of a model before the first step of its run and after the last."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a run file is checked without torch
    from torch import nn

    from trainrig.parallel.mesh import WorkerMesh


@dataclass(frozen=True)
class GivenAnswer:
    """What the model said to a prompt, in how many tokens, and what ended it (see generate.py)."""

    prompt: str
    text: str
    tokens: int
    stopped: str


@dataclass(frozen=True)
class ModelView:
    """A model at one step: the loss on held-out text by source, nats per token, and answers."""

    step: int
    losses: dict[str, float]
    answers: tuple[GivenAnswer, ...]


class ModelComparison(Protocol):
    """What is asked of a model."""

    def view(
        self, model: "nn.Module", mesh: "WorkerMesh", step: int, agreed_to_stop: Callable[[], bool]
    ) -> ModelView | None:
        """What `model`, held by `mesh`, is like after `step`; all ranks call it and get the same.
        None: all agreed to stop instead."""


def compare_nothing() -> ModelComparison | None:
    """No comparison: for runs whose reports show none."""
    return None
