"""Services that receive a run's metrics while it trains. Add a new one to the union here."""

from typing import Annotated

from pydantic import Field

from trainrig.train.sinks.contract import ExportedRun, SinkWriter
from trainrig.train.sinks.mlflow import MLflow
from trainrig.train.sinks.prometheus import Prometheus
from trainrig.train.sinks.wandb import WandB

Sink = Annotated[WandB | MLflow | Prometheus, Field(discriminator="kind")]

__all__ = ["ExportedRun", "MLflow", "Prometheus", "Sink", "SinkWriter", "WandB"]
