import pytest
import torch
from torch import nn

from trainrig.optim.parameter_groups import decays, group_by_decay


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("layers.0.attention.query.weight", (4, 4), True),
        ("embedding.weight", (9, 4), True),
        ("layers.0.experts.up", (3, 4, 4), True),
        ("layers.0.attention_norm.weight", (4,), False),
        ("norm.weight", (4,), False),
        ("layers.0.attention.query_norm.weight", (2, 4), False),
        ("layers.0.attention.query.bias", (4,), False),
        ("layers.0.experts.bias", (3, 4), False),
        ("layers.0.feedforward.experts.gate_bias", (3, 4), False),
        ("temperature", (), False),
    ],
)
def test_matrices_decay_and_norms_biases_and_vectors_do_not(name, size, expected):
    assert decays(name, nn.Parameter(torch.zeros(size))) is expected


def test_each_trained_parameter_is_in_one_group_and_frozen_ones_in_none():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    model[2].weight.requires_grad_(False)
    decayed, spared = group_by_decay(model.named_parameters(), 0.1)
    assert [name for name, _ in decayed["params"]] == ["0.weight"]
    assert [name for name, _ in spared["params"]] == ["0.bias", "1.weight", "1.bias", "2.bias"]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)


def test_a_group_without_members_is_left_out():
    assert len(group_by_decay([("weight", nn.Parameter(torch.zeros(2, 2)))], 0.1)) == 1
    assert group_by_decay([], 0.1) == []
