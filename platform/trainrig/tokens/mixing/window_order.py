"""The order in which the windows of one source are read: each once an epoch, at any row length.

A source is N base windows. A row is `span` neighbours of them; spans may change from stage to
stage. So K neighbours, K a multiple of all spans, are kept together as a block, and an epoch is a
permutation of the source's N // K blocks; the N mod K windows after them are never read. With spans
below K, GROUP blocks in the order of the permutation form a group, and the rows of a group are
permuted again, so that what is one text does not come as one.

When a stage ends within a group, the next finishes the group with rows of its own: all those in
which a window is left. What was read of them before is on record, and is not to be trained on
again. So no window repeats within an epoch and none is lost, and what comes before a stage does not
depend on whether it comes. With one span for all (K = 1) an epoch is one permutation of all rows.

Both permutations are computed, not stored (permutation.py); a change of stage holds GROUP x K bits.

Shapes: R rows asked about.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.tokens.permutation import Integers, permute_indices

# Blocks of a group. More make neighbours in a text less likely to meet in one batch; a change of
# stage costs up to this many rows a source that are trained on only in part.
GROUP = 256

WindowFlags = NDArray[np.bool_]


@dataclass(frozen=True)
class WindowBlocks:
    """One source as blocks of base windows, and what its order depends on."""

    source: str
    count: int  # blocks of an epoch
    length: int  # K, base windows of a block
    seed: int

    @property
    def windows(self) -> int:
        """Base windows of an epoch."""
        return self.count * self.length

    @property
    def per_group(self) -> int:
        """Blocks of a group. Those of one row need no order among themselves."""
        return 1 if self.length == 1 else GROUP

    def count_in_group(self, group: int) -> int:
        """Blocks of this group of an epoch; the last one may have fewer than the others."""
        return min(self.per_group, self.count - group * self.per_group)

    def permute_blocks(self, epoch: int, positions: Integers) -> Integers:
        """[R] the blocks at `positions` of an epoch."""
        return permute_indices(positions, self.count, f"{self.seed}\n{epoch}\n{self.source}")

    def group_order(self, epoch: int, group: int, span: int, places: Integers) -> Integers:
        """[R] which of a group's rows, numbered in the order of its blocks, are at `places`."""
        rows = self.count_in_group(group) * (self.length // span)
        if rows == 1:
            return np.zeros_like(places)
        return permute_indices(
            places, rows, f"{self.seed}\n{epoch}\n{self.source}\n{group}\n{span}"
        )


@dataclass(frozen=True)
class ReadPosition:
    """How far a source was read: all groups of all epochs before this one, and part of it."""

    epoch: int
    group: int
    read: WindowFlags  # [blocks of the group, K]

    @classmethod
    def at(cls, blocks: WindowBlocks, epoch: int, group: int) -> "ReadPosition":
        """Nothing of this group read yet."""
        return cls(
            epoch, group, np.zeros((blocks.count_in_group(group), blocks.length), dtype=np.bool_)
        )

    def count_windows(self, blocks: WindowBlocks) -> int:
        """Base windows read since the run began."""
        before = self.epoch * blocks.count + self.group * blocks.per_group
        return before * blocks.length + int(self.read.sum())


@dataclass(frozen=True)
class RowStarts:
    """Where some rows of a source begin."""

    epochs: Integers  # [R]
    windows: Integers  # [R] the first base window of each
    read: WindowFlags  # [R, span] base windows that an earlier row of the epoch trained on


@dataclass(frozen=True)
class SourceStage:
    """The rows of one source in one stage, numbered from 0."""

    blocks: WindowBlocks
    span: int  # base windows of a row
    begun: ReadPosition

    @functools.cached_property
    def _left(self) -> tuple[Integers, WindowFlags]:
        """Of the group in which the stage begins, in their order: the rows with a window left, as
        [R] numbers in the group, and [R, span] what was read of them."""
        count = self.begun.read.size // self.span
        order = self.blocks.group_order(
            self.begun.epoch, self.begun.group, self.span, np.arange(count)
        )
        read = self.begun.read.reshape(count, self.span)[order]
        some_left = ~read.all(axis=1)
        return order[some_left], read[some_left]

    @functools.cached_property
    def _new(self) -> Integers:
        """[R + 1] base windows trained on for the first time in the first rows of `_left`."""
        return np.append(0, (~self._left[1]).sum(axis=1).cumsum())

    def find_rows(self, ordinals: Integers) -> RowStarts:
        """The rows of these numbers."""
        left, _ = self._left
        late = ordinals >= len(left)
        epochs, groups, numbers = self._locate_after_left(np.maximum(ordinals - len(left), 0))
        epochs[~late], groups[~late] = self.begun.epoch, self.begun.group
        numbers[~late] = left[ordinals[~late]]
        for epoch, group in np.unique(np.stack([epochs, groups])[:, late], axis=1).T.tolist():
            of = late & (epochs == epoch) & (groups == group)
            numbers[of] = self.blocks.group_order(epoch, group, self.span, numbers[of])
        return RowStarts(
            epochs, self._find_windows(epochs, groups, numbers), self._build_flags(ordinals, late)
        )

    def _build_flags(self, ordinals: Integers, late: WindowFlags) -> WindowFlags:
        flags = np.zeros((len(ordinals), self.span), dtype=np.bool_)
        flags[~late] = self._left[1][ordinals[~late]]
        return flags

    def _locate_after_left(self, ordinals: Integers) -> tuple[Integers, Integers, Integers]:
        """[R] each: epoch, group and place in it of rows numbered from the end of `_left`."""
        per_block = self.blocks.length // self.span
        per_group = self.blocks.per_group * per_block
        per_epoch = self.blocks.count * per_block
        begun_rows = self.begun.epoch * per_epoch
        begun_rows += min((self.begun.group + 1) * per_group, per_epoch)
        epochs, places = np.divmod(ordinals + begun_rows, per_epoch)
        return epochs, *np.divmod(places, per_group)

    def _find_windows(self, epochs: Integers, groups: Integers, numbers: Integers) -> Integers:
        blocks, parts = np.divmod(numbers, self.blocks.length // self.span)
        blocks += groups * self.blocks.per_group
        for epoch in set(epochs.tolist()):
            of = epochs == epoch
            blocks[of] = self.blocks.permute_blocks(epoch, blocks[of])
        windows: Integers = blocks * self.blocks.length + parts * self.span
        return windows

    def find_position_after(self, count: int) -> ReadPosition:
        """How far the source is read after the first `count` rows."""
        left, _ = self._left
        if count < len(left):
            return self._with(self.begun, left[:count])
        (epoch,), (group,), (place,) = (
            each.tolist() for each in self._locate_after_left(np.array([count - len(left)]))
        )
        fresh = ReadPosition.at(self.blocks, epoch, group)
        order = self.blocks.group_order(epoch, group, self.span, np.arange(place))
        return self._with(fresh, order)

    def _with(self, progress: ReadPosition, rows: Integers) -> ReadPosition:
        read = progress.read.reshape(-1, self.span).copy()
        read[rows] = True
        return dataclasses.replace(progress, read=read.reshape(progress.read.shape))

    def count_windows_after(self, count: int) -> int:
        """Base windows of the source trained on, since the run began, after `count` rows."""
        new = self._new
        begun = self.begun.count_windows(self.blocks)
        if count < len(new):
            return begun + int(new[count])
        return begun + int(new[-1]) + (count - len(new) + 1) * self.span

    def count_rows_within(self, epochs: float) -> int | None:
        """How many rows there are until more than `epochs` epochs since the run began would be
        trained on; None: without end."""
        if math.isinf(epochs):
            return None
        room = math.floor(epochs * self.blocks.windows) - self.begun.count_windows(self.blocks)
        if room <= 0:
            return 0
        if room < self._new[-1]:
            return int(np.searchsorted(self._new, room, side="right")) - 1
        return len(self._new) - 1 + (room - int(self._new[-1])) // self.span
