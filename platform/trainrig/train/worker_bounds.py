"""How many workers a run may have: `workers = 4`, or `workers = [2, 8]` for whatever there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from trainrig.config import NOT_IDENTITY


@dataclass(frozen=True)
class WorkerBounds:
    """The fewest and the most workers of a run, multiples of one of `multiples`."""

    least: int
    most: int
    # Workers that come and go together: in the run's layout, then in each that it falls back on
    # where there are too few for those before.
    multiples: tuple[int, ...] = (1,)

    def fit_within(self, room: int) -> int | None:
        """The workers that `room` for so many leaves, as many as the first layout takes that has
        enough in it; None if there is too little for any."""
        for multiple in self.multiples:
            whole = min(self.most, room) // multiple * multiple
            if whole >= self.least:
                return whole
        return None

    def find_layout(self, workers: int) -> int:
        """In which layout a run has so many `workers`, of those that `fit_within` gives: 0 for its
        own, then those it falls back on. A layout has what the ones before it cannot be of."""
        return next(n for n, each in enumerate(self.multiples) if workers % each == 0)

    def list_sizes(self) -> list[list[int]]:
        """The numbers of workers that each layout may come to have, ascending."""
        found: list[list[int]] = [[] for _ in self.multiples]
        sizes = {self.fit_within(room) for room in range(self.least, self.most + 1)}
        for size in sorted(size for size in sizes if size is not None):
            found[self.find_layout(size)].append(size)
        return found

    def __str__(self) -> str:
        """As a run file says it."""
        return str(self.least) if self.least == self.most else f"[{self.least}, {self.most}]"


def parse_bounds(workers: int | tuple[int, int], multiples: Sequence[int] = (1,)) -> WorkerBounds:
    """What the `workers` of a run file mean, of which one of `multiples` come and go together."""
    least, most = workers if isinstance(workers, tuple) else (workers, workers)
    return WorkerBounds(least, most, tuple(multiples))


def check_fallbacks(bounds: WorkerBounds) -> None:
    """Raise ValueError unless the fewest workers can be laid out, and each layout to fall back on
    comes to be used."""
    if bounds.fit_within(bounds.least) != bounds.least:
        units = bounds.multiples
        nearest = sorted({max(bounds.least // each, 1) * each for each in units})
        raise ValueError(
            f"workers: the fewest ({bounds.least}) are no whole number of replicas of any layout; "
            f"use {' or '.join(map(str, nearest))}"
        )
    sizes = bounds.list_sizes()
    for number in range(1, len(sizes)):
        if not sizes[number]:
            raise ValueError(
                f"training.fallbacks[{number - 1}] is never used: workers = {bounds} has room for "
                "a replica of a layout before it at all times; lower the fewest to "
                f"{bounds.multiples[number]}, or leave it out"
            )


def _check_workers(written: Any) -> Any:
    """What is neither is refused here: pydantic would name the two forms one after the other."""
    numbers = written if isinstance(written, list | tuple) and len(written) == 2 else [written]
    shown = list(written) if isinstance(written, tuple) else repr(written)
    if not all(type(number) is int for number in numbers) or not 1 <= numbers[0] <= numbers[-1]:
        raise ValueError(
            f"should be 1 or more, or [fewest, most] with 1 <= fewest <= most, not {shown}"
        )
    return written


Workers = Annotated[int | tuple[int, int], NOT_IDENTITY, BeforeValidator(_check_workers)]


def _check_extra_workers(written: Any) -> Any:
    if written == 0 and type(written) is int:
        return written
    try:
        return _check_workers(written)
    except ValueError as error:
        raise ValueError(f"{error}; 0 for none") from None


ExtraWorkers = Annotated[int | tuple[int, int], NOT_IDENTITY, BeforeValidator(_check_extra_workers)]
