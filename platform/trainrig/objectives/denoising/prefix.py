"""Prefix language modelling: a decoder reads the beginning of a text and predicts the rest.

Raffel et al. 2019, arXiv:1910.10683, section 3.2.1 and figure 4, right: the tokens of the prefix
attend to one another in both directions, later tokens to all before them, and only later tokens
have a loss.

Shapes: B rows of a micro-batch, T positions, R rows, N targets of a row, P documents in one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_interface import DeviceBatch, Output, mark_text
from trainrig.objectives.objective_settings import NO_AXES, Axis, RowWork
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import IDS, IGNORE, POSITIONS, PREFIXES, TARGETS, TOKENS, MicroBatch
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.encode import Encoder

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import nn

    from trainrig.tokens.rows.packing import Packing


class PrefixLM(CausalLM):
    """Cross-entropy of the tokens after a prefix with bidirectional attention.

    It is averaged over those targets of the global batch. All documents of a row are cut at the
    same share of their length, each separately where attention does not cross documents; otherwise
    the row is one text.
    """

    axes: ClassVar[frozenset[Axis]] = NO_AXES

    kind: Literal["PrefixLM"] = "PrefixLM"  # type: ignore[assignment]  # not the base class's kind
    # Number of targets of each row that belong to prefixes and have no loss. None: drawn for each
    # row, uniformly over all numbers that leave at least one target.
    prefix_tokens: int | None = Field(default=None, ge=0)
    corruption_seed: int = 0  # random seed for the cuts

    def make_corruption(self, encoder: Encoder) -> Prefixes:
        """Return the corruption that cuts rows; it needs no special tokens."""
        return Prefixes(self.prefix_tokens, self.corruption_seed)

    @property
    def marks_prefixes(self) -> bool:
        """True."""
        return True

    def check_rows(self, shortest: int, packing: Packing) -> None:
        """Raise ValueError if rows of `shortest` tokens have nothing after their prefix."""
        if self.prefix_tokens is not None and self.prefix_tokens >= shortest:
            raise ValueError(
                f"objective.prefix_tokens ({self.prefix_tokens}) leaves nothing to predict in rows "
                f"of {shortest} tokens; set at most {shortest - 1}, or remove it"
            )

    def describe_row(self, length: int) -> str:
        """Return the mean numbers of tokens in the prefix and after it."""
        said = self.compute_trained_share(length) * length
        read = f"{length - said:g} seen in both directions and {said:g} predicted, on average"
        return f"{length} positions: {read}"

    def measure_work(self, length: int, steps: int) -> RowWork:
        """Return the work for a row of `length` tokens that is one text."""
        return RowWork(length, self.compute_trained_share(length), self.keys_ahead(length))

    def compute_trained_share(self, length: int) -> float:
        """Return the mean share of targets of rows of `length` tokens that have a loss."""
        return 1 - self._mean_prefix(length) / length

    def keys_ahead(self, length: int) -> float:
        """Return the mean number of keys after a query's own position that it attends to.

        For rows of `length` tokens that are one text.
        """
        if self.prefix_tokens is None:  # p (p - 1) / 2 per row, with p = 1 … T equally likely
            return (length**2 - 1) / (6 * length)
        return self.prefix_tokens * (self.prefix_tokens + 1) / (2 * length)

    def _mean_prefix(self, length: int) -> float:
        return (length - 1) / 2 if self.prefix_tokens is None else self.prefix_tokens

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """Return the model output for `batch`; its logits predict each position's target."""
        arrays = batch.arrays
        output: Output = model(
            arrays[IDS],
            positions_BT=arrays.get(POSITIONS),
            prefixes_BT=arrays[PREFIXES],
            **mark_text(model, batch),
        )
        return output


@dataclass(frozen=True)
class Prefixes:
    """Corruption that removes the targets of a prefix of each document."""

    tokens: int | None
    seed: int

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the corruption. See `Corruption`."""
        return {"kind": "PrefixLM", **asdict(self)}

    def count_prefix(self, samples: Integers, targets: Integers) -> Integers:
        """Return how many of each row's `targets` belong to its prefixes, as integers [R].

        At least one target remains in a row that has any.
        """
        if self.tokens is not None:
            return np.minimum(self.tokens, np.maximum(targets - 1, 0))
        drawn = draw_uniforms(RandomKey(self.seed, "prefixes"), np.zeros_like(samples), samples)
        return np.floor(drawn * targets).astype(np.int64)

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of remaining targets. See `Corruption`."""
        return {TOKENS: int((targets - self.count_prefix(samples, targets)).sum())}

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """Return `micro` in the same shape, with the array PREFIXES."""
        targets_BT = micro.targets.copy()
        prefixes_BT = np.zeros(targets_BT.shape, dtype=np.bool_)
        counts_B = self.count_prefix(micro.samples, (targets_BT != IGNORE).sum(1))
        length = targets_BT.shape[1]
        for row, count in enumerate(counts_B.tolist()):
            trained = np.flatnonzero(targets_BT[row] != IGNORE)
            begins = np.zeros(1, dtype=np.int64)
            if micro.positions is not None:
                begins = micro.pieces[micro.pieces[:, 0] == row, 1]
            ends = np.append(begins[1:], length)
            # [P] number of targets up to the end of each document
            past = np.searchsorted(trained, ends)
            first = np.searchsorted(trained, begins)
            # Each document gets its part of `count` by its number of targets, rounded so that the
            # parts add up.
            whole = max(len(trained), 1)
            taken = count * past // whole - count * first // whole
            for begin, end, at, prefix in zip(
                begins.tolist(), ends.tolist(), first.tolist(), taken.tolist(), strict=True
            ):
                if prefix:
                    left_out = trained[at : at + prefix]
                    targets_BT[row, left_out] = IGNORE
                    # The last removed target is the id one position later, the last of the prefix.
                    prefixes_BT[row, begin : min(int(left_out[-1]) + 2, end)] = True
        arrays = {**micro.arrays, TARGETS: targets_BT, PREFIXES: prefixes_BT}
        return MicroBatch(arrays, micro.samples, micro.sources, micro.pieces)
