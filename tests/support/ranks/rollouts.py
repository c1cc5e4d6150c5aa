"""A toy online source: continuations of synthetic prompts, sampled by the model itself."""

from typing import Any

import torch
from torch import nn

from trainrig.randomness import RandomKey, draw_uniforms, draw_words
from trainrig.tokens.batch_makers import BatchMaker
from trainrig.tokens.batches import IGNORE, TOKENS, MicroBatch, build_token_arrays

ROWS = 2
PROMPT = 3
NEW = 5


class Rollouts(BatchMaker):
    sources = ("rollouts",)

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def identity(self) -> dict[str, Any]:
        return {"rows": ROWS, "prompt": PROMPT, "new": NEW, "updates": self.updates}

    def micro_batches(self, number: int) -> int:
        return 5

    def make(self, model: nn.Module, others: object, number: int, index: int) -> MicroBatch:
        first = (number * 5 + index) * ROWS
        samples_B1 = torch.arange(first, first + ROWS)[:, None]
        ids_BT = draw_words(RandomKey(0, "prompt"), torch.arange(PROMPT), samples_B1) % 256
        for place in range(NEW):
            upto_BV = model(ids_BT).logits[:, -1].double().softmax(-1).cumsum(-1)
            share_B1 = draw_uniforms(RandomKey(0, "answer"), torch.tensor([place]), samples_B1)
            drawn_B1 = torch.searchsorted(upto_BV, share_B1 * upto_BV[:, -1:])
            ids_BT = torch.cat([ids_BT, drawn_B1], 1)
        ids = ids_BT[:, :-1].numpy()
        targets = ids_BT[:, 1:].clone()
        targets[:, : PROMPT - 1] = IGNORE
        nowhere = torch.zeros(0, 3, dtype=torch.int64).numpy()
        zeros = torch.zeros(ROWS, dtype=torch.int64).numpy()
        arrays = build_token_arrays(ids, targets.numpy())
        return MicroBatch(arrays, samples_B1[:, 0].numpy(), zeros, nowhere)

    def denominators(self, micro: MicroBatch) -> dict[str, int]:
        return {TOKENS: int((micro.targets != IGNORE).sum())}
