"""Whole decoders by each kernel, on a CPU that stands in for a GPU."""

from collections import Counter

import pytest
import torch
from support.kernel_stand_ins import stand_in
from torch.utils._python_dispatch import TorchDispatchMode

from trainrig.errors import ConfigError
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import DecoderConfig, initialise
from trainrig.models.encoder import build_model
from trainrig.sync_free_reads import remember_copy

LENGTH = 90
WINDOWS = {"attention": {"window": {"size": 20, "pattern": ("local", "global")}}}
CAPS = {"attention": {"logit_cap": 5.0, "sinks": True}}
ALIBI = {"position_embedding": {"kind": "Alibi"}}


def build(kernel, layers=2, kind=DecoderConfig, dtype=torch.bfloat16, **settings):
    sizes = {"layers": layers, "channels": 64, "heads": 4, "vocabulary": 32, "positions": LENGTH}
    if kind is DecoderConfig:
        sizes["kv_heads"] = 2
    model = build_model(kind(**sizes, **settings))
    initialise(model, 0)
    model.attention_kernel = kernel
    return model.to(dtype)


def read(model, packed=True):
    """Return the hidden states and the gradients of the parameters, as one vector."""
    ids = torch.randint(32, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    rows = {"positions_BT": torch.arange(LENGTH).remainder(40).expand(2, -1)} if packed else {}
    hidden = model(ids, **rows).hidden
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((hidden.float() * weights).sum(), list(model.layers.parameters()))
    return torch.cat([tensor.detach().float().flatten() for tensor in (hidden, *found)])


CASES = [
    ("flash", True, {}),
    ("flash", True, WINDOWS),
    ("flash", False, WINDOWS),
    ("triton", True, WINDOWS),
    ("triton", True, CAPS),
    ("triton", False, ALIBI),
]


@pytest.mark.parametrize(("kernel", "packed", "settings"), CASES)
def test_a_decoder_by_a_kernel_equals_blocks(kernel, packed, settings, monkeypatch):
    exact = read(build("plain", dtype=torch.float32, **settings), packed)
    with stand_in(monkeypatch):
        found = read(build(kernel, **settings), packed)
    assert (found - exact).norm() <= 2e-2 * exact.norm()


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("settings", [WINDOWS, CAPS, ALIBI])
def test_a_decoder_by_flex_attention_equals_blocks(packed, settings, kernels):
    torch._dynamo.reset()
    exact = read(build("plain", dtype=torch.float32, **settings), packed)
    found = read(build("flex", dtype=torch.float32, **settings), packed)
    assert (found - exact).norm() <= 1e-5 * exact.norm()


def test_an_encoder_is_read_by_flash_attention_from_both_sides(kernels):
    exact = read(build("plain", kind=EncoderConfig, dtype=torch.float32))
    found = read(build("flash", kind=EncoderConfig))
    assert (found - exact).norm() <= 2e-2 * exact.norm()


def test_plain_on_a_cpu_reads_documents_in_blocks_and_makes_no_mask():
    positions = torch.arange(LENGTH).remainder(40).expand(2, -1)
    sight = build("plain").sights(positions, positions, dtype=torch.bfloat16)[False]
    assert (sight.mask_B1TS, sight.rows, sight.kernel) == (None, None, "plain")
    apart, blocks = (read(build(kernel, dtype=torch.float32)) for kernel in ("auto", "plain"))
    assert (apart - blocks).norm() <= 1e-5 * apart.norm()


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.found[operator.overloadpacket.__name__] += 1
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernel", ["triton", "flash"])
def test_document_bounds_are_computed_once_for_all_layers_and_both_passes(kernel, kernels):
    """Count operators for each kind of layer.

    An operator is a kernel on a GPU, and an attention operator counts once.
    """
    found = []
    for layers in (2, 6):
        with Operators() as operators:
            read(build(kernel, layers, **WINDOWS))
        found.append(operators.found)
    few, many = found
    reached = ("cummax", "maximum", "minimum", "flip", "nonzero", "ne")
    assert {name: few[name] for name in reached} == {name: many[name] for name in reached}
    if kernel == "triton":
        assert few["cummax"] == 2 * 2  # two kinds of layers; starts and ends
        assert many["reach_attention"] == 3 * few["reach_attention"] == 6


def test_documents_of_a_batch_need_no_read_from_the_device(kernels):
    """Positions that were copied from the host need no read from the device."""
    positions = torch.arange(LENGTH).remainder(40).expand(2, -1).contiguous()
    remember_copy(positions, positions.clone())
    with Operators() as operators:
        model = build("flash")
        ids = torch.zeros(2, LENGTH, dtype=torch.long)
        model(ids, positions_BT=positions)
    assert operators.found["varlen_attention"] == 2
    known = model.sights(positions, None, dtype=torch.bfloat16)[False]
    assert known.rows is None  # one document a row uses torch's own attention


def test_tokens_after_a_cache_are_read_in_blocks(kernels):
    model = build("flash", **WINDOWS)
    ids = torch.arange(8).remainder(32).expand(1, -1)
    with torch.no_grad():
        whole = model(ids).hidden
        caches = [KeyValueCache() for _ in model.layers]
        parts = [model(ids[:, begin : begin + 4], caches).hidden for begin in (0, 4)]
    assert (torch.cat(parts, 1) - whole).abs().max() <= 5e-2


def test_an_unsuitable_kernel_is_refused_at_run_time():
    with pytest.raises(ConfigError, match=r"'flash'.*needs a GPU.*CPU"):
        read(build("flash"))
