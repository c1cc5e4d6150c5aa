"""Floor 2: what training makes small. Add a new objective to the union here."""

from typing import Annotated

from pydantic import Field

from trainrig.objectives.causal import CausalLM
from trainrig.objectives.sft import SFT

Objective = Annotated[CausalLM | SFT, Field(discriminator="kind")]

__all__ = ["SFT", "CausalLM", "Objective"]
