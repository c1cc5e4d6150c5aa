"""A toy online source: continuations of synthetic prompts, sampled by the model itself."""

from typing import Any

import torch
from torch import nn

from trainrig.randomness import RandomKey, draw_uniforms, draw_words
from trainrig.rl.online_batches import StoredRollouts
from trainrig.rl.rollout_maker import NO_ARRAYS, Arrays, RolloutMaker
from trainrig.tokens.batches import IGNORE, TOKENS, MicroBatch, build_token_arrays

ROWS = 2
PROMPT = 3
NEW = 5


class Rollouts(RolloutMaker):
    sources = ("rollouts",)

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def identity(self) -> dict[str, Any]:
        return {"rows": ROWS, "prompt": PROMPT, "new": NEW, "updates": self.updates}

    def micro_batches(self, number: int) -> int:
        return 5

    def open(self, *given: Any) -> StoredRollouts:
        return StoredRollouts(self, *given)

    def sample(
        self, model: nn.Module, number: int, index: int, wave_input: Arrays = NO_ARRAYS
    ) -> Arrays:
        first = (number * 5 + index) * ROWS
        samples_B1 = torch.arange(first, first + ROWS)[:, None]
        ids_BT = draw_words(RandomKey(0, "prompt"), torch.arange(PROMPT), samples_B1) % 256
        for place in range(NEW):
            upto_BV = model(ids_BT).logits[:, -1].double().softmax(-1).cumsum(-1)
            share_B1 = draw_uniforms(RandomKey(0, "answer"), torch.tensor([place]), samples_B1)
            drawn_B1 = torch.searchsorted(upto_BV, share_B1 * upto_BV[:, -1:])
            ids_BT = torch.cat([ids_BT, drawn_B1], 1)
        return {"ids": ids_BT.numpy(), "samples": samples_B1[:, 0].numpy()}

    def complete(
        self, model: nn.Module, others: object, number: int, index: int, sampled: Arrays
    ) -> MicroBatch:
        targets = sampled["ids"][:, 1:].copy()
        targets[:, : PROMPT - 1] = IGNORE
        nowhere = torch.zeros(0, 3, dtype=torch.int64).numpy()
        zeros = torch.zeros(ROWS, dtype=torch.int64).numpy()
        arrays = build_token_arrays(sampled["ids"][:, :-1], targets)
        return MicroBatch(arrays, sampled["samples"], zeros, nowhere)

    def denominators(self, micro: MicroBatch) -> dict[str, int]:
        return {TOKENS: int((micro.targets != IGNORE).sum())}
