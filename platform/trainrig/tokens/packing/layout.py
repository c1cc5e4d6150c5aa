"""What every packing offers to those who read rows.

A row of T positions takes T + 1 ids: each position's target is the id after it. A layout cuts each
source into base windows, which are numbered; a row is one of them, or several neighbours. Which row
is read when is not its business (mixing/).

Shapes: T positions of a base window, B rows asked about, P pieces of documents in one row.
"""

from typing import Protocol

from trainrig.tokens.permutation import Integers


class Layout(Protocol):
    """One packing of the documents of one folder of shards, in base windows of one length."""

    @property
    def fingerprint(self) -> str:
        """Of the plan that the layout reads; empty when rows follow from the shards alone."""
        ...

    def windows(self, source: str) -> int:
        """Base windows that an epoch of `source` has."""
        ...

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """[B] targets trained on in the row that begins at each of `windows`; reads no ids."""
        ...

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row: `span` base windows from `window` on.

        `ids`, `targets`: [span * T], apart in memory; a target is IGNORE where not trained on.
        Returns [P, 2], ascending: where in the row each piece of a document begins, and the number
        of that document in its source. The first is at place 0, also when its document began
        before. Raises IndexError for windows that `source` does not have.
        """
        ...


def check_windows(source: str, window: int, span: int, windows: int) -> None:
    """Raise IndexError unless `span` windows from `window` on are among the `windows` there are."""
    if not 0 <= window < window + span <= windows:
        raise IndexError(f"{source}: windows {window} to {window + span} of {windows}")
