"""A tiny model that answers prompts, and one that prefers some answers to others."""

import pytest

from trainrig.models.decoder import Decoder, initialise
from trainrig.train import checkpoint


@pytest.fixture(scope="session")
def decided(fresh, tmp_path_factory):
    """Return an untrained model with weights so large that its outputs depend on its inputs."""
    opened = checkpoint.open_model(fresh)
    model = Decoder(opened.config)
    initialise(model, seed=1)
    state = {name: w * 20 if w.ndim > 1 else w for name, w in model.state_dict().items()}
    folder = str(tmp_path_factory.mktemp("decided") / "run")
    checkpoint.write_model(folder, opened.config, opened.tokenizer, state)
    return folder
