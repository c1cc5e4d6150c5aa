"""On-policy distillation: a student matches its teacher on the student's own answers.

The student answers prompts, and KL(student || teacher) is minimized at each token of its own
answers. This *reverse* divergence penalizes what the teacher would not say, and ignores what the
student cannot say (Gu et al. 2024, "MiniLLM", arXiv:2306.08543; Agarwal et al. 2024, "On-Policy
Distillation of Language Models", arXiv:2306.13649, sections 3.1 and 3.2, with all data on-policy).
Gradients flow through the distributions at the tokens, not through the choice of tokens.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trainrig.objectives.objective_interface import Computed, Contributions, DeviceBatch
from trainrig.objectives.policy.policy_divergence import PolicyTokens
from trainrig.objectives.policy.policy_gradient import POLICY, ClippedPolicy, Floats
from trainrig.objectives.policy.ppo import estimate_advantages
from trainrig.tokens import batches

if TYPE_CHECKING:
    from torch import Tensor, nn


TEACHER_MODEL = "teacher"  # name of the frozen model


class OnPolicyDistillation(ClippedPolicy):
    """KL(student || teacher) of each token that the student samples.

    It is averaged over the tokens of the global batch. Rewards are measured, but not learnt from.
    """

    needs_teacher: ClassVar[bool] = True
    per: ClassVar[str] = batches.TOKENS

    kind: Literal["OnPolicyDistillation"] = "OnPolicyDistillation"
    # How the divergence is computed. "full": exactly, over the whole vocabulary at each token
    # (Agarwal et al. 2024, equation 4). "sampled": from the sampled token alone, whose
    # log-probability under the teacher minus that under the student is its advantage in a clipped
    # policy gradient. The teacher then reads a batch once, for any number of updates.
    estimator: Literal["full", "sampled"] = "full"
    # Discount of later tokens' divergence in a token's advantage, for "sampled". 0: the token's own
    # alone, with the same expected gradient as "full". 1: all later tokens count fully, so that a
    # token is responsible for its consequences (Gu et al. 2024, equation 2).
    discount: float = Field(default=0.0, ge=0, le=1)

    @property
    def compares_completions(self) -> bool:
        """False: the teacher judges each completion."""
        return False

    @property
    def credits_teacher(self) -> bool:
        """True for the estimator "sampled"."""
        return self.estimator == "sampled"

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if self.reference:
            raise ValueError(
                "reference: the student is already held to the teacher; remove the reference"
            )
        if self.discount and self.estimator == "full":
            raise ValueError(
                'discount: estimator = "full" has no use for it; remove `discount`, or set '
                'estimator = "sampled"'
            )
        return self

    def credit(
        self,
        rewards_GS: Floats,
        mask_BT: NDArray[np.bool_],
        penalties_BT: Floats | None,
        values_BT: Floats | None,
    ) -> dict[str, NDArray[np.float32]]:
        """Return the batch arrays with rewards and advantages. See `PolicyGradient`.

        `penalties_BT`: the student's log-probability of each token minus the teacher's; None: not
        needed.
        """
        rewards_B = rewards_GS.reshape(-1)
        if penalties_BT is None:
            found = {batches.REWARDS: rewards_B, batches.ADVANTAGES: np.zeros(len(rewards_B))}
        else:
            advantages_BT = estimate_advantages(
                -penalties_BT, np.zeros(mask_BT.shape), mask_BT, self.discount, trace_decay=1.0
            )
            mean_B = advantages_BT.sum(1) / mask_BT.sum(1)
            found = {
                batches.REWARDS: rewards_B,
                batches.ADVANTAGES: mean_B,
                batches.TOKEN_ADVANTAGES: advantages_BT,
            }
        return {name: array.astype(np.float32) for name, array in found.items()}

    def read_advantages(
        self, arrays: Mapping[str, Tensor], statistics: Mapping[str, float]
    ) -> Tensor:
        """Return the advantages [B, T] of each token."""
        return arrays[batches.TOKEN_ADVANTAGES]

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the divergence of each completion of `batch` from the teacher."""
        arrays = batch.arrays
        mask_BT = arrays[batches.TARGETS] != batches.IGNORE
        count_B = mask_BT.sum(1)
        if self.estimator == "sampled":
            computed = super().compute(model, batch, statistics)
            away_BT = (arrays[batches.OLD] - arrays[batches.TEACHER_TOKENS]) * mask_BT
            watched = {"teacher_divergence": Contributions(away_BT, count_B)}
            return Computed(computed.terms, computed.auxiliary, {**computed.diagnostics, **watched})
        # Imported here, because run files are read without torch.
        from trainrig.objectives.teacher_divergence import read_beside_teacher

        temperature = float(arrays[batches.TEMPERATURE][0])
        entries = int(arrays[batches.ENTRIES][0])
        teacher = batch.models[TEACHER_MODEL]
        read = read_beside_teacher(
            model, teacher, arrays[batches.IDS], arrays[batches.TARGETS], temperature, entries
        )
        change_BT = (read.log_probabilities_BT - arrays[batches.OLD]) * mask_BT
        seen = PolicyTokens(
            log_BT=read.log_probabilities_BT,
            change_BT=change_BT,
            ratio_BT=change_BT.exp(),
            advantages=change_BT.new_zeros(len(change_BT), 1),  # nothing is clipped
            entropy_BT=read.entropy_BT,
        )
        watched = self.watch(batch, seen)
        watched["teacher_divergence"] = Contributions(read.divergence_BT.detach(), count_B)
        terms = {POLICY: Contributions(read.divergence_BT, count_B)}
        return Computed(terms, read.auxiliary, watched)
