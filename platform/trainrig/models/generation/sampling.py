"""How the next token is drawn.

Shapes: B rows, R of them drawn together, V entries of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from trainrig.config import Settings
from trainrig.randomness import RandomKey, draw_uniforms_of_streams


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


@dataclass(frozen=True)
class NextToken:
    """Which token is drawn next: its number within its answer, and whence its luck comes."""

    sampling: Sampling
    stream: int  # `sampling_stream` of its seed, which is asked for once an answer
    place: int = 0  # number of the token within the answer
    said: Sequence[int] = ()  # ids of the prompt and of the text so far, where a penalty asks


def derive_stream(sampling: Sampling) -> int:
    """The stream of random numbers that the answer to a request is drawn by."""
    return RandomKey(sampling.seed, "sampling").stream


def draw(logits_BV: Tensor, tokens: Sequence[NextToken]) -> list[int]:
    """An id for each row of `logits_BV` [B, V], whose token is `tokens[b]`.

    Rows of one kind are drawn together; each gets what it gets alone. Drawn on the CPU, so that
    devices share the luck.
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
    """What rows that are drawn together have in common."""
    penalised = sampling.repetition_penalty
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, penalised


def _draw_alike(logits_RV: Tensor, tokens: Sequence[NextToken]) -> list[int]:
    """An id for each row; their samplings differ in their seeds alone."""
    sampling = tokens[0].sampling
    if sampling.repetition_penalty != 1:
        rows = zip(logits_RV, tokens, strict=True)
        logits_RV = torch.stack(
            [_penalise(row_V, sampling.repetition_penalty, each.said) for row_V, each in rows]
        )
    if sampling.temperature == 0:
        likeliest: list[int] = logits_RV.argmax(-1).tolist()
        return likeliest
    ids_RV = None
    if sampling.top_k is not None:
        logits_RV, ids_RV = logits_RV.topk(min(sampling.top_k, logits_RV.shape[-1]))
    # Less the largest first: over a small temperature logits would overflow.
    largest_R1 = logits_RV.amax(-1, keepdim=True)
    shares_RV = ((logits_RV - largest_R1) / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        shares_RV = _keep_likeliest(shares_RV, sampling.top_p)
    if sampling.min_p > 0:
        least_R1 = sampling.min_p * shares_RV.amax(-1, keepdim=True)
        shares_RV = shares_RV.masked_fill(shares_RV < least_R1, 0)
    upto_RV = shares_RV.double().cumsum(-1)
    streams_R = torch.tensor([each.stream for each in tokens])
    luck_R = draw_uniforms_of_streams(streams_R, torch.tensor([each.place for each in tokens]))
    wanted_R1 = luck_R[:, None] * upto_RV[:, -1:]
    drawn_R1 = torch.searchsorted(upto_RV, wanted_R1, right=True)
    drawn_R1 = drawn_R1.clamp(max=upto_RV.shape[-1] - 1)
    if ids_RV is not None:
        drawn_R1 = ids_RV.gather(1, drawn_R1)
    drawn: list[int] = drawn_R1[:, 0].tolist()
    return drawn


def _penalise(logits_V: Tensor, penalty: float, said: Sequence[int]) -> Tensor:
    """`logits_V` with those of the ids `said` lowered."""
    if not said:
        return logits_V
    index = torch.tensor(sorted(set(said)))
    found = logits_V[index]
    lowered = torch.where(found < 0, found * penalty, found / penalty)
    return logits_V.index_copy(0, index, lowered)


def _keep_likeliest(shares_RV: Tensor, wanted: float) -> Tensor:
    """`shares_RV` without those beyond the fewest likeliest of a row that add up to `wanted`."""
    ordered_RV, places_RV = shares_RV.sort(-1, descending=True)
    before_RV = ordered_RV.cumsum(-1) - ordered_RV
    left_out_RV = torch.zeros_like(shares_RV, dtype=torch.bool)
    return shares_RV.masked_fill(left_out_RV.scatter(1, places_RV, before_RV >= wanted), 0)
