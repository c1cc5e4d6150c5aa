import torch

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import SwiGLU
from trainrig.models.layer_parts import DenseFeedForward


def build_network(channels, between, network=None, **changes):
    network = network or SwiGLU()
    config = DecoderConfig(
        layers=1,
        channels=channels,
        heads=1,
        head_channels=2,
        feedforward_channels=between,
        vocabulary=4,
        feedforward=network,
        **changes,
    )
    return DenseFeedForward(config.shapes.layers[0].feedforward, network)


def test_the_network_equals_its_formula():
    network = build_network(6, 10)
    x = torch.randn(4, 6)
    gate = x @ network.gate.weight.T
    expected = (gate * torch.sigmoid(gate) * (x @ network.up.weight.T)) @ network.down.weight.T
    assert torch.allclose(network(x), expected, atol=1e-6)


def test_a_closed_gate_lets_nothing_through():
    network = build_network(3, 5)
    with torch.no_grad():
        network.gate.weight.zero_()
    assert torch.equal(network(torch.randn(2, 3)), torch.zeros(2, 3))


def test_gradients_match_finite_differences():
    network = build_network(3, 4).double()
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(network, (x,))
