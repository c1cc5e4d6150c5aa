import pytest
import torch
from torch import nn

from trainrig import config as run_files
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import parameter_shapes
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.optim import SGD, AdamW, Lion, Muon
from trainrig.optim.named_groups import (
    NamedGroup,
    assign,
    build_optimizer,
    count_state_bytes,
    count_trained,
    freeze,
)
from trainrig.optim.parameter_groups import RATE_SHARE

SIZES = {"embedding.weight": (9, 4), "layers.0.up.weight": (6, 4), "norm.weight": (4,)}


def make_parameters():
    return {name: nn.Parameter(torch.ones(size)) for name, size in SIZES.items()}


def list_groups(optimizer):
    """Return the parameter names of each group, with its learning-rate factor and weight decay."""
    return [
        (type(part).__name__, group["param_names"], group.get(RATE_SHARE), group["weight_decay"])
        for part in optimizer.parts
        for group in part.param_groups
    ]


def test_a_group_has_its_own_decay_and_rate():
    groups = [NamedGroup(match="embedding.*", rate=0.5, weight_decay=0.0)]
    built = build_optimizer(make_parameters().items(), AdamW(weight_decay=0.3), groups)
    assert list_groups(built) == [
        ("AdamW", ["layers.0.up.weight"], None, 0.3),
        ("AdamW", ["norm.weight"], None, 0.0),
        ("AdamW", ["embedding.weight"], 0.5, 0.0),
    ]


def test_a_group_has_its_own_optimizer_whose_rate_is_a_share_of_the_runs():
    groups = [NamedGroup(match="embedding.*", optimizer=Lion(lr=0.001), rate=0.5)]
    built = build_optimizer(make_parameters().items(), Muon(lr=0.02, rest=AdamW(lr=0.01)), groups)
    assert list_groups(built) == [
        ("MuonSteps", ["layers.0.up.weight"], None, 0.1),
        ("AdamW", ["norm.weight"], pytest.approx(0.5), 0.0),
        ("ElementwiseOptimizer", ["embedding.weight"], pytest.approx(0.025), 0.3),
    ]


def test_frozen_parameters_have_no_gradient_no_state_and_no_count():
    groups = [NamedGroup(match="embedding.*", freeze=True)]
    model = nn.Module()
    model.embedding = nn.Embedding(9, 4)
    model.norm = nn.LayerNorm(4)
    freeze(model, groups)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        "norm.weight",
        "norm.bias",
    ]
    built = build_optimizer(model.named_parameters(), AdamW(), groups)
    assert [names for _, names, *_ in list_groups(built)] == [["norm.weight", "norm.bias"]]
    assert count_trained(SIZES, groups) == 28
    assert count_state_bytes(SIZES, AdamW(), groups) == 8 * 28
    assert count_state_bytes(SIZES, SGD(momentum=0), groups) == 0


def test_bytes_are_those_of_each_groups_optimizer():
    groups = [NamedGroup(match="layers.*", optimizer=Lion(state="bfloat16"))]
    assert count_state_bytes(SIZES, AdamW(), groups) == 8 * 40 + 2 * 24


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            ["embeding.weight"],
            r"training.groups\[0\].match = 'embeding.weight' matches no parameter; the closest "
            "name is 'embedding.weight'",
        ),
        (
            ["layers.*", "*.up.*"],
            r"both match layers.0.up.weight",
        ),
    ],
)
def test_patterns_that_match_nothing_or_the_same_are_refused(groups, message):
    with pytest.raises(ConfigError, match=message):
        assign(SIZES, [NamedGroup(match=pattern) for pattern in groups])


def test_a_run_that_trains_nothing_is_refused():
    with pytest.raises(ConfigError, match="freezes every parameter"):
        assign(SIZES, [NamedGroup(match="*", freeze=True)])


@pytest.mark.parametrize("keys", [{"rate": 2.0}, {"weight_decay": 0.0}])
def test_a_frozen_group_with_a_rate_or_a_decay_is_refused(keys):
    with pytest.raises(ConfigError, match=r"'head\.\*' is frozen, so rate"):
        run_files.build(NamedGroup, {"match": "head.*", "freeze": True, **keys}, "run.toml")


@pytest.mark.parametrize("tied", [True, False])
def test_names_and_sizes_known_without_torch_are_the_decoders(tied):
    config = DecoderConfig(
        layers=2, channels=16, heads=4, kv_heads=2, vocabulary=32, tie_embeddings=tied
    )
    with torch.device("meta"):
        model = Decoder(config)
    named = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameter_shapes(config) == named
