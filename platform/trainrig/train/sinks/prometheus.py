"""Prometheus, by the metrics that each node of Ray exports for it.

A gauge holds the newest value alone: Prometheus asks for it when it likes, and puts its own time to
it. A family of figures, as one a layer, is one gauge with a label.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from trainrig.config import Settings
from trainrig.train.sinks.contract import ExportedRun

_REFUSED = re.compile(r"[^a-z0-9]+")  # in names of gauges


class Prometheus(Settings):
    """Prometheus, through Ray's own exporter."""

    kind: Literal["Prometheus"] = "Prometheus"
    name: str | None = None  # label `run` of every figure; None: the name of the run's folder

    def check(self, folder: str) -> None:
        """Nothing can be wrong: Ray, which every run has, brings it."""

    def open(self, run: ExportedRun) -> "PrometheusWriter":
        """Begin to show."""
        return PrometheusWriter(self, run)


class PrometheusWriter:
    """Of one driver of a run."""

    live, sent = True, 0

    def __init__(self, settings: Prometheus, run: ExportedRun) -> None:
        self._label, self._describe = settings.name or run.name, run.describe
        self._gauges: dict[str, Any] = {}  # by family

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """See SinkWriter."""
        self._show("train/step", {}, "Updates done.", step)
        for name, value in values.items():
            self._show(*self._describe(name), value)

    def close(self) -> None:
        """Nothing is left to send: Ray asks this process while it lives."""

    def _show(self, family: str, labels: Mapping[str, str], meaning: str, value: float) -> None:
        from ray.util.metrics import Gauge

        if family not in self._gauges:
            keys = ("run", *labels)
            self._gauges[family] = Gauge(gauge_name(family), meaning, tag_keys=keys)
        self._gauges[family].set(float(value), tags={"run": self._label, **labels})


def gauge_name(family: str) -> str:
    """What Prometheus calls the figures `family`: `train/SOURCE/loss` is
    `trainrig_train_source_loss`; Ray puts `ray_` before it."""
    return "trainrig_" + _REFUSED.sub("_", family.lower()).strip("_")
