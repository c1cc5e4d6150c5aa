"""Batches of pairs and of single completions, made of a run's tokens, for ranks of tests."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig.tokens.batches import IGNORE, TOKENS, MicroBatch

PROMPT = 8  # positions of each row without a target


@dataclass(frozen=True)
class Tuning:
    """Rows of `sound`, the first positions of each a prompt.

    Chosen answers are the text itself, rejected ones the text backwards. The reference gives both 3
    nats a token.
    """

    sound: Any
    kind: str  # "pairs", "pairs without references" or "labelled"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sound, name)

    def denominators(self, step: int) -> dict[str, int]:
        micros = [self.micro_batch(step, n) for n in range(self.sound.micro_batches(step))]
        names = [n for n in micros[0].arrays if n.endswith("targets") and not n.startswith("kl")]
        counts = {n: sum(int((m.arrays[n] != IGNORE).sum()) for m in micros) for n in names}
        rows = sum(len(micro.samples) for micro in micros)
        chosen = {"chosen_tokens": counts["chosen_targets"]} if self.kind != "labelled" else {}
        return {TOKENS: sum(counts.values()), "pairs": rows, "examples": rows} | chosen

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        micro = self.sound.micro_batch(step, index)
        targets = micro.targets.copy()
        targets[:, :PROMPT] = IGNORE
        backwards = targets[:, ::-1].copy()
        backwards[:, :PROMPT] = IGNORE
        there = micro.ids, targets, micro.ids[:, ::-1].copy(), backwards
        nats = [-3.0 * (ids != IGNORE).sum(1) for ids in (targets, backwards)]
        if self.kind != "labelled":
            names = ("chosen_ids", "chosen_targets", "rejected_ids", "rejected_targets")
            references = ("chosen_reference", "rejected_reference")
        else:
            names = ("ids", "targets", "kl_ids", "kl_targets")
            references = ("reference", "kl_reference")
        arrays = dict(zip(names, there, strict=True))
        if "without" not in self.kind:
            arrays |= dict(zip(references, nats, strict=True))
        if self.kind == "labelled":
            arrays["labels"] = np.asarray(micro.samples % 2)
        return MicroBatch(arrays, micro.samples, micro.sources, micro.pieces)
