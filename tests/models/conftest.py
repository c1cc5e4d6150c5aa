"""Fixtures of this folder: a tiny decoder, and decoders trained on characters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.optim.named_groups import build_optimizer
from trainrig.optim.parameter_groups import RATE_SHARE
from trainrig.train.run_file.training_settings import find_width_transfer

SMALL: dict[str, Any] = {
    "layers": 2,
    "channels": 32,
    "heads": 4,
    "kv_heads": 2,
    "vocabulary": 61,
    "positions": 24,
    # The weights start wide, so that a broken mask, norm or rotation changes the logits.
    "initial_std": 0.3,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def build() -> Callable[..., Decoder]:
    """Return a function that builds small decoders: `build(heads=8)` differs in `heads`."""

    def build(seed: int = 0, **changes: Any) -> Decoder:
        model = Decoder(DecoderConfig(**SMALL | changes))
        initialise(model, seed)
        return model

    return build


@pytest.fixture
def train_on_characters(test_data: Path) -> Callable[..., float]:
    """Return a function that trains a fresh decoder on tiny Shakespeare by characters.

    `train_on_characters(config, optimizer, steps)` returns the validation loss. A tenth of the
    steps warm up, and the rate then falls linearly to zero.
    """
    text = (test_data / "sets" / "tinyshakespeare.txt").read_text()
    characters = sorted(set(text))
    ids = torch.from_numpy(np.searchsorted(characters, list(text)))
    split = int(0.9 * len(ids))

    def rows(part: torch.Tensor, draw: torch.Generator, batch: int, length: int) -> torch.Tensor:
        begins = torch.randint(len(part) - length - 1, (batch,), generator=draw)
        return torch.stack([part[begin : begin + length + 1] for begin in begins.tolist()])

    def train(
        config: DecoderConfig,
        optimizer: Any,
        steps: int,
        seed: int = 0,
        batch: int = 16,
        length: int = 32,
        look: Callable[[dict[str, torch.Tensor]], None] = lambda _: None,
    ) -> float:
        model = Decoder(config.for_tokenizer(len(characters)))
        initialise(model, seed)
        transfer = find_width_transfer(model.config)
        built = build_optimizer(model.named_parameters(), optimizer, (), transfer)
        draw = torch.Generator().manual_seed(seed)

        def loss_of(ids_BT: torch.Tensor) -> torch.Tensor:
            output = model(ids_BT[:, :-1])
            look(dict(output.auxiliary))
            scalars = [term for term in output.auxiliary.values() if term.ndim == 0]
            nats = F.cross_entropy(output.logits.flatten(0, 1), ids_BT[:, 1:].flatten())
            return nats + sum(scalars) if model.training else nats

        for step in range(steps):
            shape = min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
            for group in built.param_groups:
                group["lr"] = optimizer.lr * group.get(RATE_SHARE, 1.0) * min(1.0, shape)
            loss_of(rows(ids[:split], draw, batch, length)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            built.step()
            built.zero_grad()
        model.eval()
        fixed = torch.Generator().manual_seed(1)
        with torch.no_grad():
            losses = [loss_of(rows(ids[split:], fixed, 64, length)).item() for _ in range(8)]
        return sum(losses) / len(losses)

    return train
