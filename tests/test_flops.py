"""Operations counted from sizes, against torch's own count of real models."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainrig.flops import count_encoder_decoder_flops, count_flops_6nd, count_token_flops
from trainrig.models.architecture.attention_settings import (
    AttentionSettings,
    Biases,
    GatedAttention,
    LatentAttention,
    SlidingWindow,
)
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.architecture.layer_settings import (
    GELU,
    ClampedSwiGLU,
    LayerNorm,
    LearnedPositions,
    MixtureOfExperts,
    ParallelBlock,
)
from trainrig.models.decoder import Decoder, DecoderConfig, count_parameters, initialise
from trainrig.models.encoder import build_model

SIZES: dict[str, Any] = {
    "layers": 2, "channels": 64, "heads": 4, "vocabulary": 128, "positions": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2},
        {"kv_heads": 2, "head_channels": 24, "attention": GatedAttention()},
        {"tie_embeddings": False},
        {"kv_heads": 1, "head_channels": 8, "feedforward_channels": 72},
        {"feedforward": GELU(), "biases": Biases(qkv=True, feedforward=True)},
        {"block": ParallelBlock(), "norm": LayerNorm(), "position_embedding": LearnedPositions()},
        {"feedforward": MixtureOfExperts(experts=4, active=2, shared_experts=1, dense_layers=1)},
        {
            "feedforward": MixtureOfExperts(
                experts=4, active=2, network=ClampedSwiGLU(), router_bias=True
            ),
            "biases": Biases(feedforward=True),
        },
        {"feedforward": MixtureOfExperts(experts=4, active=2, shared_experts=1, shared_gate=True)},
        {
            "attention": LatentAttention(
                latent_channels=24, query_channels=40, rotated_channels=8, value_channels=12
            )
        },
    ],
)
def test_counts_are_torchs(changes: dict[str, Any]) -> None:
    config = DecoderConfig(**SIZES | changes)
    model = Decoder(config)
    initialise(model, 0)
    # torch counts no fused attention kernel on the CPU; its plain kernel computes all T keys.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = model(torch.zeros(2, 32, dtype=torch.int64)).logits.sum()
        forward = counter.get_total_flops()
        loss.backward()
    expected = count_token_flops(config, 32, causal=False)
    assert forward == 64 * expected.forward
    assert counter.get_total_flops() == 64 * expected.training


@pytest.mark.parametrize("transform", [{}, {"transform": None, "tie_embeddings": False}])
def test_counts_of_an_encoder_are_torchs(transform: dict[str, Any]) -> None:
    """Logits are at an eighth of the positions, those with targets."""
    config = EncoderConfig(**SIZES | transform)
    model = build_model(config)
    initialise(model, 0)
    ids = torch.zeros(2, 32, dtype=torch.int64)
    places = torch.arange(0, 64, 8)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(ids, places_N=places).logits.sum().backward()
    found = count_token_flops(config, 32, predicted=1 / 8)
    before_logits = 0.0 if config.transform is None else 2.0 * 64 * 64
    not_there = before_logits * (1 - 1 / 8) * 3  # computed only at these positions
    assert counter.get_total_flops() == 64 * (found.training - not_there)


def test_counts_of_an_encoder_decoder_are_torchs() -> None:
    """An input has 32 tokens and its output 12: each layer counts its own tokens."""
    config = EncoderDecoderConfig(**SIZES, encoder_layers=3, feedforward_channels=96)
    model = build_model(config)
    initialise(model, 0)
    read = torch.zeros(1, 32, dtype=torch.int64)
    written = torch.zeros(1, 12, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(read, written).logits.sum().backward()
    # Torch's plain kernel also computes the masked keys of output tokens.
    unseen = 3 * 4.0 * 64 * config.layers * 12 * (12 - (12 + 1) / 2)
    assert counter.get_total_flops() == count_encoder_decoder_flops(config, 32, 12) + unseen


def test_causal_attention_is_the_mean_over_a_sequence() -> None:
    config = DecoderConfig(**SIZES)
    one_token = count_token_flops(config, 1).attention
    by_hand = sum(keys * one_token for keys in range(1, 33)) / 32
    assert count_token_flops(config, 32).attention == pytest.approx(by_hand)


def test_6nd_is_all_but_attention() -> None:
    config = DecoderConfig(**SIZES | {"tie_embeddings": False})
    count = count_parameters(config)
    matrices = count.layers + count.head - config.channels * (2 * config.layers + 1)  # no norms
    flops = count_token_flops(config, 32)
    assert flops.training - 3 * flops.attention == count_flops_6nd(matrices, 1)


def test_a_query_of_a_local_layer_meets_its_window_alone() -> None:
    window = SlidingWindow(size=8, pattern=("local", "global"))
    config = DecoderConfig(**SIZES | {"attention": AttentionSettings(window=window)})
    met = [min(place + 1, 8) for place in range(32)] + [place + 1 for place in range(32)]
    flops_of_pair = 4 * config.shape.heads * config.shape.head_channels
    pairs = config.layers // 2
    assert count_token_flops(config, 32).attention == pytest.approx(
        flops_of_pair * pairs * sum(met) / 32
    )
