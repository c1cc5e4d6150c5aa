"""Fused projections, compared with separate ones."""

import functools

import pytest
import torch
from support.operator_counts import CountedOperators

from trainrig.models.architecture.attention_settings import (
    AttentionSettings,
    Biases,
    GatedAttention,
    LatentAttention,
)
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.architecture.layer_settings import (
    GEGLU,
    GELU,
    Alibi,
    LearnedPositions,
    MixtureOfExperts,
    ParallelBlock,
    SwiGLU,
)
from trainrig.models.decoder import Decoder, initialise
from trainrig.models.encoder import build_model
from trainrig.models.fused_projections import fuse_projections
from trainrig.parallel.layer_compilation import Compile, compile_layers
from trainrig.parallel.recompute import Full, Selective, choose_kept, recompute
from trainrig.parallel.training_statistics import ActivationStatistics

SIZES = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 64, "initial_std": 0.2}
VARIANTS = {
    "multi-head": {"kv_heads": 4},
    "grouped": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "biases": {"kv_heads": 2, "biases": Biases(qkv=True, feedforward=True)},
    "norm of heads": {"kv_heads": 2, "attention": AttentionSettings(qk_norm="head")},
    "norm of projections": {"kv_heads": 2, "attention": AttentionSettings(qk_norm="projection")},
    "gated attention": {"kv_heads": 2, "attention": GatedAttention()},
    "latent attention": {
        "attention": LatentAttention(latent_channels=12, rotated_channels=4, value_channels=6),
        "biases": Biases(qkv=True),
    },
    "GEGLU, parallel": {"feedforward": GEGLU(), "block": ParallelBlock()},
    "not gated, learnt positions": {
        "feedforward": GELU(),
        "position_embedding": LearnedPositions(),
    },
    "ALiBi": {"kv_heads": 2, "position_embedding": Alibi()},
    "experts": {
        "feedforward": MixtureOfExperts(experts=4, active=2, shared_experts=1, dense_layers=1)
    },
}
IDS = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def build(fused, kind=Decoder.Config, dtype=torch.float32, **changes):
    places = {} if kind is EncoderDecoderConfig else {"positions": 24}
    model = build_model(kind(**SIZES | places | changes))
    initialise(model, 0)
    model.to(dtype)
    if fused:
        fuse_projections(model)
    return model


def read(model):
    texts = (IDS, IDS.flip(0)) if model.config.kind == "EncoderDecoder" else (IDS,)
    return model(*texts).logits


def differentiate(model):
    """Return the logits, and the gradient of each parameter by name."""
    logits = read(model)
    logits.double().logsumexp(-1).mean().backward()
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_close(plain, fused, within):
    (logits, gradients) = plain
    (other_logits, others) = fused
    assert gradients.keys() == others.keys()
    assert (logits - other_logits).norm() <= within * logits.norm()
    whole = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    for name, gradient in gradients.items():
        # The bound also allows for gradients of pure rounding error, such as a key's bias.
        assert (gradient - others[name]).norm() <= within * max(gradient.norm(), 1e-2 * whole), name


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_outputs_and_gradients_equal_separate_products(changes, dtype, within):
    plain, fused = (
        differentiate(build(is_fused, dtype=dtype, **changes)) for is_fused in (False, True)
    )
    assert_close(plain, fused, within)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (EncoderConfig, {"kv_heads": 2}),
        (EncoderDecoderConfig, {"feedforward": GEGLU()}),
    ],
)
def test_encoders_and_encoder_decoders_are_fused_too(kind, changes):
    with Products() as apart:
        plain = differentiate(build(False, kind, **changes))
    with Products() as together:
        fused = differentiate(build(True, kind, **changes))
    assert together.count < apart.count
    assert_close(plain, fused, within=1e-6)


def test_names_and_values_of_parameters_are_unchanged():
    plain = build(False).state_dict()
    fused = build(True).state_dict()
    assert list(plain) == list(fused)
    assert all(torch.equal(value, fused[name]) for name, value in plain.items())


Products = functools.partial(
    CountedOperators,
    lambda operator: operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default),
)


@pytest.mark.parametrize(
    ("changes", "apart", "together"),
    [
        ({"feedforward": SwiGLU()}, 7, 4),
        ({"feedforward": SwiGLU(), "biases": Biases(qkv=True, feedforward=True)}, 7, 4),
        ({"feedforward": GELU()}, 6, 4),
    ],
)
def test_a_layer_makes_fewer_products(changes, apart, together):
    found = []
    for fused in (False, True):
        model = build(fused, layers=1, kv_heads=2, **changes)
        with Products() as forward:
            hidden = model(IDS).hidden
        with Products() as backward:
            hidden.sum().backward()
        assert backward.count == 2 * forward.count
        found.append(forward.count)
    assert found == [apart, together]


def count_kept_bytes(model):
    """Return the bytes that a forward pass keeps for the backward one, besides parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model(IDS).hidden
    assert hidden.requires_grad
    return sum(kept_storage.nbytes() for kept_storage in kept.values())


@pytest.mark.parametrize(
    "name", ["grouped", "norm of heads", "ALiBi", "not gated, learnt positions"]
)
def test_fusing_keeps_no_more_for_the_backward_pass(name):
    plain, fused = (
        count_kept_bytes(build(is_fused, **VARIANTS[name])) for is_fused in (False, True)
    )
    assert fused <= plain


def test_a_frozen_matrix_gets_no_gradient_and_the_others_do():
    gradients = []
    for fused in (False, True):
        model = build(fused, kv_heads=2)
        for layer in model.layers:
            layer.attention.key.weight.requires_grad_(False)
        gradients.append(differentiate(model))
    assert_close(*gradients, within=1e-6)
    assert not any("key" in name for name in gradients[1][1])


def test_inference_is_bit_identical_to_separate_products():
    plain = build(False, kv_heads=2)
    fused = build(True, kv_heads=2)
    with torch.no_grad():
        with Products() as apart:
            expected = read(plain)
        with Products() as asked:
            assert torch.equal(read(fused), expected)
        assert asked.count == apart.count
        measured = [
            ActivationStatistics(decoder).measure(lambda model=decoder: read(model))
            for decoder in (plain, fused)
        ]
    assert measured[0].keys() == measured[1].keys() and "layers/00/saturated" in measured[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grouped", "gated attention", "biases", "experts"])
def test_compiled_and_recomputed_layers_are_bit_identical(name):
    expected = differentiate(build(True, **VARIANTS[name]))
    for again in (None, Full(), Selective()):
        for compiled in (None, Compile(backend="aot_eager")):
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            model = build(True, **VARIANTS[name])
            recompute(model.layers, choose_kept(len(model.layers), again))
            compile_layers(model.layers, compiled)
            assert_close(expected, differentiate(model), within=0.0)
            if compiled and name != "experts":  # a decoder of experts alone has no such layer
                assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
