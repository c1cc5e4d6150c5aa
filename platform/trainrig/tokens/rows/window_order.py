"""The order in which a source's windows are read: each once an epoch, for any row length.

A source is N base windows. A row consists of `span` adjacent windows; stages may have different
spans. K adjacent windows, where K is a multiple of all spans, form a block. An epoch is a
permutation of the source's N // K blocks; the N mod K windows after the last block are never read.
With spans below K, each GROUP blocks that follow each other in the permutation form a group, and
the rows of a group are permuted again. Otherwise the rows of a block, which are adjacent text,
would be read one after another.

If a stage ends inside a group, the next stage finishes the group with rows of its own length: all
rows that have an unread window. Windows that were read before are recorded, and are not trained on
again. So within an epoch no window is repeated or lost, and the order before a stage does not
depend on whether the stage exists. If all rows have the same span (K = 1), an epoch is one
permutation of all rows.

Both permutations are computed, not stored (permutation.py). A change of stage stores GROUP x K
bits.

Shapes: R rows of a call.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.tokens.permutation import Integers, permute_indices

# Blocks in a group. With more, adjacent rows of a text are less likely to be in the same batch. But
# after a change of stage, up to this many rows of each source are only partly trained on.
GROUP = 256

WindowFlags = NDArray[np.bool_]


@dataclass(frozen=True)
class WindowBlocks:
    """A source divided into blocks of base windows, with the random seed of its order."""

    source: str
    count: int  # blocks in an epoch
    length: int  # K, base windows in a block
    seed: int

    @property
    def windows(self) -> int:
        """Number of base windows in an epoch."""
        return self.count * self.length

    @property
    def per_group(self) -> int:
        """Number of blocks in a group; blocks of a single row need no permutation in groups."""
        return 1 if self.length == 1 else GROUP

    def count_in_group(self, group: int) -> int:
        """Return the number of blocks in a group of an epoch; the last group may be smaller."""
        return min(self.per_group, self.count - group * self.per_group)

    def permute_blocks(self, epoch: int, positions: Integers) -> Integers:
        """Return [R] the blocks at `positions` of an epoch's permutation."""
        return permute_indices(positions, self.count, f"{self.seed}\n{epoch}\n{self.source}")

    def group_order(self, epoch: int, group: int, span: int, places: Integers) -> Integers:
        """Return [R] the rows at `places` of a group's order.

        Rows of a group are numbered in the order of its blocks.
        """
        rows = self.count_in_group(group) * (self.length // span)
        if rows == 1:
            return np.zeros_like(places)
        return permute_indices(
            places, rows, f"{self.seed}\n{epoch}\n{self.source}\n{group}\n{span}"
        )


@dataclass(frozen=True)
class ReadPosition:
    """The position up to which a source was read: all earlier groups, and part of this one."""

    epoch: int
    group: int
    read: WindowFlags  # [blocks of the group, K] whether each base window was read

    @classmethod
    def at(cls, blocks: WindowBlocks, epoch: int, group: int) -> "ReadPosition":
        """Return the position at the start of a group, with no window read."""
        return cls(
            epoch, group, np.zeros((blocks.count_in_group(group), blocks.length), dtype=np.bool_)
        )

    def count_windows(self, blocks: WindowBlocks) -> int:
        """Return the number of base windows that were read since the start of the run."""
        before = self.epoch * blocks.count + self.group * blocks.per_group
        return before * blocks.length + int(self.read.sum())


@dataclass(frozen=True)
class RowStarts:
    """The positions of R rows of a source."""

    epochs: Integers  # [R] epoch of each row
    windows: Integers  # [R] first base window of each row
    read: WindowFlags  # [R, span] windows that an earlier row of the epoch has trained on


@dataclass(frozen=True)
class SourceStage:
    """The rows of one source in one stage, numbered from 0 in the order of reading."""

    blocks: WindowBlocks
    span: int  # base windows in a row
    start_position: ReadPosition

    @functools.cached_property
    def _remaining(self) -> tuple[Integers, WindowFlags]:
        """Rows that remain of the group in which the stage begins, in the order of reading.

        Returns [R] the rows' numbers in the group, and [R, span] which windows were read before.
        """
        count = self.start_position.read.size // self.span
        order = self.blocks.group_order(
            self.start_position.epoch, self.start_position.group, self.span, np.arange(count)
        )
        read = self.start_position.read.reshape(count, self.span)[order]
        is_unread = ~read.all(axis=1)
        return order[is_unread], read[is_unread]

    @functools.cached_property
    def _new_windows(self) -> Integers:
        """[R + 1] Cumulative number of new base windows in the first rows of `_remaining`."""
        return np.append(0, (~self._remaining[1]).sum(axis=1).cumsum())

    def find_rows(self, ordinals: Integers) -> RowStarts:
        """Return the positions of the stage's rows `ordinals`."""
        left, _ = self._remaining
        late = ordinals >= len(left)
        epochs, groups, numbers = self._locate_after_remaining(np.maximum(ordinals - len(left), 0))
        epochs[~late] = self.start_position.epoch
        groups[~late] = self.start_position.group
        numbers[~late] = left[ordinals[~late]]
        for epoch, group in np.unique(np.stack([epochs, groups])[:, late], axis=1).T.tolist():
            selected = late & (epochs == epoch) & (groups == group)
            numbers[selected] = self.blocks.group_order(epoch, group, self.span, numbers[selected])
        return RowStarts(
            epochs, self._find_windows(epochs, groups, numbers), self._build_flags(ordinals, late)
        )

    def _build_flags(self, ordinals: Integers, late: WindowFlags) -> WindowFlags:
        flags = np.zeros((len(ordinals), self.span), dtype=np.bool_)
        flags[~late] = self._remaining[1][ordinals[~late]]
        return flags

    def _locate_after_remaining(self, ordinals: Integers) -> tuple[Integers, Integers, Integers]:
        """Return [R] epochs, groups and places in the group of rows counted after `_remaining`."""
        per_block = self.blocks.length // self.span
        per_group = self.blocks.per_group * per_block
        per_epoch = self.blocks.count * per_block
        begun_rows = self.start_position.epoch * per_epoch
        begun_rows += min((self.start_position.group + 1) * per_group, per_epoch)
        epochs, places = np.divmod(ordinals + begun_rows, per_epoch)
        return epochs, *np.divmod(places, per_group)

    def _find_windows(self, epochs: Integers, groups: Integers, numbers: Integers) -> Integers:
        blocks, parts = np.divmod(numbers, self.blocks.length // self.span)
        blocks += groups * self.blocks.per_group
        for epoch in set(epochs.tolist()):
            selected = epochs == epoch
            blocks[selected] = self.blocks.permute_blocks(epoch, blocks[selected])
        windows: Integers = blocks * self.blocks.length + parts * self.span
        return windows

    def find_position_after(self, count: int) -> ReadPosition:
        """Return the position of the source after the first `count` rows of the stage."""
        left, _ = self._remaining
        if count < len(left):
            return self._mark_read(self.start_position, left[:count])
        (epoch,), (group,), (place,) = (
            array.tolist() for array in self._locate_after_remaining(np.array([count - len(left)]))
        )
        fresh = ReadPosition.at(self.blocks, epoch, group)
        order = self.blocks.group_order(epoch, group, self.span, np.arange(place))
        return self._mark_read(fresh, order)

    def _mark_read(self, progress: ReadPosition, rows: Integers) -> ReadPosition:
        read = progress.read.reshape(-1, self.span).copy()
        read[rows] = True
        return dataclasses.replace(progress, read=read.reshape(progress.read.shape))

    def count_windows_after(self, count: int) -> int:
        """Return the base windows trained on from the start of the run to `count` rows here."""
        new = self._new_windows
        read_before = self.start_position.count_windows(self.blocks)
        if count < len(new):
            return read_before + int(new[count])
        return read_before + int(new[-1]) + (count - len(new) + 1) * self.span

    def count_rows_within(self, epochs: float) -> int | None:
        """Return how many rows of the stage fit within `epochs` epochs since the run's start.

        None means that there is no limit.
        """
        if math.isinf(epochs):
            return None
        room = math.floor(epochs * self.blocks.windows) - self.start_position.count_windows(
            self.blocks
        )
        if room <= 0:
            return 0
        if room < self._new_windows[-1]:
            return int(np.searchsorted(self._new_windows, room, side="right")) - 1
        return len(self._new_windows) - 1 + (room - int(self._new_windows[-1])) // self.span
