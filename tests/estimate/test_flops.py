"""Operations counted from sizes, against torch's own count of a real decoder."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainrig.estimate.flops import six_n_d, token_flops
from trainrig.models.decoder import Decoder, DecoderConfig, count_parameters, initialise

SIZES: dict[str, Any] = {
    "layers": 2, "channels": 64, "heads": 4, "vocabulary": 128, "positions": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2},
        {"tie_embeddings": False},
        {"kv_heads": 1, "head_channels": 8, "feedforward_channels": 72},
    ],
)
def test_counts_are_torchs(changes: dict[str, Any]) -> None:
    config = DecoderConfig(**SIZES | changes)
    model = Decoder(config)
    initialise(model, 0)
    # torch counts no kernel that fuses attention on the CPU; its plain one computes all T keys.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = model(torch.zeros(2, 32, dtype=torch.int64)).logits.sum()
        forward = counter.get_total_flops()
        loss.backward()
    expected = token_flops(config, 32, causal=False)
    assert forward == 64 * expected.forward
    assert counter.get_total_flops() == 64 * expected.training


def test_causal_attention_is_the_mean_over_a_sequence() -> None:
    config = DecoderConfig(**SIZES)
    one_token = token_flops(config, 1).attention
    by_hand = sum(keys * one_token for keys in range(1, 33)) / 32
    assert token_flops(config, 32).attention == pytest.approx(by_hand)


def test_6nd_is_all_but_attention() -> None:
    config = DecoderConfig(**SIZES | {"tie_embeddings": False})
    count = count_parameters(config)
    matrices = count.layers + count.head - config.channels * (2 * config.layers + 1)  # no norms
    flops = token_flops(config, 32)
    assert flops.training - 3 * flops.attention == six_n_d(matrices, 1)
