"""Context stages change the angles of a model, and never which of its layers have them."""

import pytest
import torch

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import ContextStage, Rope
from trainrig.models.decoder import Decoder, initialise
from trainrig.train.run_file.run_file_checks import build_model_stages, find_model

PATTERN = ("rotated", "rotated", "rotated", "unrotated")
MODEL = DecoderConfig(
    layers=4,
    channels=32,
    heads=4,
    vocabulary=64,
    positions=16,
    position_embedding=Rope(pattern=PATTERN),
)


@pytest.mark.parametrize("model", [MODEL, MODEL.model_copy(update={"position_embedding": Rope()})])
@torch.no_grad()
def test_a_reloaded_model_computes_what_the_model_in_training_computed(model):
    """Training keeps the modules of the first stage and changes their settings."""
    stages = build_model_stages(model, [ContextStage(from_step=10, rope=Rope(theta=5e6))])
    ids_BT = torch.arange(16)[None]
    trained = Decoder(model)
    initialise(trained, seed=3)
    before = trained(ids_BT).logits
    trained.config = find_model(stages, 10)
    assert not torch.equal(trained(ids_BT).logits, before)
    reloaded = Decoder(find_model(stages, 10))
    reloaded.load_state_dict(trained.state_dict())
    assert torch.equal(reloaded(ids_BT).logits, trained(ids_BT).logits)


@pytest.mark.parametrize("pattern", [("rotated",), ("unrotated", "rotated"), PATTERN[1:]])
def test_a_stage_cannot_rotate_other_layers(pattern):
    stage = ContextStage(from_step=10, rope=Rope(theta=5e6, pattern=pattern))
    with pytest.raises(ValueError, match=r"context: from step 10: rope\.pattern.*leave it out"):
        build_model_stages(MODEL, [stage])


def test_a_stage_may_repeat_the_pattern_of_the_model():
    for pattern in (PATTERN, None):
        stage = ContextStage(from_step=10, rope=Rope(theta=5e6, pattern=pattern))
        (_, later) = build_model_stages(MODEL, [stage])
        assert later[1].position_embedding == Rope(theta=5e6, pattern=PATTERN)
