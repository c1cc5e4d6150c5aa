"""Sampling of the next token.

Shapes: B rows, R rows that are drawn together, V vocabulary entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from trainrig.config import Settings
from trainrig.randomness import RandomKey, draw_uniforms_of_streams


class Sampling(Settings):
    """Settings for drawing the next token from the model's distribution.

    In the order of Transformers: repetition penalty, temperature, then `top_k`, `top_p` and
    `min_p`, each applied to what the one before left.
    """

    # 0: always the most likely token.
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    # Number of most likely tokens to draw from; None: all.
    top_k: int | None = Field(default=None, ge=1)
    # Draw among the fewest most likely tokens whose probabilities add up to this (Holtzman et al.
    # 2020, arXiv:1904.09751).
    top_p: float = Field(default=1.0, gt=0, le=1)
    # Draw among tokens with at least this share of the most likely one's probability (Nguyen et al.
    # 2024, arXiv:2407.01082).
    min_p: float = Field(default=0.0, ge=0, le=1)
    # Factor by which the logits of tokens in the prompt or the text so far are lowered: divided if
    # positive, multiplied if negative (Keskar et al. 2019, arXiv:1909.05858); 1: no penalty.
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, lt=2**63)
    maximum_tokens: int = Field(default=256, ge=1)  # most new tokens
    # Texts that end the answer where one first appears; the answer does not include them.
    stop: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Return whether the most likely token is always taken, whatever the text so far."""
        return self.temperature == 0 and self.repetition_penalty == 1


@dataclass(frozen=True)
class NextToken:
    """Sampling settings, random stream and index of the token to draw next."""

    sampling: Sampling
    stream: int  # random stream of the answer, from `derive_stream`
    place: int = 0  # index of the token within the answer
    # Ids of the prompt and the text so far, if a repetition penalty needs them.
    said: Sequence[int] = ()


def derive_stream(sampling: Sampling) -> int:
    """Return the stream of random numbers with which an answer is drawn."""
    return RandomKey(sampling.seed, "sampling").stream


def draw(logits_BV: Tensor, tokens: Sequence[NextToken]) -> list[int]:
    """Return an id for each row of `logits_BV` [B, V], drawn as `tokens` [B] say.

    Rows with the same settings are drawn together, with the same result as alone. Drawing is done
    on the CPU, so that all devices use the same random numbers.
    """
    logits_BV = logits_BV.float().cpu()
    alike: dict[tuple[object, ...], list[int]] = {}
    for row, token in enumerate(tokens):
        alike.setdefault(_describe_shape(token.sampling), []).append(row)
    drawn = [0] * len(tokens)
    for rows in alike.values():
        group_RV = logits_BV if len(alike) == 1 else logits_BV[rows]
        ids = _draw_alike(group_RV, [tokens[row] for row in rows])
        for row, drawn_id in zip(rows, ids, strict=True):
            drawn[row] = drawn_id
    return drawn


def _describe_shape(sampling: Sampling) -> tuple[object, ...]:
    """Return the settings that rows must share to be drawn together."""
    penalised = sampling.repetition_penalty
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, penalised


def _draw_alike(logits_RV: Tensor, tokens: Sequence[NextToken]) -> list[int]:
    """Return an id for each row; the settings of the rows differ only in their seeds."""
    sampling = tokens[0].sampling
    if sampling.repetition_penalty != 1:
        rows = zip(logits_RV, tokens, strict=True)
        logits_RV = torch.stack(
            [_penalise(row_V, sampling.repetition_penalty, token.said) for row_V, token in rows]
        )
    if sampling.temperature == 0:
        likeliest: list[int] = logits_RV.argmax(-1).tolist()
        return likeliest
    ids_RV = None
    if sampling.top_k is not None:
        logits_RV, ids_RV = logits_RV.topk(min(sampling.top_k, logits_RV.shape[-1]))
    # Subtract the largest logit first: divided by a small temperature, logits could overflow.
    largest_R1 = logits_RV.amax(-1, keepdim=True)
    shares_RV = ((logits_RV - largest_R1) / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        shares_RV = _keep_likeliest(shares_RV, sampling.top_p)
    if sampling.min_p > 0:
        least_R1 = sampling.min_p * shares_RV.amax(-1, keepdim=True)
        shares_RV = shares_RV.masked_fill(shares_RV < least_R1, 0)
    upto_RV = shares_RV.double().cumsum(-1)
    streams_R = torch.tensor([token.stream for token in tokens])
    luck_R = draw_uniforms_of_streams(streams_R, torch.tensor([token.place for token in tokens]))
    wanted_R1 = luck_R[:, None] * upto_RV[:, -1:]
    drawn_R1 = torch.searchsorted(upto_RV, wanted_R1, right=True)
    drawn_R1 = drawn_R1.clamp(max=upto_RV.shape[-1] - 1)
    if ids_RV is not None:
        drawn_R1 = ids_RV.gather(1, drawn_R1)
    drawn: list[int] = drawn_R1[:, 0].tolist()
    return drawn


def _penalise(logits_V: Tensor, penalty: float, said: Sequence[int]) -> Tensor:
    """Return `logits_V` with the logits of the ids `said` lowered."""
    if not said:
        return logits_V
    index = torch.tensor(sorted(set(said)))
    found = logits_V[index]
    lowered = torch.where(found < 0, found * penalty, found / penalty)
    return logits_V.index_copy(0, index, lowered)


def _keep_likeliest(shares_RV: Tensor, wanted: float) -> Tensor:
    """Return `shares_RV` with only the fewest most likely entries that add up to `wanted`."""
    ordered_RV, places_RV = shares_RV.sort(-1, descending=True)
    before_RV = ordered_RV.cumsum(-1) - ordered_RV
    left_out_RV = torch.zeros_like(shares_RV, dtype=torch.bool)
    return shares_RV.masked_fill(left_out_RV.scatter(1, places_RV, before_RV >= wanted), 0)
