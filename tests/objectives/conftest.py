"""Synthetic completions, and tiny decoders that score them."""

import numpy as np
import pytest
import torch

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.tokens.batches import IGNORE

CONFIG = DecoderConfig(layers=2, channels=16, heads=2, vocabulary=64, positions=32)


def _decoder(seed: int = 0, config: DecoderConfig = CONFIG) -> Decoder:
    model = Decoder(config)
    initialise(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():  # make logits differ from each other
            parameter.mul_(5) if parameter.ndim == 2 else None
    return model


def _completions(rows: int, seed: int, width: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and targets [rows, width]: prompts of 4 ids, completions of 2 to 9, padding."""
    dice = np.random.default_rng(seed)
    ids = dice.integers(1, 60, (rows, width))
    targets = np.full((rows, width), IGNORE)
    for row in range(rows):
        length = int(dice.integers(2, 10))
        targets[row, 3 : 3 + length] = np.append(ids[row, 4 : 3 + length], 7)
    return ids, targets


def _device_batch(models: dict[str, torch.nn.Module] | None = None, **arrays: np.ndarray):
    rows = len(next(iter(arrays.values())))
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
    return DeviceBatch(tensors, torch.arange(rows), torch.zeros(rows).long(), models or {})


@pytest.fixture(scope="session")
def decoder():
    return _decoder


@pytest.fixture(scope="session")
def completions():
    return _completions


@pytest.fixture(scope="session")
def device_batch():
    return _device_batch
