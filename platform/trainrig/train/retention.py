"""When a run saves itself, and which of its checkpoints stay."""

from collections.abc import Iterable, Set
from typing import Annotated

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, Settings


class Checkpoints(Settings):
    """When a run saves itself, what it keeps, and where."""

    # Steps between checkpoints; the last step always makes one.
    every: int = Field(default=100, ge=1)
    # Newest checkpoints to keep; at least two, should the newest prove damaged.
    keep: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=2)
    # Steps whose multiples make checkpoints that are kept for good; None: no such ones.
    keep_every: Annotated[int | None, NOT_IDENTITY] = Field(default=None, ge=1)
    # Steps that make checkpoints which are kept for good: where other runs branch from this one.
    keep_at: Annotated[tuple[int, ...], NOT_IDENTITY] = ()
    # Steps between further checkpoints, of which only the newest is kept until one of `every`
    # follows; None: no such ones.
    short_lived_every: Annotated[int | None, NOT_IDENTITY] = Field(default=None, ge=1)
    # Another disk or bucket that gets a copy of each checkpoint, to resume from if the run folder
    # has none; None: no copies.
    copy_to: Annotated[str | None, OUTPUT] = None
    # Saves in a row that may fail (a full disk, a bucket that refuses) before the run ends.
    failures: Annotated[int, NOT_IDENTITY] = Field(default=1, ge=0)

    def due(self, step: int, last: int) -> bool:
        """Whether a run of `last` steps saves itself after `step`."""
        intervals = (self.every, self.keep_every, self.short_lived_every)
        wanted = step == last or step in self.keep_at
        return wanted or any(each and step % each == 0 for each in intervals)

    def select_kept(
        self, steps: Iterable[int], held: Set[int] = frozenset(), passing: Set[int] = frozenset()
    ) -> set[int]:
        """Which of the checkpoints at `steps` stay. All of `steps` are taken to be whole.

        `held`: those that are wanted for something else. `passing`: those that were made for
        something else alone, which take no place of the newest; but the newest of all stays.
        """
        ordered = sorted(set(steps), reverse=True)
        for_good = {s for s in ordered if self.keep_every and s % self.keep_every == 0}
        for_good |= set(self.keep_at).intersection(ordered)
        regular = [s for s in ordered if not self._is_short_lived(s) and s not in passing]
        kept = (
            for_good
            | set(ordered).intersection(held)
            | set(ordered[:1])
            | set(regular[: self.keep])
        )
        return kept if len(kept) > 1 else kept | set(ordered[:2])

    def _is_short_lived(self, step: int) -> bool:
        if self.short_lived_every is None or step % self.short_lived_every != 0:
            return False
        return step % self.every != 0
