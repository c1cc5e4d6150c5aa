"""Which kernel computes attention, by device, dtype and model."""

import re

import pytest

from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.kernels.kernel_choice import (
    CPU_CARD,
    USUAL_GPU,
    AttentionCase,
    Card,
    Tile,
    choose_backward_tile,
    choose_forward_tile,
    choose_kernel,
    estimate_backward_bytes,
    estimate_forward_bytes,
    find_obstacle,
)

H100 = USUAL_GPU
A100 = Card((8, 0), 166_912, is_triton_installed=True)
SMALL = Card((8, 9), 101_376, is_triton_installed=True)
TURING = Card((7, 5), 65_536, is_triton_installed=True)
BARE = Card((9, 0), 232_448)  # without Triton
DOCUMENTS = AttentionCase(128, "bfloat16")
WIDE = AttentionCase(256, "bfloat16")
ODD = AttentionCase(100, "bfloat16")
NARROW = AttentionCase(12, "bfloat16")
CAPPED = AttentionCase(128, "float16", ("attention.logit_cap",))
SINKS = AttentionCase(64, "bfloat16", ("attention.sinks", "position_embedding (Alibi)"))
FLOAT32 = AttentionCase(128, "float32")
RING = AttentionCase(128, "bfloat16", in_ring=True)

# The kernel that `auto` chooses.
CHOICES = [
    (DOCUMENTS, H100, "flash"),
    (DOCUMENTS, BARE, "flash"),
    (DOCUMENTS, SMALL, "flash"),
    (WIDE, SMALL, "flash"),
    (CAPPED, H100, "flex"),
    (SINKS, SMALL, "flex"),
    (CAPPED, BARE, None),
    (ODD, H100, "flex"),
    (NARROW, H100, None),
    (AttentionCase(200, "bfloat16"), SMALL, "flex"),
    (AttentionCase(200, "bfloat16"), A100, "flash"),
    (AttentionCase(512, "bfloat16"), H100, None),
    (FLOAT32, H100, None),
    (RING, H100, None),
    (DOCUMENTS, TURING, None),
    (DOCUMENTS, CPU_CARD, None),
]


@pytest.mark.parametrize(("case", "card", "kernel"), CHOICES)
def test_auto_chooses_the_expected_kernel(case, card, kernel):
    found = choose_kernel("auto", case, card)
    assert found.kernel == kernel
    assert found.reason
    if kernel:
        assert find_obstacle(kernel, case, card) is None
        assert choose_kernel(kernel, case, card).kernel == kernel


# Refused choices, and the suggested ones.
REFUSED = [
    ("flash", DOCUMENTS, CPU_CARD, "needs a GPU, but the device is a CPU; use 'auto' or 'plain'"),
    ("flex", DOCUMENTS, CPU_CARD, "needs a GPU"),
    ("triton", DOCUMENTS, CPU_CARD, "needs a GPU"),
    ("flash", CAPPED, H100, "attention.logit_cap; use 'auto' or 'flex' or 'triton' or 'plain'"),
    ("flash", SINKS, H100, "not support attention.sinks, position_embedding (Alibi)"),
    ("flash", FLOAT32, H100, "bfloat16 and float16, not in float32; use 'auto' or 'flex'"),
    ("triton", FLOAT32, H100, "bfloat16 and float16, not in float32"),
    ("flash", ODD, H100, "a multiple of 8 channels, but these have 100"),
    ("flash", AttentionCase(200, "bfloat16"), SMALL, "of 200 channels on a GPU of capability"),
    ("flash", RING, H100, "RingAttention"),
    ("flex", RING, H100, "RingAttention"),
    ("flex", NARROW, H100, "at least 16 channels, but these have 12"),
    ("flex", DOCUMENTS, BARE, "Triton and a C compiler"),
    ("triton", DOCUMENTS, TURING, "8.0 or newer, but the device is a GPU of capability 7.5"),
    ("triton", AttentionCase(512, "float16"), H100, "at most 256 channels, but these have 512"),
    ("triton", WIDE, Card((8, 6), 20_000, is_triton_installed=True), "20,000 bytes of shared"),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "case", "card", "said"), REFUSED)
def test_an_unsuitable_kernel_is_refused_with_a_suitable_one(wanted, case, card, said):
    start = rf"^training\.attention\.kernel = '{wanted}': .*{re.escape(said)}"
    with pytest.raises(ConfigError, match=start) as error:
        choose_kernel(wanted, case, card)
    assert "\n" not in str(error.value)
    for name in re.findall(r"'(\w+)'", str(error.value).partition("; use ")[2]):
        choose_kernel(name, case, card)


def test_a_model_reports_its_attention_features():
    sizes = {"layers": 1, "channels": 64, "heads": 4, "positions": 32}
    model = DecoderConfig(**sizes, attention={"sinks": True, "logit_cap": 5.0})
    case = AttentionCase.describe(model, "bfloat16")
    assert case == AttentionCase(16, "bfloat16", ("attention.logit_cap", "attention.sinks"))
    model = DecoderConfig(**sizes, head_channels=24, position_embedding={"kind": "Alibi"})
    case = AttentionCase.describe(model, "float32", in_ring=True)
    assert case == AttentionCase(24, "float32", ("position_embedding (Alibi)",), in_ring=True)


def test_tiles_fit_the_shared_memory_of_the_card():
    # The memory that Triton requested, and the memory of cards of capability 8.6, 8.9 and 12.0.
    assert estimate_forward_bytes(Tile(64, 64, 256)) == 106_496 > 101_376
    assert choose_forward_tile(256, 101_376) == Tile(64, 32, 256)
    # Where memory is ample, tiles are the kernel's original ones.
    for width, forward, backward in [
        (16, Tile(128, 64, 16), Tile(64, 64, 16)),
        (128, Tile(128, 64, 128), Tile(64, 64, 128)),
        (130, Tile(64, 64, 256), Tile(32, 32, 256)),
        (256, Tile(64, 64, 256), Tile(32, 32, 256)),
    ]:
        assert choose_forward_tile(width, 232_448) == forward
        assert choose_backward_tile(width, 232_448) == backward


@pytest.mark.parametrize("limit", [10_000, 49_152, 65_536, 101_376, 166_912, 232_448])
def test_no_tile_exceeds_a_cards_memory(limit):
    for width in range(1, 257):
        forward = choose_forward_tile(width, limit)
        backward = choose_backward_tile(width, limit)
        assert forward is None or estimate_forward_bytes(forward) <= limit
        assert backward is None or estimate_backward_bytes(backward) <= limit
        assert limit < 49_152 or (forward and backward)
        if forward:
            assert forward.width >= width
