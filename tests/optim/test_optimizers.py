"""Optimizers against references, after a split into parts, and by their declared properties."""

import itertools
import math

import pytest
import torch
from torch import nn
from transformers.optimization import Adafactor as TransformersAdafactor

from trainrig import config as run_files
from trainrig.errors import ConfigError
from trainrig.optim import SGD, Adafactor, Adam, AdamW, Lion, Muon
from trainrig.optim.named_groups import build_optimizer

MATRIX = "layers.0.up.weight"
STACK = "layers.0.experts.up"
VECTOR = "norm.weight"


def draw_gradients(sizes, steps=12):
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(size, generator=generator) for size in sizes] for _ in range(steps)]


def update(make, starts, steps):
    """Return `starts` after `steps` of gradients by the optimizer `make([parameter, …])`."""
    parameters = [nn.Parameter(start.clone()) for start in starts]
    optimizer = make(parameters)
    for step in steps:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def make_optimizer(settings, *names):
    return lambda parameters: build_optimizer(zip(names, parameters, strict=True), settings)


REFERENCES = {
    "SGD": (
        SGD(lr=0.1, momentum=0.8, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True),
    ),
    "SGD without a sum": (SGD(lr=0.1, momentum=0), lambda p: torch.optim.SGD(p, lr=0.1)),
    "Adam": (Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01, foreach=False)),
    "AdamW": (
        AdamW(lr=0.01, weight_decay=0.0),
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.95), weight_decay=0, foreach=False),
    ),
    "Adafactor": (
        Adafactor(lr=0.05),
        lambda p: TransformersAdafactor(p, lr=0.05, relative_step=False),
    ),
    "Adafactor, rates as they are": (
        Adafactor(lr=0.05, scale_by_size=False, clip=0.5),
        lambda p: TransformersAdafactor(
            p, lr=0.05, relative_step=False, scale_parameter=False, clip_threshold=0.5
        ),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_twelve_steps_are_the_references(name):
    settings, reference = REFERENCES[name]
    starts = [torch.randn(33, 17), torch.randn(17)]
    steps = draw_gradients([(33, 17), (17,)])
    found = update(make_optimizer(settings, MATRIX, VECTOR), starts, steps)
    expected = update(reference, starts, steps)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [(33, 17), (8, 24)])
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs(size, scale, nesterov):
    starts = [torch.randn(size)]
    steps = draw_gradients([size])
    settings = Muon(lr=0.02, scale=scale, nesterov=nesterov)
    (found,) = update(make_optimizer(settings, MATRIX), starts, steps)
    (expected,) = update(
        lambda p: torch.optim.Muon(p, lr=0.02, adjust_lr_fn=scale, nesterov=nesterov), starts, steps
    )
    # A last-bit difference in the average may round to another bfloat16 number.
    assert (found - expected).norm() <= 1e-3 * (expected - starts[0]).norm()


def test_muon_makes_the_singular_values_of_each_matrix_of_a_stack_alike():
    start = torch.zeros(3, 9, 5)
    steps = draw_gradients([(3, 9, 5)], steps=1)
    settings = Muon(lr=1.0, products="float32", nesterov=False)
    (moved,) = update(make_optimizer(settings, STACK), [start], steps)
    for number in range(3):
        (alone,) = update(make_optimizer(settings, MATRIX), [start[0]], [[steps[0][0][number]]])
        torch.testing.assert_close(moved[number], alone)
        values = torch.linalg.svdvals(alone / math.sqrt(9 / 5))
        assert values.min() > 0.6 and values.max() < 1.3


def test_muon_leaves_tables_heads_and_gains_to_the_other_optimizer():
    names = ("embedding.weight", "head.weight", "position_embedding.weight", VECTOR, "x.up.bias")
    sizes = [(9, 4), (9, 4), (9, 4), (4,), (4,)]
    starts = [torch.randn(size) for size in sizes]
    steps = draw_gradients(sizes)
    rest = AdamW(lr=0.01, weight_decay=0.3)
    found = update(make_optimizer(Muon(rest=rest), *names), starts, steps)
    optimizer = make_optimizer(Muon(rest=rest), *names)([nn.Parameter(start) for start in starts])
    assert [type(part) for part in optimizer.parts] == [torch.optim.AdamW]
    for group in optimizer.param_groups:
        assert group["rate_share"] * Muon().lr == pytest.approx(0.01)
    assert optimizer.param_groups[0]["weight_decay"] == 0.3
    expected = update(make_optimizer(rest, *names), starts, steps)
    torch.testing.assert_close(found, expected)


def test_lion_follows_the_paper():
    start = torch.randn(5, 7)
    steps = draw_gradients([(5, 7)])
    settings = Lion(lr=0.01, betas=(0.8, 0.9), weight_decay=0.3)
    weight = start.double()
    average = torch.zeros(5, 7, dtype=torch.float64)
    for (gradient,) in steps:
        direction = (0.8 * average + 0.2 * gradient.double()).sign()
        weight = weight - 0.01 * (direction + 0.3 * weight)
        average = 0.9 * average + 0.1 * gradient.double()
    (found,) = update(make_optimizer(settings, MATRIX), [start], steps)
    torch.testing.assert_close(found, weight.float(), rtol=1e-5, atol=1e-5)


def test_adafactors_decay_is_the_rate_times_the_weight():
    start = torch.randn(5, 7)
    still = [[torch.zeros(5, 7)]]
    settings = Adafactor(lr=0.1, scale_by_size=False, weight_decay=0.5)
    (found,) = update(make_optimizer(settings, MATRIX), [start], still)
    torch.testing.assert_close(found, start * (1 - 0.1 * 0.5))


ELEMENTWISE = [
    SGD(nesterov=True),
    Adam(weight_decay=0.1),
    AdamW(state="bfloat16"),
    Lion(),
    Lion(state="bfloat16"),
]


@pytest.mark.parametrize(
    "settings", ELEMENTWISE, ids=lambda optimizer: f"{optimizer.kind} {optimizer.state}"
)
@pytest.mark.parametrize("cuts", [[0, 1, 2, 9, 100, 213, 400], [0, 133, 266, 400]])
def test_the_update_of_a_piece_is_bit_for_bit_the_piece_of_the_update(settings, cuts):
    start = torch.randn(400, 3)  # 3 fills no SIMD vector
    steps = draw_gradients([(400, 3)])
    (whole,) = update(make_optimizer(settings, MATRIX), [start], steps)
    pieces = []
    for low, high in itertools.pairwise(cuts):
        cut = [[gradient[low:high]] for (gradient,) in steps]
        pieces += update(make_optimizer(settings, MATRIX), [start[low:high]], cut)
    assert torch.equal(torch.cat(pieces), whole)


ROUNDED = [AdamW, Lion, SGD, lambda **kept: Muon(products="float32", **kept)]


@pytest.mark.parametrize("kind", ROUNDED)
def test_averages_in_bfloat16_lead_within_a_hundredth_of_where_float32_does(kind):
    start = torch.zeros(64, 48)
    steps = draw_gradients([(64, 48)], steps=40)
    exact, rounded = (
        update(make_optimizer(kind(state=state, weight_decay=0), MATRIX), [start], steps)[0]
        for state in ("float32", "bfloat16")
    )
    assert not torch.equal(exact, rounded)
    assert (exact - rounded).norm() <= 0.01 * exact.norm() * (8 if kind is Lion else 1)


ALL = [
    SGD(),
    SGD(momentum=0),
    Adam(),
    AdamW(),
    AdamW(state="bfloat16"),
    Lion(),
    Adafactor(),
    Muon(),
]


@pytest.mark.parametrize("settings", ALL, ids=lambda optimizer: optimizer.kind)
def test_each_declares_the_bytes_that_it_keeps(settings):
    sizes = {MATRIX: (6, 4), STACK: (2, 6, 4), VECTOR: (4,), "embedding.weight": (9, 4)}
    parameters = {name: nn.Parameter(torch.ones(size)) for name, size in sizes.items()}
    optimizer = build_optimizer(parameters.items(), settings)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = {id(p): state for part in optimizer.parts for p, state in part.state.items()}
    for name, parameter in parameters.items():
        held = kept.get(id(parameter), {}).values()
        found = sum(t.nbytes for t in held if isinstance(t, torch.Tensor) and t.ndim)
        assert settings.count_state_bytes(name, sizes[name]) == found


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        (SGD, {"momentum": 0.0, "nesterov": True}, "nesterov = true needs momentum above 0"),
        (Adam, {"state": "bfloat16"}, "set the rate to 0.99 or below, or state = 'float32'"),
        (Muon, {"rest": {"kind": "Lion"}}, "rest"),
        (Muon, {"scale": "none"}, "match_rms_adamw"),
        (Adafactor, {"betas": [0.9, 0.9]}, "no key 'betas'"),
        (Lion, {"lr": 0.0}, "lr"),
    ],
)
def test_invalid_optimizer_settings_are_rejected(kind, keys, message):
    with pytest.raises(ConfigError) as caught:
        run_files.build(kind, keys, "run.toml")
    assert message in str(caught.value)
