"""What completions are worth: verifiers and shapes, one file a kind, one union."""

from typing import Annotated

from pydantic import Field

from trainrig.posttrain.rewards.exact import ExactAnswer
from trainrig.posttrain.rewards.numeric import NumericAnswer
from trainrig.posttrain.rewards.overlong import OverlongPenalty
from trainrig.posttrain.rewards.pattern import PatternShape
from trainrig.posttrain.rewards.program import ProgramAnswer

RewardSettings = Annotated[
    ExactAnswer | NumericAnswer | ProgramAnswer | PatternShape | OverlongPenalty,
    Field(discriminator="kind"),
]
"""One part of a reward in a run file, told apart by `kind`."""

__all__ = [
    "ExactAnswer",
    "NumericAnswer",
    "OverlongPenalty",
    "PatternShape",
    "ProgramAnswer",
    "RewardSettings",
]
