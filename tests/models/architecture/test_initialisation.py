"""muP, compared with hand counts, and the change of activations at several widths."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainrig.config import build
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.models.architecture.initialisation import MuP, SmallInit, find_roles
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.decoder import Decoder, initialise
from trainrig.models.families import find_family
from trainrig.models.initial_values import compute_initial_std
from trainrig.optim import SGD, Adafactor, AdamW, Lion, Muon
from trainrig.optim.named_groups import build_optimizer
from trainrig.optim.parameter_groups import RATE_SHARE
from trainrig.train.run_file.training_settings import Training, find_width_transfer

WIDTHS = (32, 64, 128, 256)
MUP = MuP(base_channels=64)
IDS = torch.randint(61, (4, 24), generator=torch.Generator().manual_seed(3))


def make_decoder_config(channels, mup=MUP, **changes):
    settings = {
        "layers": 2,
        "channels": channels,
        "heads": channels // 16,
        "feedforward_channels": 3 * channels,
        "vocabulary": 61,
        "positions": 24,
        "tie_embeddings": False,
        "initial_std": 0.1,
        "mup": mup,
    }
    return DecoderConfig(**settings | changes)


def test_each_parameter_has_its_role():
    config = make_decoder_config(64, feedforward=MixtureOfExperts(experts=4, active=2))
    roles = find_roles(parameter_shapes(config))
    assert {name for name, role in roles.items() if role == "input"} == {"embedding.weight"}
    assert {name for name, role in roles.items() if role == "output"} == {
        "head.weight",
        "layers.0.feedforward.router.weight",
        "layers.1.feedforward.router.weight",
    }
    assert roles["layers.0.attention_norm.weight"] == roles["norm.weight"] == "vector"
    assert roles["layers.1.feedforward.experts.down"] == roles["layers.0.attention.key.weight"]
    assert roles["layers.0.attention.key.weight"] == "hidden"


def test_fresh_weights_shrink_by_role():
    narrow = make_decoder_config(64)
    wide = make_decoder_config(256)
    for name, share in {
        "embedding.weight": 1,
        "layers.0.attention.query.weight": 1 / 2,
        "layers.1.feedforward.down.weight": 1 / 2,
        "head.weight": 1 / 4,
    }.items():
        assert compute_initial_std(name, wide) == pytest.approx(
            share * compute_initial_std(name, narrow)
        )
        assert compute_initial_std(name, narrow) == compute_initial_std(
            name, make_decoder_config(64, mup=None)
        )


def test_wider_heads_scale_logits_by_their_width_and_not_its_root():
    mup = MuP(base_channels=64, base_head_channels=16)
    assert make_decoder_config(256, heads=4, mup=mup).plain.attention.query_scale == pytest.approx(
        1 / math.sqrt(16) * 16 / 64
    )
    assert make_decoder_config(256, mup=mup).plain.attention.query_scale is None


def test_a_tied_head_divides_its_logits():
    config = make_decoder_config(256, tie_embeddings=True, logit_multiplier=2.0)
    assert config.plain.logit_multiplier == 2.0 / 4
    assert make_decoder_config(256).plain.logit_multiplier == 1.0
    model = Decoder(config)
    plain = Decoder(config.plain)
    initialise(model, 0)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(IDS).logits, plain(IDS).logits)


def test_a_mup_model_exports_as_a_llama_or_with_factors_as_a_granite():
    assert find_family(make_decoder_config(256), {}).model_type == "llama"
    tied = make_decoder_config(256, tie_embeddings=True)
    assert find_family(tied, {}).model_type == "granite"
    with pytest.raises(Exception, match="cannot be exported"):
        find_family(tied.model_copy(update={"logit_cap": 9.0}), {})


def list_rate_shares(optimizer, **changes):
    config = make_decoder_config(256, feedforward=MixtureOfExperts(experts=4, active=2), **changes)
    with torch.device("meta"):
        model = Decoder(config)
    built = build_optimizer(model.named_parameters(), optimizer, (), find_width_transfer(config))
    by_name = {}
    for group in built.param_groups:
        for name in group["param_names"]:
            by_name[name] = group[RATE_SHARE], group["weight_decay"]
    layer = "layers.0.feedforward."
    names = ("embedding.weight", layer + "experts.up", layer + "router.weight", "head.weight")
    return [by_name[tensor_name] for tensor_name in (*names, "norm.weight")]


def test_rates_go_with_the_width_and_rate_times_decay_does_not():
    adamw = AdamW(weight_decay=0.1)
    expected = [(1, 0.1), (1 / 4, 0.4), (1 / 4, 0.4), (1 / 4, 0.4), (1, 0.0)]
    assert list_rate_shares(adamw) == expected
    assert list_rate_shares(Lion(weight_decay=0.1)) == expected
    muon = Muon(lr=0.02, weight_decay=0.1, rest=AdamW(lr=0.01, weight_decay=0.1))
    assert list_rate_shares(muon) == [(0.5, 0.1), (1, 0.1), (0.5, 0.2), (0.125, 0.4), (0.5, 0.0)]
    matched = muon.model_copy(update={"scale": "match_rms_adamw"})
    assert list_rate_shares(matched)[1:3] == [(0.5, 0.2), (0.25, 0.4)]


@pytest.mark.parametrize("optimizer", [SGD(), Adafactor()])
def test_an_optimizer_without_scaling_rules_is_refused(optimizer):
    training = Training(steps=1, optimizer=optimizer)
    with pytest.raises(ConfigError, match=f"{optimizer.kind} has no rule.*AdamW, Lion or Muon"):
        training.check_parameters(make_decoder_config(128))
    training.check_parameters(make_decoder_config(128, mup=None))


def test_two_ways_to_follow_the_width_are_refused():
    with pytest.raises(ValueError, match="SmallInit takes"):
        make_decoder_config(128, initial_std=0.02, initialisation=SmallInit())
    with pytest.raises(ConfigError, match="base_channels"):
        build(DecoderConfig, {"layers": 1, "channels": 8, "heads": 1, "mup": {}}, "model")


def measure_changes(config, optimizer, steps=3):
    """Return the RMS changes of the last layer's stream and of logits after `steps` steps."""
    model = Decoder(config)
    transfer = find_width_transfer(config)
    initialise(model, 0)
    built = build_optimizer(model.named_parameters(), optimizer, (), transfer)
    for group in built.param_groups:
        group["lr"] = optimizer.lr * group.get(RATE_SHARE, 1.0)
    streams = []
    model.layers[-1].register_forward_hook(lambda _, __, out: streams.append(out[0].detach()))
    logits = []
    for step in range(steps + 1):
        found = model(IDS[:, :-1]).logits
        logits.append(found.detach())
        if step < steps:
            F.cross_entropy(found.flatten(0, 1), IDS[:, 1:].flatten()).backward()
            built.step()
            built.zero_grad()
    return [(values[-1] - values[0]).square().mean().sqrt().item() for values in (streams, logits)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "tied"),
    [
        (AdamW(lr=0.01), False),
        (AdamW(lr=0.01), True),
        (Lion(lr=0.003), True),
        (Muon(lr=0.05, rest=AdamW(lr=0.01)), False),
    ],
)
def test_activations_change_equally_at_any_width(optimizer, tied):
    """Do the coordinate check (arXiv:2203.03466, appendix D.1)."""

    def powers(mup):
        found = [
            measure_changes(make_decoder_config(w, mup, tie_embeddings=tied), optimizer)
            for w in WIDTHS
        ]
        logs = [np.log(values) for values in zip(*found, strict=True)]
        return [float(np.polyfit(np.log(WIDTHS), values, 1)[0]) for values in logs]

    stream, logits = powers(MUP)
    # At these widths, the logits of fresh weights, which shrink with the width, are a part of the
    # logits.
    assert abs(stream) <= 0.15 and -0.5 <= logits <= 0.15, (stream, logits)
    stream, logits = powers(None)
    assert stream >= 1 and logits >= 0.45, (stream, logits)
