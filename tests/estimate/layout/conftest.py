"""Runs to lay out, and the devices for them."""

from collections.abc import Callable
from typing import Any

import pytest

from trainrig import hardware
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.step_prediction import Predictor
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.train.run_file.training_settings import Training

SIZES: dict[str, Any] = {
    "layers": 8,
    "channels": 1024,
    "heads": 16,
    "kv_heads": 8,
    "feedforward_channels": 4096,
    "vocabulary": 32_768,
    "positions": 4096,
}
BATCH = BatchShape(64, 2048)


@pytest.fixture
def model() -> Callable[..., DecoderConfig]:
    """Return the function `model(layers=4)`: a small decoder with these changes."""
    return lambda **changes: DecoderConfig.model_validate(SIZES | changes)


@pytest.fixture
def cluster() -> Callable[..., Cluster]:
    """Return the function `cluster(16)`: this number of H100s, 8 a machine."""

    def make(devices: int, inside: float = 1.0, across: float = 1.0) -> Cluster:
        table = hardware.load()
        device = table.find_device("h100")
        near = table.links["nvlink-4"]
        far = table.links["efa-3200"]
        near = near.model_copy(update={"bandwidth": near.bandwidth * inside})
        far = far.model_copy(update={"bandwidth": far.bandwidth * across})
        return Cluster("h100", device, devices, 8, near, far)

    return make


@pytest.fixture
def predictor(
    model: Callable[..., DecoderConfig], cluster: Callable[..., Cluster]
) -> Callable[..., Predictor]:
    """Return the function `predictor(16, training={…}, layers=4)`.

    Each step has 64 sequences of 2,048 tokens.
    """

    def make(
        devices: int,
        training: dict[str, Any] | None = None,
        links: dict[str, float] | None = None,
        batch: BatchShape = BATCH,
        **changes: Any,
    ) -> Predictor:
        usual: dict[str, Any] = {"steps": 1, "precision": {"compute": "bfloat16"}}
        settings = Training.model_validate(usual | (training or {}))
        return Predictor(model(**changes), settings, batch, cluster(devices, **(links or {})))

    return make
