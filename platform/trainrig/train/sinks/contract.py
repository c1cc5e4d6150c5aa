"""What a sink is told of a run, and what it has to be able to do."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainrig.errors import ConfigError


@dataclass(frozen=True)
class ExportedRun:
    """The run whose figures go out."""

    folder: str  # on disk or s3://
    id: str  # drawn when the run began: another run in the same folder has another
    name: str  # for people
    settings: Mapping[str, Any]  # the run file
    # Of a figure's name: that of its family, what its capitals stand for, and what it is.
    describe: Callable[[str], tuple[str, Mapping[str, str], str]]


class SinkWriter(Protocol):
    """Takes the figures of one run, from its one driver. Any method may raise any error: whoever
    calls it opens the sink again later."""

    live: bool  # takes a step as soon as it was taken, not once it counts for good
    sent: int  # the newest step that is there already: it is not sent again

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """The figures of `step`, in ascending order of steps; `seconds` since the epoch."""
        ...

    def close(self) -> None:
        """Return once all of it is there."""
        ...


def need_package(package: str, kind: str, extra: str) -> None:
    """Raise ConfigError if `package`, which the sink `kind` sends with, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"training.metrics.sinks: {kind} needs the package {package}, which is not installed; "
            f"run `pip install 'trainrig[{extra}]'`, or leave that sink out"
        )
