"""Optimizers and learning-rate schedules.

To add one, add its class to its union here.
"""

from typing import Annotated

from pydantic import Field

from trainrig.optim.adafactor import Adafactor
from trainrig.optim.adam import Adam
from trainrig.optim.adamw import AdamW
from trainrig.optim.lion import Lion
from trainrig.optim.muon import Muon
from trainrig.optim.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    Polynomial,
    WarmupStableDecay,
)
from trainrig.optim.sgd import SGD

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
