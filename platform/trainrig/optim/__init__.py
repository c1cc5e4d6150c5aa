"""Floor 2: how gradients move weights. Add a new optimizer or schedule to its union here."""

from typing import Annotated

from pydantic import Field

from trainrig.optim.adamw import AdamW
from trainrig.optim.schedules import Constant, Cosine, WarmupStableDecay

Optimizer = AdamW  # a second one makes this a union, told apart by `kind` as Schedule is
Schedule = Annotated[Cosine | Constant | WarmupStableDecay, Field(discriminator="kind")]

__all__ = ["AdamW", "Constant", "Cosine", "Optimizer", "Schedule", "WarmupStableDecay"]
