"""How many workers a run may have: `workers = 4`, or `workers = [2, 8]` for whatever there is."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from trainrig.config import NOT_IDENTITY


@dataclass(frozen=True)
class WorkerBounds:
    """The fewest and the most workers of a run, both multiples of `multiple`."""

    least: int
    most: int
    multiple: int = 1  # workers that come and go together

    def fit_within(self, room: int) -> int | None:
        """The most workers that `room` for so many leaves; None if there is too little."""
        whole = min(self.most, room) // self.multiple * self.multiple
        return whole if whole >= self.least else None

    def __str__(self) -> str:
        """As a run file says it."""
        return str(self.least) if self.least == self.most else f"[{self.least}, {self.most}]"


def parse_bounds(workers: int | tuple[int, int], multiple: int = 1) -> WorkerBounds:
    """What the `workers` of a run file mean, of which `multiple` come and go together."""
    least, most = workers if isinstance(workers, tuple) else (workers, workers)
    return WorkerBounds(least, most, multiple)


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
