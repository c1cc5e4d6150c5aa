"""The contract of a sink: what it gets from a run, and what it must do."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainrig.errors import ConfigError


@dataclass(frozen=True)
class ExportedRun:
    """Run whose metrics are sent."""

    folder: str  # on disk or s3://
    id: str  # drawn when the run began: another run in the same folder has another id
    name: str  # display name
    settings: Mapping[str, Any]  # content of the run file
    # Maps a metric's name to its family's name, its labels, and its description.
    describe: Callable[[str], tuple[str, Mapping[str, str], str]]


class SinkWriter(Protocol):
    """Writer of the metrics of one run, used by its only driver.

    Any method may raise any error: the caller opens the sink again later.
    """

    live: bool  # True: steps are sent at once, not when they are final
    sent: int  # newest step that the service already has, which is not sent again

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Send the metrics of `step`, in ascending order of steps; `seconds`: since the epoch."""
        ...

    def close(self) -> None:
        """Send everything that is left, and end the connection."""
        ...


def need_package(package: str, kind: str, extra: str) -> None:
    """Raise ConfigError if `package`, which the sink `kind` needs, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"training.metrics.sinks: {kind} needs the package {package}, which is not installed; "
            f"run `pip install 'trainrig[{extra}]'`, or leave that sink out"
        )
