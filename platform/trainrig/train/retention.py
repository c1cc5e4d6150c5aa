"""Run-file settings for checkpoints: when they are saved, and which are kept."""

from collections.abc import Iterable, Set
from typing import Annotated

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, Settings


class Checkpoints(Settings):
    """When a run saves checkpoints, which of them it keeps, and where."""

    # Steps between checkpoints. The last step is always saved.
    every: int = Field(default=100, ge=1)
    # Number of newest checkpoints to keep; at least two, in case the newest is damaged.
    keep: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=2)
    # Checkpoints at multiples of this many steps are saved and kept permanently; None keeps none.
    keep_every: Annotated[int | None, NOT_IDENTITY] = Field(default=None, ge=1)
    # Steps whose checkpoints are saved and kept permanently, such as branching points of other
    # runs.
    keep_at: Annotated[tuple[int, ...], NOT_IDENTITY] = ()
    # Steps between additional short-lived checkpoints. Only the newest of them is kept, until the
    # next regular checkpoint; None saves none.
    short_lived_every: Annotated[int | None, NOT_IDENTITY] = Field(default=None, ge=1)
    # Another disk or bucket that receives a copy of each checkpoint. If the run folder has no
    # checkpoint, the run resumes from there; None makes no copies.
    copy_to: Annotated[str | None, OUTPUT] = None
    # Consecutive saves that may fail (full disk, rejected upload) before the run ends.
    failures: Annotated[int, NOT_IDENTITY] = Field(default=1, ge=0)

    def due(self, step: int, last: int) -> bool:
        """Return whether a run of `last` steps saves a checkpoint after `step`."""
        intervals = (self.every, self.keep_every, self.short_lived_every)
        wanted = step == last or step in self.keep_at
        return wanted or any(interval and step % interval == 0 for interval in intervals)

    def select_kept(
        self, steps: Iterable[int], held: Set[int] = frozenset(), passing: Set[int] = frozenset()
    ) -> set[int]:
        """Return the steps whose checkpoints are kept, among `steps` with complete checkpoints.

        The newest is always kept, and the one before it if no other is kept.

        `held`: steps whose checkpoints are still needed, for example by an evaluation in progress.
        `passing`: steps that were saved only for evaluations; they do not count among the `keep`
        newest.
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
