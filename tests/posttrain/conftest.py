"""Tiny runs and tokens, as the tests of training have them."""

import runpy
from pathlib import Path

import pytest

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.tokens.encoding.encode import Encoder
from trainrig.train.checkpoint import write_model

globals().update(runpy.run_path(str(Path(__file__).parents[1] / "train" / "tiny.py")))


@pytest.fixture(scope="session")
def encoder(tokens: str) -> Encoder:
    """The tokenizer of the usual tokens."""
    return Encoder.load(f"{tokens}/tokenizer.json")


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> str:
    """A run folder with a model that has learnt nothing yet."""
    folder = str(tmp_path_factory.mktemp("fresh") / "run")
    config = DecoderConfig(layers=2, channels=32, heads=4, kv_heads=2, positions=48, vocabulary=320)
    model = Decoder(config)
    initialise(model, seed=1)
    write_model(folder, config, encoder.text, model.state_dict())
    return folder
