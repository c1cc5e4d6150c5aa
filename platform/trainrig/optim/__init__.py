"""Optimizers and learning-rate schedules.

To add one, add its class to its union here.
"""

from typing import Annotated

from pydantic import Field

from trainrig.optim.matrix_optimizers import Adafactor, Muon
from trainrig.optim.moment_optimizers import SGD, Adam, AdamW, Lion
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
    "Polynomial",
    "Schedule",
    "WarmupStableDecay",
]
