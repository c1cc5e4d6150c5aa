"""Proximal policy optimisation (PPO) with a critic that predicts the return at each position.

Schulman et al. 2017, arXiv:1707.06347; for language models, Ouyang et al. 2022, arXiv:2203.02155.
The critic is a separate model with one output, a score per position. It is trained together with
the policy on the same batches. Its predictions at the time of sampling are stored in the batch.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each, N positions
that have a target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    Term,
)
from trainrig.objectives.policy.policy_gradient import SPREAD_FLOOR, ClippedPolicy, Floats
from trainrig.tokens import batches

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

CRITIC_MODEL = "critic"  # name of the critic among the run's models
VALUE = "value"  # name of the critic's loss term


class PPO(ClippedPolicy):
    """Proximal policy optimisation: advantages from a critic, with clipped ratio and value."""

    needs_critic: ClassVar[bool] = True
    per: ClassVar[str] = batches.TOKENS

    kind: Literal["PPO"] = "PPO"
    # Discount factor of rewards per token.
    discount: float = Field(default=1.0, gt=0, le=1)
    # Lambda of generalised advantage estimation: 0 relies on the critic alone, 1 on the observed
    # rewards alone (Schulman et al. 2016, arXiv:1506.02438, equation 16).
    trace_decay: float = Field(default=0.95, ge=0, le=1)
    # How far a value may be from its stored prediction before it is clipped; a large number
    # disables clipping.
    clip_value: float = Field(default=0.2, gt=0, allow_inf_nan=False)
    # Upper bound of a token's loss with a negative advantage, as a multiple of that advantage,
    # whatever the ratio (dual-clip PPO: Ye et al. 2020, arXiv:1912.09729, equation 3). None: no
    # bound.
    clip_negative: float | None = Field(default=None, gt=1, allow_inf_nan=False)
    # Whether to normalise advantages to mean 0 and standard deviation 1 over the global batch.
    normalise: bool = True

    @property
    def compares_completions(self) -> bool:
        """False: the critic values each completion."""
        return False

    @property
    def terms(self) -> tuple[Term, ...]:
        """The policy's terms, followed by the critic's."""
        return (*super().terms, Term(VALUE, per=batches.TOKENS))

    @property
    def statistics(self) -> tuple[str, ...]:
        """The sums of the advantages and of their squares, and the number of tokens."""
        return ("advantages", "squares", "tokens") if self.normalise else ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Return the sums of advantages and of their squares in `batch`, and the number of tokens.

        Empty if advantages are not normalised.
        """
        if not self.normalise:
            return {}
        mask_BT = batch.arrays[batches.TARGETS] != batches.IGNORE
        advantages_N = batch.arrays[batches.TOKEN_ADVANTAGES][mask_BT].double()
        squares = (advantages_N**2).sum()
        return {
            "advantages": advantages_N.sum(),
            "squares": squares,
            "tokens": mask_BT.sum().double(),
        }

    def read_advantages(
        self, arrays: Mapping[str, Tensor], statistics: Mapping[str, float]
    ) -> Tensor:
        """Return the advantages [B, T], normalised over the global batch if so set."""
        advantages_BT = arrays[batches.TOKEN_ADVANTAGES]
        if not self.normalise:
            return advantages_BT
        count = statistics["tokens"]
        mean = statistics["advantages"] / count
        variance = max(0.0, statistics["squares"] / count - mean**2)
        return (advantages_BT - mean) / (math.sqrt(variance) + SPREAD_FLOOR)

    def credit(
        self,
        rewards_GS: Floats,
        mask_BT: NDArray[np.bool_],
        penalties_BT: Floats | None,
        values_BT: Floats | None,
    ) -> dict[str, NDArray[np.float32]]:
        """Return the batch arrays with rewards, advantages, returns and values.

        See `PolicyGradient`. The reward is given to the last token, and penalties to each token.
        """
        assert values_BT is not None, "PPO has a critic"
        rewards_B = rewards_GS.reshape(-1)
        rewards_BT = np.zeros(mask_BT.shape)
        rewards_BT[np.arange(len(mask_BT)), find_last_places(mask_BT)] = rewards_B
        if penalties_BT is not None:
            rewards_BT -= penalties_BT
        advantages_BT = estimate_advantages(
            rewards_BT, values_BT, mask_BT, self.discount, self.trace_decay
        )
        found = {
            batches.REWARDS: rewards_BT.sum(1),
            batches.ADVANTAGES: advantages_BT.sum(1) / mask_BT.sum(1),
            batches.TOKEN_ADVANTAGES: advantages_BT,
            batches.RETURNS: (advantages_BT + values_BT) * mask_BT,
            batches.VALUES: values_BT * mask_BT,
        }
        return {name: array.astype(np.float32) for name, array in found.items()}

    def compute_losses(self, ratio_BT: Tensor, log_BT: Tensor, advantages: Tensor) -> Tensor:
        """Return the loss [B, T] of each token, with `clip_negative` applied."""
        import torch

        losses_BT = super().compute_losses(ratio_BT, log_BT, advantages)
        if self.clip_negative is None:
            return losses_BT
        most_BT = torch.minimum(losses_BT, -self.clip_negative * advantages)
        return torch.where(advantages < 0, most_BT, losses_BT)

    def compute_value_losses(self, values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor) -> Tensor:
        """Return half the squared error [B, T], the larger of the unclipped and clipped value's."""
        import torch

        near_BT = old_BT + (values_BT - old_BT).clamp(-self.clip_value, self.clip_value)
        return torch.maximum((values_BT - returns_BT) ** 2, (near_BT - returns_BT) ** 2) / 2

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the policy's and the critic's loss of each completion of `batch`."""
        computed = super().compute(model, batch, statistics)
        arrays = batch.arrays
        mask_BT = batch.arrays[batches.TARGETS] != batches.IGNORE
        critic = batch.models[CRITIC_MODEL]
        values_BT, auxiliary = read_values(critic, arrays[batches.IDS], arrays[batches.TARGETS])
        losses_BT = (
            self.compute_value_losses(values_BT, arrays[batches.VALUES], arrays[batches.RETURNS])
            * mask_BT
        )
        count_B = mask_BT.sum(1)

        def average_tokens(values_BT: Tensor) -> Contributions:
            return Contributions(values_BT.detach().float() * mask_BT, count_B)

        moved_BT = (values_BT - arrays[batches.VALUES]).abs()
        watched = {
            "value": average_tokens(arrays[batches.VALUES]),
            "value_error": average_tokens((arrays[batches.VALUES] - arrays[batches.RETURNS]) ** 2),
            "return": average_tokens(arrays[batches.RETURNS]),
            "return_square": average_tokens(arrays[batches.RETURNS] ** 2),
            "value_clipped": average_tokens(moved_BT > self.clip_value),
        }
        return Computed(
            {**computed.terms, VALUE: Contributions(losses_BT.float(), count_B)},
            {**computed.auxiliary, **auxiliary},
            {**computed.diagnostics, **watched},
        )


def estimate_advantages(
    rewards_BT: Floats,
    values_BT: Floats,
    mask_BT: NDArray[np.bool_],
    discount: float,
    trace_decay: float,
) -> Floats:
    """Return generalised advantage estimates [B, T].

    Schulman et al. 2016, arXiv:1506.02438, equation 16. Positions outside the mask, such as an
    environment's tokens, are not steps: the next step of a token is the next one within the mask.
    After the last token the value is 0.
    """
    advantages_BT = np.zeros(rewards_BT.shape)
    next_value_B = np.zeros(len(mask_BT))
    next_B = np.zeros(len(mask_BT))
    for place in reversed(range(mask_BT.shape[1])):
        here_B = mask_BT[:, place]
        value_B = values_BT[:, place]
        error_B = rewards_BT[:, place] + discount * next_value_B - value_B
        advantages_BT[:, place] = (error_B + discount * trace_decay * next_B) * here_B
        next_B = np.where(here_B, advantages_BT[:, place], next_B)
        next_value_B = np.where(here_B, value_B, next_value_B)
    return advantages_BT


def find_last_places(mask_BT: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the last position [B] of each row within the mask."""
    found: NDArray[np.int64] = mask_BT.shape[1] - 1 - mask_BT[:, ::-1].argmax(1)
    return found


def read_values(
    critic: nn.Module, ids_BT: Tensor, targets_BT: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the critic's prediction [B, T] before each target, and its auxiliary loss terms.

    Predictions are float32, and 0 where there is no target.
    """
    places_N = (targets_BT.flatten() != batches.IGNORE).nonzero().squeeze(1)
    output: Output = critic(ids_BT, places_N=places_N)
    values_N = output.logits.squeeze(-1).float()
    flat = values_N.new_zeros(targets_BT.numel()).index_put((places_N,), values_N)
    scalars = {f"critic_{n}": x for n, x in output.auxiliary.items() if x.ndim == 0}
    return flat.view(targets_BT.shape), scalars
