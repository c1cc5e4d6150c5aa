"""Services that receive a run's metrics while it trains. Add a new one to the union here."""

from typing import Annotated

from pydantic import Field

from trainrig.train.sink_kinds import ExportedRun, MLflow, Prometheus, SinkWriter, WandB

Sink = Annotated[WandB | MLflow | Prometheus, Field(discriminator="kind")]

__all__ = ["ExportedRun", "MLflow", "Prometheus", "Sink", "SinkWriter", "WandB"]
