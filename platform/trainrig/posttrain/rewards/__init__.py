"""What completions are worth: verifiers, shapes, models, functions; one file a kind, one union."""

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
"""One part of a reward in a run file, told apart by `kind`."""

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
