"""Run-file settings for workers: their number, and how a run handles their failures.

`workers = 4` is a fixed number, `workers = [2, 8]` the limits of an elastic run.
`[training.faults]` says how long to wait and when to give up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from trainrig.config import NOT_IDENTITY, Settings


@dataclass(frozen=True)
class WorkerBounds:
    """Smallest and largest number of workers of a run, in multiples of a layout's unit."""

    least: int
    most: int
    # Workers of one replica, which are added and removed together: in the run's own layout, then in
    # each fallback layout, which are used when the workers are too few for those before.
    multiples: tuple[int, ...] = (1,)

    def fit_within(self, room: int) -> int | None:
        """Return the largest usable number of workers among `room`, in the first layout that fits.

        Returns None if no layout has `least` workers there.
        """
        for multiple in self.multiples:
            whole = min(self.most, room) // multiple * multiple
            if whole >= self.least:
                return whole
        return None

    def find_layout(self, workers: int) -> int:
        """Return the index of the layout that a run with `workers` uses.

        0 is the run's own layout; then come its fallbacks. `workers` must be a number that
        `fit_within` returns. The first layout that divides it is the one.
        """
        return next(n for n, multiple in enumerate(self.multiples) if workers % multiple == 0)

    def list_sizes(self) -> list[list[int]]:
        """Return the numbers of workers that each layout may be used with, ascending."""
        found: list[list[int]] = [[] for _ in self.multiples]
        sizes = {self.fit_within(room) for room in range(self.least, self.most + 1)}
        for size in sorted(size for size in sizes if size is not None):
            found[self.find_layout(size)].append(size)
        return found

    def __str__(self) -> str:
        """Return the limits as a run file has them."""
        return str(self.least) if self.least == self.most else f"[{self.least}, {self.most}]"


def parse_bounds(workers: int | tuple[int, int], multiples: Sequence[int] = (1,)) -> WorkerBounds:
    """Parse the `workers` of a run file; `multiples` are the workers of a replica by layout."""
    least, most = workers if isinstance(workers, tuple) else (workers, workers)
    return WorkerBounds(least, most, tuple(multiples))


def check_fallbacks(bounds: WorkerBounds) -> None:
    """Raise ValueError unless the fewest workers fit a layout and every fallback can be used."""
    if bounds.fit_within(bounds.least) != bounds.least:
        units = bounds.multiples
        nearest = sorted({max(bounds.least // unit, 1) * unit for unit in units})
        raise ValueError(
            f"workers: the minimum ({bounds.least}) is not a multiple of the replica size of any "
            "layout; "
            f"use {' or '.join(map(str, nearest))}"
        )
    sizes = bounds.list_sizes()
    for number in range(1, len(sizes)):
        if not sizes[number]:
            raise ValueError(
                f"training.fallbacks[{number - 1}] is never used: workers = {bounds} "
                "always has space for a replica of an earlier layout; lower the minimum "
                f"to {bounds.multiples[number]}, or leave it out"
            )


def _check_workers(written: Any) -> Any:
    """Return `written` if it is a number or a pair of numbers of workers; raise ValueError if not.

    pydantic alone would list the errors of both forms one after the other.
    """
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


class Faults(Settings):
    """Handling of worker failures and stop requests in a run. All times are in seconds."""

    # Restarts allowed without a new checkpoint between them. One more failure ends the run.
    max_restarts: Annotated[int, NOT_IDENTITY] = Field(default=5, ge=0)
    # Failed attempts caused by one node (a rank died there, or its device broke) after which the
    # run no longer uses that node, as long as enough workers fit on the others.
    quarantine_after: Annotated[int, NOT_IDENTITY] = Field(default=3, ge=1)
    # Seconds to wait before the second restart without a new checkpoint; doubled for each further
    # one. The first restart does not wait.
    back_off: Annotated[float, NOT_IDENTITY] = Field(default=1.0, ge=0)
    # Upper limit of `back_off`, in seconds.
    longest_back_off: Annotated[float, NOT_IDENTITY] = Field(default=60.0, ge=0)
    # Seconds that a collective operation waits for a rank before the attempt fails.
    collective_timeout: Annotated[float, NOT_IDENTITY] = Field(default=60.0, gt=0)
    # Seconds without progress of a rank before its attempt is killed. The limit is the larger of
    # this and `hang_steps`.
    hang_seconds: Annotated[float, NOT_IDENTITY] = Field(default=30.0, gt=0)
    # Time without progress of a rank before its attempt is killed, in usual step times. The limit
    # is the larger of this and `hang_seconds`.
    hang_steps: Annotated[float, NOT_IDENTITY] = Field(default=10.0, gt=1)
    # Seconds allowed for the first step, save or evaluation of an attempt, which may include
    # compilation and memory allocation.
    start_limit: Annotated[float, NOT_IDENTITY] = Field(default=600.0, gt=0)
    # Seconds between a stop request and the kill. Clouds give about as much notice before they take
    # a machine back.
    grace: Annotated[float, NOT_IDENTITY] = Field(default=30.0, gt=0)
    # Seconds that additional nodes must stay before the run moves to the larger cluster: nodes
    # often arrive in groups.
    settle: Annotated[float, NOT_IDENTITY] = Field(default=1.0, ge=0)
    # Seconds to wait with fewer nodes than `workers` needs before the run gives up.
    wait_for_nodes: Annotated[float, NOT_IDENTITY] = Field(default=1800.0, ge=0)
