"""The interface of all packings, through which rows are read.

A row of T positions takes T + 1 ids: the target of each position is the id after it. A layout
divides each source into base windows, numbered from 0. A row is one base window, or several
adjacent ones. Which row is read at which step is decided elsewhere (mixing/).

Shapes: T positions of a base window, B rows of a call, P pieces of documents in one row.
"""

from typing import Protocol

from trainrig.tokens.permutation import Integers


class Layout(Protocol):
    """A packing of the documents in one folder of shards, in base windows of one length."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the plan that the layout reads; empty if it needs no plan."""
        ...

    def windows(self, source: str) -> int:
        """Return the number of base windows in one epoch of `source`."""
        ...

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return [B] the number of targets in the row that begins at each window, without ids.

        Rows have `span` base windows. Only positions that are trained on count.
        """
        ...

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row of `span` base windows, from `window` on.

        `ids` and `targets` are [span * T] and must not overlap in memory; a target that is not
        trained on becomes IGNORE. Returns [P, 2], ascending: the position in the row at which each
        piece of a document begins, and the document's number in its source. The first piece is at
        position 0, even if its document began in an earlier row. Raises IndexError for windows
        that `source` does not have.
        """
        ...


def check_windows(source: str, window: int, span: int, windows: int) -> None:
    """Raise IndexError unless the `span` windows from `window` on exist, of `windows` in all."""
    if not 0 <= window < window + span <= windows:
        raise IndexError(f"{source}: windows {window} to {window + span} of {windows}")
