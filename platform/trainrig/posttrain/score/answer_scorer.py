"""Scoring of answers with a reward model, for the stage `score`, judges and rewards.

Shapes: B answers, T positions, N places with a score.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.chat.chat_messages import BadRow
from trainrig.tokens.chat.rendering import Rendered
from trainrig.tokens.permutation import Integers
from trainrig.train import checkpoint

Scores = list[float]


@dataclass(frozen=True)
class AnswerScorer:
    """A reward model on its device."""

    model: Decoder

    @classmethod
    def open(cls, path: str) -> "AnswerScorer":
        """Open the newest checkpoint at `path`; an adapter is merged with its base.

        Raises DataError if there is none, ConfigError for a model without a score head.
        """
        opened = checkpoint.open_model(path)
        if opened.config.head != "score":
            raise ConfigError(
                f"checkpoint: {opened.path} is {opened.config.description}, not a reward "
                'model; train one by `trainrig posttrain` with objective.kind = "Reward"'
            )
        return cls(opened.build().to(find_local_device()))

    def find_places(self, rendered: Rendered, steps: bool) -> Integers:
        """Return the positions of `rendered` whose scores are needed, as [N].

        With `steps`, these are the ends of all steps; otherwise the last position before the token
        that ends the answer. Raises BadRow for an answer longer than the model's positions.
        """
        there = np.flatnonzero(rendered.weights)
        found: Integers = there if steps else there[-1:] - 1
        if (longest := int(found[-1]) + 1) > self.model.config.positions:
            positions = self.model.config.positions
            raise BadRow(
                "too_long", f"{longest} tokens, more than the {positions} that the model can read"
            )
        return found

    @torch.no_grad()
    def score(self, answers: Sequence[tuple[Rendered, Integers]]) -> list[Scores]:
        """Return the scores at the places of all `answers`, in one forward pass."""
        widths = [int(places[-1]) + 1 for _, places in answers]
        ids_BT = np.zeros((len(answers), max(widths)), dtype=np.int64)
        for row, (width, (rendered, _)) in enumerate(zip(widths, answers, strict=True)):
            # Attention is causal, so tokens after the last place do not matter.
            ids_BT[row, :width] = rendered.ids[:width]
        starts = np.arange(len(answers)) * ids_BT.shape[1]
        places_N = [start + places for start, (_, places) in zip(starts, answers, strict=True)]
        device = next(self.model.parameters()).device
        output = self.model(
            torch.from_numpy(ids_BT).to(device),
            places_N=torch.from_numpy(np.concatenate(places_N)).to(device),
        )
        scores_N = iter(output.logits.squeeze(-1).float().tolist())
        return [[next(scores_N) for _ in places] for _, places in answers]


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Set torch's CPU threads to `number` within the block, which fixes the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
