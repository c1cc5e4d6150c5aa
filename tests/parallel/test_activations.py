"""Activation statistics of a model, against torch and the model's own modules."""

import math

import pytest
import torch
from torch.nn import functional

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import ReLU
from trainrig.models.attention import Attention, Sight, number_documents
from trainrig.models.decoder import Decoder, initialise
from trainrig.parallel.training_statistics import ActivationStatistics, mean_entropy

CONFIG = DecoderConfig(layers=2, channels=32, heads=4, kv_heads=2, vocabulary=64, positions=64)
FIGURES = ("activation_rms", "activation_max", "saturated", "attention_entropy")


def make_model(config=CONFIG, scale=4.0):
    model = Decoder(config)
    initialise(model, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def draw_ids(length=24):
    return torch.randint(0, 64, (3, length), generator=torch.Generator().manual_seed(0))


def compute_figures(model):
    found = ActivationStatistics(model).measure(lambda: model(draw_ids()))
    return {name: float(value) for name, value in found.items()}


def test_each_layer_has_its_figures_and_the_model_is_as_it_was():
    model = make_model()
    before = model(draw_ids()).hidden
    outputs = []
    handle = model.layers[1].register_forward_hook(lambda *heard: outputs.append(heard[2][0]))
    found = compute_figures(model)
    handle.remove()
    assert set(found) == {f"layers/{n:02d}/{figure}" for n in range(2) for figure in FIGURES}
    assert found["layers/01/activation_rms"] == pytest.approx(
        float(outputs[0].square().mean().sqrt())
    )
    assert found["layers/01/activation_max"] == float(outputs[0].abs().max())
    assert all("attend" not in vars(layer.attention) for layer in model.layers)
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(model(draw_ids()).hidden, before)


def test_a_unit_is_saturated_where_nothing_comes_through():
    model = make_model(CONFIG.model_copy(update={"feedforward": ReLU()}))
    inputs = []
    handle = model.layers[0].feedforward.up.register_forward_hook(
        lambda *heard: inputs.append(heard[2])
    )
    found = compute_figures(model)
    handle.remove()
    assert found["layers/00/saturated"] == pytest.approx(float((inputs[0] < 0).float().mean()))
    assert 0.2 < found["layers/00/saturated"] < 0.8


def draw_activations(length):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(2, 4, length, 8, generator=generator),
        torch.randn(2, 2, length, 8, generator=generator),
    )


def make_attention():
    shape = CONFIG.shapes.layers[0].attention
    return Attention(shape, CONFIG.shape.head_channels, CONFIG.norm, CONFIG.attention)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("documents", [False, True])
def test_entropy_is_that_of_the_weights_that_torch_attends_by(window, documents):
    """The values are identity matrices, so that torch returns its attention weights."""
    length = 20  # shorter than the sample, so all queries are used
    query, key = draw_activations(length)
    starts = torch.tensor([[*range(12), *range(8)]] * 2)
    numbers = number_documents(starts) if documents else None
    places = torch.arange(length)
    mask = places[:, None] >= places
    if window:
        mask = mask & (places > places[:, None] - window)
    if documents:
        mask = mask & (numbers[0][:, None] == numbers[0])
    values = torch.eye(length).expand(2, 2, length, length)
    weights = functional.scaled_dot_product_attention(
        query, key, values, attn_mask=mask, enable_gqa=True
    )[0]
    expected = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
    found = mean_entropy(make_attention(), query, key, Sight(None, numbers, window))
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_attention_that_does_not_choose_has_the_entropy_of_what_it_sees():
    query, key = draw_activations(64)
    found = mean_entropy(make_attention(), query * 0, key, Sight())
    places = torch.linspace(0, 63, 32).round()
    expected = sum(math.log(place + 1) for place in places.tolist()) / 32
    assert float(found) == pytest.approx(expected, rel=1e-6)
    sharp = mean_entropy(make_attention(), query * 1e4, key, Sight())
    assert float(sharp) < 0.01
