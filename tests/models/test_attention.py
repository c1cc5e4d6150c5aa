import math

import pytest
import torch

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.attention import Attention, KeyValueCache, Sight
from trainrig.models.layer_parts import Rotation

ROPE = Rope(theta=100.0)


def build_attention(channels: int, heads: int, kv_heads: int, width: int) -> Attention:
    config = DecoderConfig(
        layers=1,
        channels=channels,
        heads=heads,
        kv_heads=kv_heads,
        head_channels=width,
        vocabulary=4,
    )
    return Attention(config.shapes.layers[0].attention, width, config.norm, config.attention)


def attend_by_loops(attention: Attention, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return attention of one sequence [T, C], one query and one head at a time."""
    width = attention.head_channels
    query, key, value = (
        part(x).unflatten(-1, (-1, width)).transpose(0, 1)
        for part in (attention.query, attention.key, attention.value)
    )
    query = rotation(query)
    key = rotation(key)
    group = len(query) // len(key)  # query heads that share a key head
    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(len(query)):
            scores = key[h // group, : t + 1] @ query[h, t] / math.sqrt(width)
            heads.append(scores.softmax(0) @ value[h // group, : t + 1])
        rows.append(torch.cat(heads))
    return attention.output(torch.stack(rows))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width"), [(1, 1, 4), (4, 4, 2), (4, 2, 6), (6, 1, 2)]
)
def test_attention_equals_loops(heads, kv_heads, width):
    attention = build_attention(12, heads, kv_heads, width)
    x = torch.randn(2, 9, 12)
    rotation = Rotation(torch.arange(9), width, ROPE)
    together = attention(x, Sight(rotation))
    for row in range(2):
        assert torch.allclose(
            together[row], attend_by_loops(attention, x[row], rotation), atol=1e-6
        )


@pytest.mark.parametrize("pieces", [[1] * 9, [9], [4, 5], [1, 6, 2], [8, 1]])
def test_pieces_with_a_cache_equal_the_whole(pieces):
    attention = build_attention(12, 4, 2, 6)
    x = torch.randn(2, 9, 12)
    whole = attention(x, Sight(Rotation(torch.arange(9), 6, ROPE)))
    cache = KeyValueCache()
    outputs = []
    for piece in x.split(pieces, dim=1):
        positions = torch.arange(len(cache), len(cache) + piece.shape[1])
        outputs.append(attention(piece, Sight(Rotation(positions, 6, ROPE)), cache))
    assert len(cache) == 9
    assert torch.allclose(torch.cat(outputs, dim=1), whole, atol=1e-6)


def test_gradients_match_finite_differences():
    attention = build_attention(4, 2, 1, 2).double()
    rotation = Rotation(torch.arange(3), 2, ROPE)
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: attention(x, Sight(rotation)), (x,))
