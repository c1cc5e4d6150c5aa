"""Optimizers and learning-rate schedules.

To add one, add its class to its union here.
"""

from typing import Annotated, get_args

from pydantic import Field

from trainrig.optim.matrix_optimizers import Adafactor, Muon
from trainrig.optim.moment_optimizers import SGD, Adam, AdamW, Lion
from trainrig.optim.optimizer_settings import OptimizerSettings
from trainrig.optim.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    Polynomial,
    WarmupStableDecay,
)

Optimizer = Annotated[AdamW | Adam | SGD | Adafactor | Lion | Muon, Field(discriminator="kind")]
Schedule = Annotated[
    Cosine | Linear | Polynomial | InverseSquareRoot | Constant | WarmupStableDecay,
    Field(discriminator="kind"),
]


def list_optimizers() -> tuple[type[OptimizerSettings], ...]:
    """Return the classes of all optimizers, in the order of the union."""
    return get_args(get_args(Optimizer)[0])


__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "Linear",
    "Lion",
    "Muon",
    "Optimizer",
    "OptimizerSettings",
    "Polynomial",
    "Schedule",
    "WarmupStableDecay",
    "list_optimizers",
]
