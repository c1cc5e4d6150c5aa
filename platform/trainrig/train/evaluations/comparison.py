"""Comparison of a model before the first step of its run and after the last: the contract."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # run files are checked without importing torch
    from torch import nn

    from trainrig.parallel.mesh import WorkerMesh


@dataclass(frozen=True)
class GivenAnswer:
    """Answer of the model to a prompt, its number of tokens, and what ended it (generate.py)."""

    prompt: str
    text: str
    tokens: int
    stopped: str


@dataclass(frozen=True)
class ModelView:
    """View of a model at one step: held-out losses by source, in nats per token, and answers."""

    step: int
    losses: dict[str, float]
    answers: tuple[GivenAnswer, ...]


class ModelComparison(Protocol):
    """Comparison: what to ask a model."""

    def view(
        self, model: "nn.Module", mesh: "WorkerMesh", step: int, agreed_to_stop: Callable[[], bool]
    ) -> ModelView | None:
        """Return the losses and answers of `model` after `step`, equal on all ranks. Collective.

        Returns None if all ranks agreed to stop. `mesh`: the ranks that hold `model`.
        """


def compare_nothing() -> ModelComparison | None:
    """Return None: the factory of comparisons for runs that make none."""
    return None
