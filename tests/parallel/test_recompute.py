import itertools

import pytest
import torch
from support.recomputed import MIXED, WAYS, build, gradients, kept_for_the_backward_pass
from torch.utils._python_dispatch import TorchDispatchMode

from trainrig.models.kernels import cpu_attention


@pytest.mark.slow
@pytest.mark.parametrize("way", ["all layers", "every second", "selective", "each in its way"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [None, "under a mask", "by document"])
def test_gradients_are_those_of_the_plain_model_to_the_bit(way, dtype, packed, monkeypatch):
    if packed == "by document":
        monkeypatch.setattr(cpu_attention, "TOGETHER", 64)
    plain = gradients(build(None, dtype), packed)
    again = gradients(build((WAYS | MIXED)[way], dtype), packed)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.slow
def test_the_more_is_computed_again_the_less_is_kept():
    kept = [kept_for_the_backward_pass(way) for way in WAYS.values()]
    none, every_layer, every_second, selective = kept
    assert every_layer < every_second < none
    assert every_layer < selective < none
    # Each layer keeps only its input, [B, T, C] of float32; the rest follows the last layer.
    a_stream = 3 * 48 * 32 * 4
    assert every_layer < 8 * a_stream
    assert every_layer < 0.1 * none
    assert selective < 0.6 * none


def test_names_of_parameters_stay():
    names = [[name for name, _ in build(way).named_parameters()] for way in WAYS.values()]
    assert all(other == names[0] for other in names)


@pytest.mark.slow
def test_selective_recomputation_repeats_only_cheap_operations(monkeypatch):
    counts = {}

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            counts[way, function] = counts.get((way, function), 0) + 1
            return function(*args, **(kwargs or {}))

    for way in ("none", "all layers", "selective"):
        with Calls():
            gradients(build(WAYS[way]))
    aten = torch.ops.aten
    products = [counts[way, aten.mm.default] for way in ("none", "all layers", "selective")]
    # Each of four layers has seven products; the last of them is not needed again.
    assert products == [products[0], products[0] + 4 * 6, products[0]]
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert [counts[way, attention] for way in WAYS if way != "every second"] == [4, 8, 4]
    assert counts["selective", aten.silu.default] == 2 * counts["none", aten.silu.default]


@pytest.mark.slow
@pytest.mark.parametrize("reshard", ["step", "layer"])
def test_sharded_training_leaves_the_same_bits_with_and_without(reshard, ranks, make_job, tmp_path):
    digests = set()
    for kind, world in itertools.product((None, "Full", "Selective"), (1, 2)):
        training = {"steps": 4, "parallel": {"kind": "FSDP", "reshard": reshard}}
        training |= {"recompute": {"kind": kind}} if kind else {}
        job = make_job(tmp_path, training=training)
        digests |= {answer["digest"] for answer in ranks(world, "steps", job=job, count=4)}
    assert len(digests) == 1
