"""Fill in the middle: next-token prediction on documents whose middle is moved to their end.

Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle",
arXiv:2207.14255: a document is cut in two places into prefix, middle and suffix, and is written

    <|fim_prefix|> prefix <|fim_suffix|> suffix <|fim_middle|> middle end           (PSM)
    <|fim_prefix|> <|fim_suffix|> suffix <|fim_middle|> prefix middle end           (SPM, section 3)

so that a decoder learns to write what lies between two texts. Cuts are between tokens.

Shapes: B rows of a micro-batch, T positions, P pieces of documents in one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from trainrig.objectives.denoising.needed_tokens import need_tokens
from trainrig.objectives.next_token import CausalLM
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import IDS, IGNORE, TARGETS, TOKENS, MicroBatch
from trainrig.tokens.permutation import Integers
from trainrig.tokens.special_tokens import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX
from trainrig.tokens.tokenizers.encode import Encoder

SENTINELS = 3  # sentinels added to a document
DRAWS = 4  # random draws per piece: whether to rearrange, which form, and two cuts


class FillInTheMiddle(CausalLM):
    """Next-token prediction in which the middle of some documents is moved to their end.

    Each piece of a document in a row is cut separately and keeps its length: its last three tokens
    are dropped for the sentinels. A piece that is cut by the row's end loses four, because it gets
    an end of text.
    """

    kind: Literal["FillInTheMiddle"] = "FillInTheMiddle"  # type: ignore[assignment]
    # Share of documents that are rearranged. Up to 0.9, left-to-right loss hardly suffers
    # (arXiv:2207.14255, section 4.1).
    rate: float = Field(default=0.5, ge=0, le=1)
    # Share of rearranged documents in SPM form: the suffix comes first, and the prefix right before
    # the middle.
    spm_rate: float = Field(default=0.5, ge=0, le=1)
    corruption_seed: int = 0  # random seed for the choice of documents and cuts

    def make_corruption(self, encoder: Encoder) -> MovedMiddles:
        """Return the corruption that moves middles.

        Raises DataError if the tokenizer lacks one of the three sentinels, or an end of text.
        """
        prefix, suffix, middle = find_infilling_tokens(encoder)
        special = encoder.special_tokens
        return MovedMiddles(
            rate=self.rate,
            spm_rate=self.spm_rate,
            seed=self.corruption_seed,
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            end=encoder.end_of_text,
            begin=special.begin.id if special.begin else None,
        )


def find_infilling_tokens(encoder: Encoder) -> list[int]:
    """Return the ids of the prefix, suffix and middle sentinels.

    Raises DataError if the tokenizer lacks one of them.
    """
    return need_tokens(encoder, "FillInTheMiddle", (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE))


@dataclass(frozen=True)
class MovedMiddles:
    """Corruption that moves the middle of some documents to their end."""

    rate: float
    spm_rate: float
    seed: int
    # Ids of special tokens.
    prefix: int
    suffix: int
    middle: int
    end: int
    begin: int | None

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the corruption. See `Corruption`."""
        return {"kind": "FillInTheMiddle", **asdict(self)}

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of targets, which does not change: each piece keeps its length."""
        return {TOKENS: int(targets.sum())}

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """Return `micro` with middles moved, in the same shape."""
        ids_BT = micro.ids.copy()
        targets_BT = micro.targets.copy()
        for row, sample in enumerate(micro.samples.tolist()):
            places = micro.pieces[micro.pieces[:, 0] == row, 1]
            self._rearrange(sample, places, ids_BT[row], targets_BT[row])
        return MicroBatch(
            {**micro.arrays, IDS: ids_BT, TARGETS: targets_BT},
            micro.samples,
            micro.sources,
            micro.pieces,
        )

    def _rearrange(self, sample: int, places: Integers, ids: Integers, targets: Integers) -> None:
        """Rearrange in place a row whose pieces begin at `places` [P]."""
        trained = np.flatnonzero(targets != IGNORE)
        if not len(trained):
            return
        length = len(ids)
        row = np.append(ids, targets[-1])
        filled = int(trained[-1]) + 2  # number of ids up to the last target; padding follows
        key = RandomKey(self.seed, "fill in the middle")
        drawn_P4 = draw_uniforms(
            key,
            (places[:, None] * DRAWS + np.arange(DRAWS)).astype(np.int64),
            np.array([[sample]], dtype=np.int64),
        )
        for (begin, past), (chosen, form, *cuts) in zip(
            self._find_pieces(places, row, filled), drawn_P4.tolist(), strict=True
        ):
            whole = (targets[begin : past - 1] != IGNORE).all()
            if chosen < self.rate and whole:
                moved = self._move_middle(row[begin:past], form < self.spm_rate, sorted(cuts))
                if moved is not None:
                    row[begin:past] = moved
        ids[:] = row[:length]
        kept = targets != IGNORE
        targets[kept] = row[1:][kept]

    def _find_pieces(
        self, places: Integers, row: Integers, filled: int
    ) -> Iterator[tuple[int, int]]:
        """Return where each piece begins and ends in `row`."""
        last = len(row) - 1
        if filled > last and row[last - 1] == self.end:
            # the row's last target belongs to a document with no other token in the row
            filled = last
        ends = [*places[1:].tolist(), filled]
        return ((begin, min(end, filled)) for begin, end in zip(places.tolist(), ends, strict=True))

    def _move_middle(self, piece: Integers, spm: bool, cuts: list[float]) -> Integers | None:
        """Return `piece` with its middle at its end, in the same length; None if too short."""
        head = piece[: int(len(piece) > 0 and piece[0] == self.begin)]
        ended = len(piece) > 0 and piece[-1] == self.end
        text = piece[len(head) : len(piece) - ended]
        text = text[: max(0, len(text) - SENTINELS - (not ended))]
        if not len(text):
            return None
        # Each of the len(text) + 1 gaps between tokens, both ends included, is equally likely.
        first, second = (int(cut * (len(text) + 1)) for cut in cuts)
        before = text[:first]
        between = text[first:second]
        after = text[second:]
        if spm:
            parts = [[self.prefix, self.suffix], after, [self.middle], before, between]
        else:
            parts = [[self.prefix], before, [self.suffix], after, [self.middle], between]
        return np.concatenate([head, *parts, [self.end]]).astype(piece.dtype)
