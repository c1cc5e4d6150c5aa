"""Training objectives: the losses that training minimizes.

To add an objective, add its class to the unions here.
"""

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

__all__ = [
    "CISPO",
    "DAPO",
    "DPO",
    "GRPO",
    "GSPO",
    "IPO",
    "KTO",
    "OF_ANSWERS",
    "OF_PLACES",
    "ORPO",
    "PPO",
    "RLOO",
    "SFT",
    "UL2",
    "APODown",
    "APOZero",
    "AnswerSpan",
    "CausalLM",
    "Classification",
    "Distillation",
    "DrGRPO",
    "FillInTheMiddle",
    "Hinge",
    "IPOPerToken",
    "MaskedLM",
    "MixtureOfObjectives",
    "MultiTokenPrediction",
    "Objective",
    "OfLabels",
    "OfText",
    "OnPolicyDistillation",
    "Pairwise",
    "Policy",
    "PrefixLM",
    "PretrainingObjective",
    "ProcessReward",
    "Referenced",
    "ReinforcePlusPlus",
    "ReplacedTokenDetection",
    "Reward",
    "RobustDPO",
    "Scoring",
    "SimPO",
    "SpanCorruption",
    "Tuning",
]


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

# Kinds of objectives whose loss of a token depends only on the logits at its position, with a
# decoder that reads left to right. Their rows, layers or vocabulary can be divided over workers.
OF_PLACES = ("CausalLM", "FillInTheMiddle", "SFT")

# Objectives for preference pairs: those that need a reference model, and all of them.
Referenced = DPO | RobustDPO | Hinge | IPO | IPOPerToken | APOZero | APODown
Pairwise = Referenced | ORPO | SimPO
Scoring = Reward | ProcessReward  # need models with one output, a score
OfLabels = Classification | AnswerSpan  # need models with a classification or span head
# Kinds of objectives that use each answer, or each pair of answers, separately, and only the
# answer's log-probability or score.
OF_ANSWERS: tuple[str, ...] = tuple(
    objective.model_fields["kind"].default for objective in get_args(Pairwise | KTO | Scoring)
)
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
