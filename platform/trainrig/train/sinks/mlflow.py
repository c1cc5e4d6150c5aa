"""MLflow sink: sends metrics to a tracking server or a database.

The server knows the newest step it has, so after a kill, no step is sent twice and none is missing.
User name and password come from the environment (`MLFLOW_TRACKING_USERNAME`,
`MLFLOW_TRACKING_PASSWORD`), never from a run file.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import model_validator

from trainrig.config import Field, Settings
from trainrig.train.sinks.contract import ExportedRun, need_package

TAG = "trainrig.run"  # tag of an MLflow run with our run's id
STEPS = "train/loss"  # a metric that every step has
AT_ONCE = 1000  # metrics that MLflow accepts in one call
_REFUSED = re.compile(r"[^\w\-. /:]")  # characters not allowed in metric names


class MLflow(Settings):
    """MLflow sink; needs the extra `mlflow`."""

    kind: Literal["MLflow"] = "MLflow"
    # Address of the tracking server, or of a database, as in `sqlite:////data/mlflow.db`, which
    # needs the full package mlflow; None uses MLFLOW_TRACKING_URI.
    uri: str | None = None
    experiment: str = Field(default="trainrig", min_length=1)  # experiment to log to
    name: str | None = None  # name of the run; None: the name of its folder

    @model_validator(mode="after")
    def _reject_password(self) -> Self:
        if self.uri and "@" in urlsplit(self.uri).netloc:
            raise ValueError(
                "uri contains a name or password, and run files are often copied; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the "
                "environment instead"
            )
        return self

    def check(self, folder: str) -> None:
        """Raise ConfigError if the metrics of the run in `folder` cannot be sent."""
        need_package("mlflow", "MLflow", "mlflow")

    def open(self, run: ExportedRun) -> "MLflowWriter":
        """Start sending, or resume."""
        return MLflowWriter(self, run)


class MLflowWriter:
    """Writer to MLflow, of one driver of a run."""

    live = False

    def __init__(self, settings: MLflow, run: ExportedRun) -> None:
        from mlflow import MlflowClient  # an extra, slow to import

        self._client: Any = MlflowClient(tracking_uri=settings.uri)
        experiment = self._client.get_experiment_by_name(settings.experiment)
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(settings.experiment)
        )
        found = self._client.search_runs([number], f"tags.`{TAG}` = '{run.id}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {TAG: run.id, "trainrig.folder": run.folder}
            name = settings.name or run.name
            self._run = self._client.create_run(number, tags=tags, run_name=name).info.run_id
        there = self._client.get_metric_history(self._run, STEPS)
        self.sent = max((metric.step for metric in there), default=0)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Send the metrics of `step`; see SinkWriter."""
        from mlflow.entities import Metric

        # STEPS goes last: it marks the step as complete.
        names = sorted(values, key=lambda name: name == STEPS)
        figures = [
            Metric(_REFUSED.sub("_", name), values[name], int(seconds * 1000), step)
            for name in names
        ]
        for at in range(0, len(figures), AT_ONCE):
            self._client.log_batch(self._run, metrics=figures[at : at + AT_ONCE])
        self.sent = step

    def close(self) -> None:
        """End the MLflow run; see SinkWriter."""
        self._client.set_terminated(self._run)
