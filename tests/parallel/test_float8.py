import functools

import pytest
import torch
from support.operator_counts import CountedOperators
from torch import nn

from trainrig.errors import ConfigError
from trainrig.parallel.float8 import check_float8, use_float8
from trainrig.parallel.layer_compilation import Compile, compile_layers
from trainrig.parallel.precision import LossScale, Precision
from trainrig.parallel.recompute import Full, Selective, choose_kept, recompute

FLOAT8 = Precision(compute="float8")


@pytest.mark.parametrize("rows", [32, 21])
def test_products_and_their_gradients_are_within_an_eighth_of_exact(rows):
    torch.manual_seed(0)
    exact = nn.Linear(64, 48)
    rounded = nn.Linear(64, 48)
    rounded.load_state_dict(exact.state_dict())
    use_float8(nn.ModuleList([rounded]), FLOAT8)
    found = []
    for layer in (exact, rounded):
        dice = torch.Generator().manual_seed(1)
        x = torch.randn(rows, 64, generator=dice).requires_grad_()
        y = layer(x)
        (y * torch.randn(rows, 48, generator=dice)).sum().backward()
        found.append((y.detach(), x.grad, layer.weight.grad, layer.bias.grad))
    for near, far in zip(*found, strict=True):
        assert near.shape == far.shape
        assert (near - far).norm() <= 0.125 * near.norm()
    assert not torch.equal(found[0][0], found[1][0])


def test_layers_whose_dims_are_no_multiples_of_16_stay_as_they_are():
    layer = nn.Linear(20, 16)
    use_float8(nn.ModuleList([layer]), FLOAT8)
    assert layer.forward.__func__ is nn.Linear.forward  # type: ignore[attr-defined]


def test_other_precisions_change_no_layer():
    layer = nn.Linear(16, 16)
    use_float8(nn.ModuleList([layer]), Precision(compute="bfloat16"))
    assert layer.forward.__func__ is nn.Linear.forward  # type: ignore[attr-defined]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_device_without_float8_is_refused_with_what_would_work():
    with pytest.raises(ConfigError, match=r"needs an NVIDIA Ada.*CPU.*'bfloat16'"):
        check_float8(FLOAT8)
    check_float8(Precision())


class Layer(nn.Module):
    """Feed-forward part with its norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(64)
        self.up = nn.Linear(64, 128, bias=False)
        self.down = nn.Linear(128, 64, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


@pytest.mark.slow
def test_compiled_layers_share_one_graph_and_give_the_bits_of_plain_ones():
    found = []
    for compiled in (None, Compile(backend="aot_eager", shapes=1)):
        torch.manual_seed(0)
        layers = nn.Sequential(Layer(), Layer(), Layer()).bfloat16()
        names = list(layers.state_dict())
        use_float8(list(layers), FLOAT8)
        compile_layers(list(layers), compiled)
        assert list(layers.state_dict()) == names
        x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
        y = layers(x)
        y.float().square().sum().backward()
        found.append([y.detach(), x.grad, *(parameter.grad for parameter in layers.parameters())])
    for plain, graph in zip(*found, strict=True):
        assert torch.equal(plain, graph)


Products = functools.partial(
    CountedOperators, lambda operator: operator == torch.ops.aten._scaled_mm.default
)


@pytest.mark.parametrize(("kept", "again"), [(Selective(), 0), (Full(), 2), (None, 0)])
def test_selective_recomputation_keeps_what_products_gave(kept, again):
    layer = Layer().bfloat16()
    use_float8([layer], FLOAT8)
    recompute([layer], choose_kept(1, kept))
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    with Products() as products:
        layer(x).float().square().sum().backward()
    assert products.count == 6 + again  # two projections with three products each


def test_a_loss_scale_doubles_after_clean_updates_and_halves_down_to_1():
    scale = Precision(
        compute="float16", loss_scale_exponent=1, loss_scale_interval=2
    ).make_first_scale()
    assert scale == LossScale(2.0, 2)
    scale.succeed()
    assert scale.factor == 2
    scale.succeed()
    assert (scale.factor, scale.clean) == (4, 0)
    assert [scale.back_off() for _ in range(3)] == [True, True, False]
    assert scale.factor == 1


def test_only_float16_scales_losses():
    assert Precision(compute="bfloat16").make_first_scale() is None
