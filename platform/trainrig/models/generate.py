"""Writing on from a prompt, one token at a time.

Shapes: V entries of the vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from trainrig.config import Settings
from trainrig.errors import DataError
from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import Decoder


class Sampling(Settings):
    """How the next token is drawn from the model's distribution."""

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # 0: always the likeliest
    top_k: int | None = Field(default=None, ge=1)  # draw among this many likeliest; None: all
    seed: int = Field(default=0, ge=0, lt=2**63)
    maximum_tokens: int = Field(default=256, ge=1)  # new ones, at most


@dataclass(frozen=True)
class Generation:
    """New tokens, and what ended them: a stop id, the wanted length, or the model's positions."""

    ids: tuple[int, ...]  # without prompt and without the stop id
    stopped: Literal["end", "length", "positions"]


@torch.inference_mode()
def generate(
    model: Decoder,
    prompt: Sequence[int],
    sampling: Sampling,
    stop: Collection[int],
    entries: int | None = None,
) -> Generation:
    """Continue `prompt` until an id of `stop`, `sampling.maximum_tokens`, or the model's positions.

    `entries` is the tokenizer's number of ids: those from there on only pad the model's table and
    are never drawn. The same arguments give the same tokens, on one kind of machine.

    Raises DataError for a prompt that is empty or does not fit.
    """
    positions = model.config.positions
    if not 1 <= len(prompt) <= positions:
        raise DataError(
            f"a prompt of {len(prompt)} tokens: this model reads from 1 to {positions}; "
            + ("shorten it" if prompt else "begin with the end-of-text token")
        )
    device = model.embedding.weight.device
    generator = torch.Generator().manual_seed(sampling.seed)
    caches = [KeyValueCache() for _ in model.layers]
    unread, new = list(prompt), list[int]()
    while len(new) < sampling.maximum_tokens:
        if len(prompt) + len(new) == positions:
            return Generation(tuple(new), "positions")
        logits_V = model(torch.tensor([unread], device=device), caches).logits[0, -1, :entries]
        drawn = draw(logits_V, sampling, generator)
        if drawn in stop:
            return Generation(tuple(new), "end")
        new.append(drawn)
        unread = [drawn]
    return Generation(tuple(new), "length")


def draw(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One id from `logits_V` [V]. Drawn on the CPU in float32, so that devices share the dice."""
    logits_V = logits_V.float().cpu()
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    ids = torch.arange(len(logits_V))
    if sampling.top_k is not None:
        logits_V, ids = logits_V.topk(min(sampling.top_k, len(logits_V)))
    # Less the largest first: over a small temperature logits would overflow.
    shares_V = ((logits_V - logits_V.max()) / sampling.temperature).softmax(-1)
    return int(ids[torch.multinomial(shares_V, 1, generator=generator)])
