"""Rewards for completions: one module for each kind, and the union of their settings."""

from typing import Annotated

from pydantic import Field

from trainrig.posttrain.rewards.model_rewards import JudgeModel, RewardModel
from trainrig.posttrain.rewards.rule_rewards import (
    ExactAnswer,
    FormulaAnswer,
    NumericAnswer,
    OverlongPenalty,
    PatternShape,
    ProgramAnswer,
)
from trainrig.posttrain.rewards.user_code import PythonFunction

RewardSettings = Annotated[
    ExactAnswer
    | NumericAnswer
    | FormulaAnswer
    | ProgramAnswer
    | PatternShape
    | OverlongPenalty
    | PythonFunction
    | RewardModel
    | JudgeModel,
    Field(discriminator="kind"),
]
"""Settings of one `[[rewards]]` entry in a run file; `kind` selects the class."""

__all__ = [
    "ExactAnswer",
    "FormulaAnswer",
    "JudgeModel",
    "NumericAnswer",
    "OverlongPenalty",
    "PatternShape",
    "ProgramAnswer",
    "PythonFunction",
    "RewardModel",
    "RewardSettings",
]
