"""Prometheus sink, through the metrics that each node of Ray exports.

A gauge has only the newest value: Prometheus reads it at times of its own choice, and adds its own
timestamps. A family of metrics, such as one per layer, is one gauge with a label.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from trainrig.config import Settings
from trainrig.train.sinks.contract import ExportedRun

_REFUSED = re.compile(r"[^a-z0-9]+")  # characters not allowed in gauge names


class Prometheus(Settings):
    """Prometheus sink, through Ray's exporter."""

    kind: Literal["Prometheus"] = "Prometheus"
    name: str | None = None  # label `run` of every metric; None: the name of the run's folder

    def check(self, folder: str) -> None:
        """Do nothing: every run has Ray, which includes the exporter."""

    def open(self, run: ExportedRun) -> "PrometheusWriter":
        """Start exporting."""
        return PrometheusWriter(self, run)


class PrometheusWriter:
    """Exporter to Prometheus, of one driver of a run."""

    live = True
    sent = 0

    def __init__(self, settings: Prometheus, run: ExportedRun) -> None:
        self._label = settings.name or run.name
        self._describe = run.describe
        self._gauges: dict[str, Any] = {}  # keys: families

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Set the gauges to `values`; see SinkWriter."""
        self._show("train/step", {}, "Updates done.", step)
        for name, value in values.items():
            self._show(*self._describe(name), value)

    def close(self) -> None:
        """Do nothing: Ray reads the gauges as long as this process lives."""

    def _show(self, family: str, labels: Mapping[str, str], meaning: str, value: float) -> None:
        from ray.util.metrics import Gauge

        if family not in self._gauges:
            keys = ("run", *labels)
            self._gauges[family] = Gauge(gauge_name(family), meaning, tag_keys=keys)
        self._gauges[family].set(float(value), tags={"run": self._label, **labels})


def gauge_name(family: str) -> str:
    """Return Prometheus' name of the metrics `family`.

    `train/SOURCE/loss` becomes `trainrig_train_source_loss`; Ray adds `ray_` in front.
    """
    return "trainrig_" + _REFUSED.sub("_", family.lower()).strip("_")
