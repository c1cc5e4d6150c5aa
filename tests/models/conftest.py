"""A tiny decoder that every test of this folder may ask for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainrig.models.decoder import Decoder, DecoderConfig, initialise

SMALL: dict[str, Any] = {
    "layers": 2,
    "channels": 32,
    "heads": 4,
    "kv_heads": 2,
    "vocabulary": 61,
    "positions": 24,
    # Wide enough a start that a broken mask, norm or rotation shows in the logits.
    "initial_std": 0.3,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def build() -> Callable[..., Decoder]:
    """`build(heads=8)` gives an initialised small decoder that differs in `heads`."""

    def build(seed: int = 0, **changes: Any) -> Decoder:
        model = Decoder(DecoderConfig(**SMALL | changes))
        initialise(model, seed)
        return model

    return build
