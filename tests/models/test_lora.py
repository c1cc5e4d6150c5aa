"""Adapters in a decoder, compared with plain arithmetic and PEFT's layers."""

import pytest
import torch

from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.architecture.lora_settings import LoRA, list_matrices
from trainrig.models.decoder import Decoder
from trainrig.models.encoder import build_model
from trainrig.models.lora import (
    adapt,
    draw_adapter_value,
    list_dropouts,
    merge,
    quantise,
    restore,
    round_to_base,
)

ALL = ("attention.*", "feedforward.*", "embedding")
KINDS = {
    "plain": LoRA(rank=4, alpha=8),
    "rslora": LoRA(rank=4, alpha=8, rslora=True, targets=("attention.query", "layers.1.*")),
    "dora": LoRA(rank=4, alpha=8, dora=True),
    "embedding": LoRA(rank=4, alpha=8, targets=ALL),
    "bfloat16": LoRA(rank=4, alpha=8, base="bfloat16", targets=ALL),
    "int8": LoRA(rank=4, alpha=8, base="int8", targets=ALL),
    "int8 dora": LoRA(rank=4, alpha=8, base="int8", dora=True),
}


@pytest.fixture
def ids():
    return torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def whole(build):
    return build(seed=1)


def add_adapters(whole, lora, trained=False):
    """Return a copy of `whole` with adapters, which are fresh or `trained` to change something."""
    model = Decoder(whole.config)
    model.load_state_dict(whole.state_dict())
    with torch.device("meta"):
        target = Decoder(whole.config)
        adapt(target, lora)
    target.to_empty(device="cpu")
    dice = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            path, _, last = name.rpartition(".")
            if last in ("lora_a", "lora_b"):
                value = draw_adapter_value(name, parameter.shape, 0)
                if trained:
                    value = torch.randn(parameter.shape, generator=dice) * 0.2
            elif last == "magnitude":
                value = round_to_base(
                    f"{path}.weight", whole.state_dict()[f"{path}.weight"], lora.base
                )
                value = value.norm(dim=1) * (1.5 if trained else 1)
            elif last == "scales":
                _, value = quantise(whole.state_dict()[f"{path}.weight"])
            else:
                value = whole.state_dict()[name]
                if parameter.dtype == torch.int8:
                    value, _ = quantise(value)
            parameter.copy_(value)
    return target


def trained_part(model):
    return {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_adapter_changes_nothing(kind, whole, ids):
    lora = KINDS[kind]
    found = add_adapters(whole, lora)(ids).logits
    weights = {name: round_to_base(name, w, lora.base) for name, w in whole.state_dict().items()}
    whole.load_state_dict(weights)
    torch.testing.assert_close(found, whole(ids).logits, rtol=1e-4, atol=1e-4)
    if kind in ("plain", "rslora", "embedding"):
        assert torch.equal(found, whole(ids).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_equal_the_adapter(kind, whole, ids):
    lora = KINDS[kind]
    model = add_adapters(whole, lora, trained=True)
    before = whole(ids).logits
    weights = {
        name: round_to_base(name, w, lora.base).clone() for name, w in whole.state_dict().items()
    }
    merged = merge(weights, trained_part(model), lora)
    whole.load_state_dict(merged)
    expected = whole(ids).logits
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-3, atol=1e-3)
    assert (expected - before).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["plain", "embedding", "dora", "int8"])
def test_gradients_reach_the_adapter_alone(kind, whole, ids):
    model = add_adapters(whole, KINDS[kind], trained=True)
    model(ids).logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        if parameter.grad is not None:
            assert parameter.grad.abs().sum() > 0, name


def test_gradients_equal_those_of_the_merged_weights(whole, ids):
    lora = KINDS["embedding"]
    model = add_adapters(whole, lora, trained=True)
    model(ids).logits.square().mean().backward()
    part = {name: p.clone().requires_grad_() for name, p in trained_part(model).items()}
    merged = merge(whole.state_dict(), part, lora)
    output = torch.func.functional_call(whole, merged, ids)
    output.logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, part[name].grad, rtol=1e-3, atol=1e-5)


def test_int8_is_within_half_a_step_and_row_by_row():
    weight = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    rounded, scales = quantise(weight)
    error = (restore(rounded, scales) - weight).abs()
    assert (error <= scales[:, None] / 2 * 1.0001).all()
    assert rounded.abs().amax(1).tolist() == [127, 127, 127, 0, 127, 127, 127]
    for row in range(7):
        alone, scale = quantise(weight[row : row + 1])
        assert torch.equal(alone[0], rounded[row]) and scale == scales[row]


def test_scales_are_the_known_ones():
    assert LoRA(rank=8, alpha=16).scale == 2
    assert LoRA(rank=8, alpha=16, rslora=True).scale == pytest.approx(5.656854, abs=1e-6)
    bound = draw_adapter_value("x.lora_a", (64, 100), 0).abs().max()
    assert 0.095 < bound <= 0.1
    assert not draw_adapter_value("x.lora_b", (8, 4), 0).any()


def test_fresh_values_depend_on_seed_name_and_position_and_not_on_torchs_generator():
    before = torch.get_rng_state()
    drawn = draw_adapter_value("x.lora_a", (64, 100), 0)
    assert torch.equal(torch.get_rng_state(), before)
    # Any slice can be drawn alone.
    assert torch.equal(drawn[:7], draw_adapter_value("x.lora_a", (7, 100), 0))
    assert abs(drawn.mean()) < 0.003 and float(drawn.std()) == pytest.approx(0.1 / 3**0.5, rel=0.03)
    for name, seed in (("y.lora_a", 0), ("x.lora_a", 1)):
        assert not torch.equal(drawn, draw_adapter_value(name, (64, 100), seed))


def test_a_pattern_without_matches_is_refused_with_the_layers(whole):
    with pytest.raises(ConfigError, match=r"'q_proj' matches no layer.*attention\.query"):
        adapt(whole, LoRA(targets=("attention.*", "q_proj")))
    with pytest.raises(ConfigError, match="an embedding, which DoRA does not support"):
        adapt(whole, LoRA(targets=("embedding",), dora=True))
    chosen = LoRA(targets=("layers.1.attention.*",)).choose(whole.config)
    assert chosen == [f"layers.1.attention.{n}" for n in ("query", "key", "value", "output")]


SIZES = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 61, "positions": 24}
EXPERTS = {"kind": "MixtureOfExperts", "experts": 4, "active": 2}
CONFIGS = {
    "tied": DecoderConfig(**SIZES, biases={"qkv": True}),
    "learned": DecoderConfig(
        **SIZES, tie_embeddings=False, position_embedding={"kind": "LearnedPositions"}
    ),
    "score": DecoderConfig(**SIZES).with_score_head(),
    "gated": DecoderConfig(**SIZES, attention={"kind": "GatedAttention"}),
    "mixture": DecoderConfig(**SIZES, feedforward=EXPERTS | {"shared_experts": 1}),
    "shared gate": DecoderConfig(
        **SIZES, feedforward=EXPERTS | {"shared_experts": 1, "shared_gate": True}
    ),
    "latent": DecoderConfig(
        **SIZES,
        attention={
            "kind": "LatentAttention",
            "latent_channels": 12,
            "query_channels": 20,
            "rotated_channels": 4,
            "value_channels": 6,
        },
    ),
    "encoder": EncoderConfig(**SIZES).with_head("classes", ("a", "b")),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_layers_that_may_be_named_are_known_without_the_model(config):
    with torch.device("meta"):
        model = build_model(config)
    there = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding)
        and not (config.head != "tokens" and name.startswith(("head", "pooler", "transform")))
    ]
    assert sorted(list_matrices(config)) == sorted(there)


def test_routers_stay_as_they_are(build):
    mixture = build(feedforward=EXPERTS | {"shared_experts": 1}).config
    model = Decoder(mixture)
    adapt(model, LoRA(base="int8"))
    router = model.layers[0].feedforward.router
    assert type(router) is torch.nn.Linear and router.weight.dtype == torch.float32
    assert not router.weight.requires_grad
    assert LoRA().describe_choice(mixture) == ", ".join(
        f"{name} x 2"
        for name in (
            *(f"attention.{n}" for n in ("query", "key", "value", "output")),
            *(f"feedforward.shared.{n}" for n in ("gate", "up", "down")),
        )
    )
    alone = build(feedforward=EXPERTS).config  # the default targets match its routers
    assert {name.split(".")[2] for name in LoRA().choose(alone)} == {"attention"}
    for targets, said in (
        (("attention.*", "feedforward.router"), "'feedforward.router' names routers.*leave it out"),
        (("router",), "'router' names routers.*layers of this model are: attention.key"),
        (("feedforward.*",), r"'feedforward.\*' matches only routers"),
    ):
        with pytest.raises(ConfigError, match=said):
            adapt(Decoder(alone), LoRA(targets=targets))


@pytest.mark.parametrize("base", ["float32", "bfloat16", "int8"])
def test_a_mixture_with_an_adapter_equals_its_merged_weights(base, build, ids):
    """Keep experts and routers in float32, whatever the other weights' dtype."""
    whole = build(seed=1, feedforward=EXPERTS | {"shared_experts": 1})
    lora = LoRA(rank=4, alpha=8, base=base)
    model = add_adapters(whole, lora, trained=True)
    weights = {name: round_to_base(name, w, lora.base) for name, w in whole.state_dict().items()}
    whole.load_state_dict(merge(weights, trained_part(model), lora))
    torch.testing.assert_close(model(ids).logits, whole(ids).logits, rtol=1e-3, atol=1e-3)


def test_dropout_goes_by_sample_layer_and_place_and_is_off_in_evaluation(whole, ids):
    lora = LoRA(rank=4, alpha=8, dropout=0.4)
    model = add_adapters(whole, lora, trained=True)

    def logits(given, samples):
        return _with(model, given, samples)

    both = logits(ids, [7, 900])
    for row, sample in enumerate((7, 900)):
        torch.testing.assert_close(logits(ids[row : row + 1], [sample])[0], both[row])
    padded = torch.cat([ids, torch.zeros(2, 5, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(logits(padded, [7, 900])[:, :9], both)
    assert not torch.allclose(logits(ids, [8, 901]), both)
    twice = logits(torch.cat([ids, ids]), [7, 900])  # chosen answers, then rejected ones
    torch.testing.assert_close(twice[:2], both)
    assert not torch.allclose(twice[2:], both)
    with torch.no_grad():
        plain = add_adapters(whole, LoRA(rank=4, alpha=8), trained=True)(ids).logits
        assert torch.equal(model(ids).logits, plain)
    first, second = list_dropouts(model)[:2]
    x = torch.ones(2, 400, 50)
    first.samples_B = second.samples_B = torch.tensor([1, 2])
    kept = first(x)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert float((kept == 0).float().mean()) == pytest.approx(0.4, abs=0.01)
    assert not torch.equal(kept, second(x)) and not torch.equal(kept[0], kept[1])
    again = LoRA(rank=4, alpha=8, dropout=0.4, dropout_seed=1)
    assert not torch.allclose(
        logits(ids, [7, 900]), _with(add_adapters(whole, again, trained=True), ids, [7, 900])
    )


def _with(model, ids, samples):
    for dropout in list_dropouts(model):
        dropout.samples_B = torch.tensor(samples)
    return model(ids).logits.detach()
