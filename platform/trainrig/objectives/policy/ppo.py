"""Proximal policy optimisation with a critic, which says of each place what is still to be had
(Schulman et al. 2017, arXiv:1707.06347; of language models: Ouyang et al. 2022, arXiv:2203.02155).

The critic is a model of its own with one output, a score of each place. It is trained beside the
policy, by the same batches; what it gave when a batch was made is stored in it.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each, N places that
have a target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Output, Term
from trainrig.objectives.policy.policy_gradient import SPREAD_FLOOR, ClippedPolicy, Floats
from trainrig.tokens.batches import (
    ADVANTAGES,
    IDS,
    IGNORE,
    RETURNS,
    REWARDS,
    TARGETS,
    TOKEN_ADVANTAGES,
    TOKENS,
    VALUES,
)

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

CRITIC_MODEL = "critic"  # name of the model that is trained beside
VALUE = "value"  # its term of the loss


class PPO(ClippedPolicy):
    """Proximal policy optimisation: advantages of tokens by a critic, ratio and value clipped."""

    kind: Literal["PPO"] = "PPO"
    # What a reward is worth one token earlier.
    discount: float = Field(default=1.0, gt=0, le=1)
    # Share of the next token's advantage in that of a token: 0 trusts the critic alone, 1 what was
    # got alone (Schulman et al. 2016, arXiv:1506.02438, equation 16).
    trace_decay: float = Field(default=0.95, ge=0, le=1)
    # How far a value may go from what it was when the batch was made and still be learnt from; a
    # large number clips none.
    clip_value: float = Field(default=0.2, gt=0, allow_inf_nan=False)
    # Times a bad advantage that a token's loss is at most, however likely it became (Ye et al.
    # 2020, arXiv:1912.09729, equation 3); None: any.
    clip_negative: float | None = Field(default=None, gt=1, allow_inf_nan=False)
    # Whether advantages are brought to mean 0 and standard deviation 1 over the global batch.
    normalise: bool = True

    @property
    def per(self) -> str:
        """Tokens of all completions."""
        return TOKENS

    @property
    def terms(self) -> tuple[Term, ...]:
        """The policy's and the critic's, and the divergence's where it is in the loss."""
        return (*super().terms, Term(VALUE, per=TOKENS))

    @property
    def statistics(self) -> tuple[str, ...]:
        """Sums of the advantages, of their squares, and how many there are."""
        return ("advantages", "squares", "tokens") if self.normalise else ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """What `batch` adds to the three; nothing where they are not wanted."""
        if not self.normalise:
            return {}
        mask_BT = batch.arrays[TARGETS] != IGNORE
        each_N = batch.arrays[TOKEN_ADVANTAGES][mask_BT].double()
        squares = (each_N**2).sum()
        return {"advantages": each_N.sum(), "squares": squares, "tokens": mask_BT.sum().double()}

    def read_advantages(
        self, arrays: Mapping[str, Tensor], statistics: Mapping[str, float]
    ) -> Tensor:
        """[B, T], by mean and standard deviation of the global batch."""
        advantages_BT = arrays[TOKEN_ADVANTAGES]
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
        """See PolicyGradient. The reward comes with the last token, penalties with each."""
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
            REWARDS: rewards_BT.sum(1),
            ADVANTAGES: advantages_BT.sum(1) / mask_BT.sum(1),
            TOKEN_ADVANTAGES: advantages_BT,
            RETURNS: (advantages_BT + values_BT) * mask_BT,
            VALUES: values_BT * mask_BT,
        }
        return {name: each.astype(np.float32) for name, each in found.items()}

    def compute_losses(self, ratio_BT: Tensor, log_BT: Tensor, advantages: Tensor) -> Tensor:
        """See PolicyGradient."""
        import torch

        losses_BT = super().compute_losses(ratio_BT, log_BT, advantages)
        if self.clip_negative is None:
            return losses_BT
        most_BT = torch.minimum(losses_BT, -self.clip_negative * advantages)
        return torch.where(advantages < 0, most_BT, losses_BT)

    def compute_value_losses(self, values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor) -> Tensor:
        """[B, T] half the squared error, the worse of the value as it is and clipped."""
        import torch

        near_BT = old_BT + (values_BT - old_BT).clamp(-self.clip_value, self.clip_value)
        return torch.maximum((values_BT - returns_BT) ** 2, (near_BT - returns_BT) ** 2) / 2

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The loss of each completion of `batch`, and of what the critic expected of it."""
        computed = super().compute(model, batch, statistics)
        arrays, mask_BT = batch.arrays, batch.arrays[TARGETS] != IGNORE
        critic = batch.models[CRITIC_MODEL]
        values_BT, auxiliary = read_values(critic, arrays[IDS], arrays[TARGETS])
        losses_BT = self.compute_value_losses(values_BT, arrays[VALUES], arrays[RETURNS]) * mask_BT
        count_B = mask_BT.sum(1)

        def average_tokens(each_BT: Tensor) -> Contributions:
            return Contributions(each_BT.detach().float() * mask_BT, count_B)

        moved_BT = (values_BT - arrays[VALUES]).abs()
        watched = {
            "value": average_tokens(arrays[VALUES]),
            "value_error": average_tokens((arrays[VALUES] - arrays[RETURNS]) ** 2),
            "return": average_tokens(arrays[RETURNS]),
            "return_square": average_tokens(arrays[RETURNS] ** 2),
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
    """[B, T] generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    Places outside the mask, an environment's tokens among them, are no steps: the one before is
    followed by the next within. After the last there is nothing to be had.
    """
    advantages_BT = np.zeros(rewards_BT.shape)
    next_value_B, next_B = np.zeros(len(mask_BT)), np.zeros(len(mask_BT))
    for place in reversed(range(mask_BT.shape[1])):
        here_B, value_B = mask_BT[:, place], values_BT[:, place]
        error_B = rewards_BT[:, place] + discount * next_value_B - value_B
        advantages_BT[:, place] = (error_B + discount * trace_decay * next_B) * here_B
        next_B = np.where(here_B, advantages_BT[:, place], next_B)
        next_value_B = np.where(here_B, value_B, next_value_B)
    return advantages_BT


def find_last_places(mask_BT: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[B] the last place of each row within the mask."""
    found: NDArray[np.int64] = mask_BT.shape[1] - 1 - mask_BT[:, ::-1].argmax(1)
    return found


def read_values(
    critic: nn.Module, ids_BT: Tensor, targets_BT: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """[B, T] float32, what `critic` expects before each target is drawn, 0 elsewhere; and what its
    own parts add to the loss."""
    places_N = (targets_BT.flatten() != IGNORE).nonzero().squeeze(1)
    output: Output = critic(ids_BT, places_N=places_N)
    values_N = output.logits.squeeze(-1).float()
    flat = values_N.new_zeros(targets_BT.numel()).index_put((places_N,), values_N)
    scalars = {f"critic_{n}": each for n, each in output.auxiliary.items() if each.ndim == 0}
    return flat.view(targets_BT.shape), scalars
