"""Rewards for completions: one module for each kind, and the union of their settings."""

from typing import Annotated

from pydantic import Field

from trainrig.posttrain.rewards.exact import ExactAnswer
from trainrig.posttrain.rewards.formula import FormulaAnswer
from trainrig.posttrain.rewards.judge import JudgeModel
from trainrig.posttrain.rewards.numeric import NumericAnswer
from trainrig.posttrain.rewards.overlong import OverlongPenalty
from trainrig.posttrain.rewards.pattern import PatternShape
from trainrig.posttrain.rewards.program import ProgramAnswer
from trainrig.posttrain.rewards.python_function import PythonFunction
from trainrig.posttrain.rewards.reward_model import RewardModel

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
