"""Unions of training objectives. To add an objective, add its class here."""

from typing import Annotated, get_args

from pydantic import Field

from trainrig.config.field_marks import FitsSeveral, assume_kind
from trainrig.objectives.classification import AnswerSpan, Classification
from trainrig.objectives.denoising.fill_in_the_middle import FillInTheMiddle
from trainrig.objectives.denoising.masked import MaskedLM, ReplacedTokenDetection
from trainrig.objectives.denoising.mixture import MixtureOfObjectives
from trainrig.objectives.denoising.prefix import PrefixLM
from trainrig.objectives.denoising.span_corruption import SpanCorruption
from trainrig.objectives.denoising.ul2 import UL2
from trainrig.objectives.distillation import Distillation
from trainrig.objectives.kto import KTO
from trainrig.objectives.next_token import SFT, CausalLM, MultiTokenPrediction
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.objectives.on_policy_distillation import OnPolicyDistillation
from trainrig.objectives.policy.group_relative import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    RLOO,
    DrGRPO,
    ReinforcePlusPlus,
)
from trainrig.objectives.policy.ppo import PPO
from trainrig.objectives.preference import (
    DPO,
    IPO,
    ORPO,
    APODown,
    APOZero,
    Hinge,
    IPOPerToken,
    RobustDPO,
    SimPO,
)
from trainrig.objectives.reward import ProcessReward, Reward

# Objectives for plain text. All but CausalLM may corrupt rows first: see `Corrupting` in
# objective_interface.py.
OfText = (
    CausalLM
    | FillInTheMiddle
    | MaskedLM
    | MixtureOfObjectives
    | MultiTokenPrediction
    | PrefixLM
    | ReplacedTokenDetection
    | SpanCorruption
    | UL2
)
PretrainingObjective = Annotated[
    OfText, Field(discriminator="kind"), assume_kind("CausalLM"), FitsSeveral()
]

# Objectives for preference pairs: those that need a reference model, and all of them.
Referenced = DPO | RobustDPO | Hinge | IPO | IPOPerToken | APOZero | APODown
Pairwise = Referenced | ORPO | SimPO
Scoring = Reward | ProcessReward  # need models with one output, a score
OfLabels = Classification | AnswerSpan  # need models with a classification or span head
# Objectives for post-training.
Tuning = Annotated[
    SFT | Distillation | Pairwise | KTO | Scoring | OfLabels, Field(discriminator="kind")
]

# Objectives for the model's own answers, with rewards or a teacher.
Policy = GRPO | DrGRPO | DAPO | CISPO | GSPO | RLOO | ReinforcePlusPlus | PPO | OnPolicyDistillation

Objective = Annotated[
    OfText | SFT | Distillation | Pairwise | KTO | Scoring | OfLabels | Policy,
    Field(discriminator="kind"),
]


def find_kind(kind: str) -> type[ObjectiveSettings] | None:
    """Return the class of objectives of `kind`; None if there is none of that name."""
    known: tuple[type[ObjectiveSettings], ...] = get_args(get_args(Objective)[0])
    return next((objective for objective in known if objective.__name__ == kind), None)
