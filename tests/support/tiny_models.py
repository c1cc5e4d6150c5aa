"""Untrained models of one layer, as checkpoints that no run made."""

from pathlib import Path

from support.token_folders import make_encoder
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.train import checkpoint


def write_untrained_model(folder: Path, seed: int = 1) -> str:
    """Write a model of the tokenizer of bytes, and return its checkpoint."""
    encoder = make_encoder()
    sizes = DecoderConfig(
        layers=1, channels=16, heads=2, positions=32, vocabulary=encoder.vocabulary_size
    )
    model = Decoder(sizes)
    initialise(model, seed=seed)
    return checkpoint.write_model(str(folder), sizes, encoder.text, model.state_dict())
