"""How the next token is drawn.

Shapes: V entries of the vocabulary.
"""

from collections.abc import Collection

import torch
from pydantic import Field
from torch import Tensor

from trainrig.config import Settings
from trainrig.randomness import RandomKey, uniforms


class Sampling(Settings):
    """How the next token is drawn from the model's distribution.

    In this order, as Transformers has it: the repetition penalty, the temperature, then `top_k`,
    `top_p` and `min_p`, each on what the one before left.
    """

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # 0: always the likeliest
    top_k: int | None = Field(default=None, ge=1)  # draw among this many likeliest; None: all
    # Draw among the likeliest that together have this probability (Holtzman et al. 2020,
    # arXiv:1904.09751).
    top_p: float = Field(default=1.0, gt=0, le=1)
    # Draw among those that have this share of the likeliest one's probability (Nguyen et al. 2024,
    # arXiv:2407.01082).
    min_p: float = Field(default=0.0, ge=0, le=1)
    # By which the logits of tokens in the prompt or in the text so far are lowered: divided
    # where positive, multiplied where negative (Keskar et al. 2019, arXiv:1909.05858).
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, lt=2**63)
    maximum_tokens: int = Field(default=256, ge=1)  # new ones, at most
    # Texts that end the answer where one first appears; they are no part of it.
    stop: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the likeliest token is taken, whatever was said before."""
        return self.temperature == 0 and self.repetition_penalty == 1


def draw(
    logits_V: Tensor,
    sampling: Sampling,
    place: int,
    said: Collection[int] = (),
) -> int:
    """One id from `logits_V` [V], for the token number `place` of the answer; `said`: the ids of
    the prompt and of the text so far. Drawn on the CPU, so that devices share the dice."""
    logits_V = logits_V.float().cpu()
    if sampling.repetition_penalty != 1 and said:
        logits_V = _penalised(logits_V, sampling.repetition_penalty, said)
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    ids = torch.arange(len(logits_V))
    if sampling.top_k is not None:
        logits_V, ids = logits_V.topk(min(sampling.top_k, len(logits_V)))
    # Less the largest first: over a small temperature logits would overflow.
    shares_V = ((logits_V - logits_V.max()) / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        shares_V = _likeliest_together(shares_V, sampling.top_p)
    if sampling.min_p > 0:
        shares_V = shares_V.masked_fill(shares_V < sampling.min_p * shares_V.max(), 0)
    upto_V = shares_V.double().cumsum(0)
    share = uniforms(RandomKey(sampling.seed, "sampling"), torch.tensor([place]))
    drawn = torch.searchsorted(upto_V, share * upto_V[-1], right=True)
    return int(ids[drawn.clamp(max=len(ids) - 1)])


def _penalised(logits_V: Tensor, penalty: float, said: Collection[int]) -> Tensor:
    index = torch.tensor(sorted(set(said)))
    found = logits_V[index]
    lowered = torch.where(found < 0, found * penalty, found / penalty)
    return logits_V.index_copy(0, index, lowered)


def _likeliest_together(shares_V: Tensor, wanted: float) -> Tensor:
    """`shares_V` without those beyond the fewest likeliest that add up to `wanted`."""
    ordered_V, places_V = shares_V.sort(descending=True)
    before_V = ordered_V.cumsum(-1) - ordered_V
    return shares_V.masked_fill(
        torch.zeros_like(shares_V, dtype=torch.bool).scatter(0, places_V, before_V >= wanted), 0
    )
