"""A reward model that is asked what answers are worth: by `score`, by judges and by rewards.

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
from trainrig.tokens.chat.messages import BadRow
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
        """That of the newest checkpoint at `path`; an adapter's is merged with its base.

        Raises DataError if there is none, ConfigError for a model that does not score.
        """
        opened = checkpoint.open_model(path)
        if opened.config.head != "score":
            raise ConfigError(
                f"checkpoint: {opened.path} is a language model, which scores nothing; train one "
                'that does by `trainrig posttrain` with objective.kind = "Reward"'
            )
        return cls(opened.build().to(find_local_device()))

    def find_places(self, rendered: Rendered, steps: bool) -> Integers:
        """[N] the places of `rendered` whose scores are wanted: where the answer ends, all of it
        but the token that ends it, or, with `steps`, where each step does.

        Raises BadRow for what is longer than the model can tell places apart.
        """
        there = np.flatnonzero(rendered.weights)
        found: Integers = there if steps else there[-1:] - 1
        if (longest := int(found[-1]) + 1) > self.model.config.positions:
            positions = self.model.config.positions
            raise BadRow("too_long", f"{longest} tokens, of {positions} that the model can read")
        return found

    @torch.no_grad()
    def score(self, answers: Sequence[tuple[Rendered, Integers]]) -> list[Scores]:
        """The scores at the places of each of `answers`, by one forward pass."""
        widths = [int(places[-1]) + 1 for _, places in answers]
        ids_BT = np.zeros((len(answers), max(widths)), dtype=np.int64)
        for row, (width, (rendered, _)) in enumerate(zip(widths, answers, strict=True)):
            ids_BT[row, :width] = rendered.ids[:width]  # what follows is not looked back on
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
    """Compute with `number` threads for as long as the block lasts: sums then have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
