"""Weights of a single rank, cast without FSDP.

tests/train/test_state.py shows that the steps are bit-identical to FSDP's.
"""

import torch
from torch import nn

from trainrig.parallel.precision import Precision
from trainrig.parallel.sharding.cast_weights import cast_weights, list_cast_units
from trainrig.parallel.sharding.fsdp import BackwardUnits, keep_gathered, prepare_unsharded, reshard

NARROW = Precision(compute="bfloat16")


class Model(nn.Module):
    """Two layers between an embedding, which is also the head, and a norm."""

    def __init__(self, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.norm = nn.LayerNorm(8)

    def forward(self, ids, times=1):
        x = self.embedding(ids)
        for layer in list(self.layers) * times:
            x = layer(x).relu()
        return self.norm(x) @ self.embedding.weight.T


def build(layers=2):
    torch.manual_seed(0)
    model = Model(layers)
    prepare_unsharded(model, model.layers, NARROW)
    return model, torch.arange(16)


def count_held_bytes(unit):
    return sum(copy.untyped_storage().nbytes() for copy in unit._copies)


def test_a_pass_computes_in_narrow_numbers_and_leaves_float32_gradients():
    model, ids = build()
    units = BackwardUnits([model])
    names = set(model.state_dict())
    units.prepare(0, True, True, True)
    logits = model(ids)
    assert logits.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert set(model.state_dict()) == names
    logits.float().square().sum().backward()
    units.finish_pass(last=True)
    for parameter in model.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32


def test_gradients_of_several_passes_are_added_up_in_float32():
    model, ids = build()
    units = BackwardUnits([model])

    def go_back(last):
        units.prepare(0, True, last, True)
        model(ids).float().square().sum().backward()
        units.finish_pass(last)
        return (
            {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
            if last
            else {}
        )

    alone = go_back(last=True)
    model.zero_grad()
    for number in range(3):
        several = go_back(last=number == 2)
    for name, gradient in alone.items():
        assert torch.equal(several[name], gradient + gradient + gradient), name


def test_the_last_backward_pass_lets_copies_go_layer_by_layer():
    model, ids = build(layers=3)
    units = BackwardUnits([model])
    own = [list_cast_units(layer)[0] for layer in model.layers]
    seen = []
    for number, layer in enumerate(model.layers):
        layer.register_full_backward_hook(
            lambda *_, number=number: seen.append(
                (number, [count_held_bytes(unit) for unit in own])
            )
        )
    for last in (False, True):
        units.prepare(0, True, last, True)
        model(ids).float().sum().backward()
        units.finish_pass(last)
    whole = 2 * (8 * 8 + 8)
    of_first = dict(seen[:3])
    of_last = dict(seen[3:])
    assert of_first[0] == [whole] * 3
    # After the pass of layer 1, layer 2 has released its copies, and layer 0 has not run yet.
    assert (of_last[1][0], of_last[1][2]) == (whole, 0)
    assert all(count_held_bytes(unit) == 0 for unit in list_cast_units(model))


def test_a_layer_that_is_gone_through_twice_keeps_its_copies_until_both_are_back():
    model, ids = build()
    units = BackwardUnits([model])
    units.prepare(0, True, True, True)
    model(ids, times=2).float().square().sum().backward()
    units.finish_pass(last=True)
    torch.manual_seed(0)
    plain = Model().bfloat16()
    plain(ids, times=2).float().square().sum().backward()
    for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad.float(), rtol=0.05, atol=0.05)


def test_a_pass_whose_gradient_never_comes_keeps_copies_and_lets_them_go_at_the_end():
    model, ids = build()
    units = BackwardUnits([model])
    model(ids)  # a forward pass without a backward pass
    units.prepare(0, True, True, True)
    model(ids).float().sum().backward()
    assert all(count_held_bytes(unit) for unit in list_cast_units(model))
    units.finish_pass(last=True)
    assert not any(count_held_bytes(unit) for unit in list_cast_units(model))
    units.prepare(0, True, True, True)
    model(ids).float().sum().backward()
    assert not any(count_held_bytes(list_cast_units(layer)[0]) for layer in model.layers)


def test_narrow_weights_are_not_copied_and_frozen_ones_get_no_gradient():
    model, ids = build()
    model.layers[0].to(torch.bfloat16).requires_grad_(False)
    model.layers[1].requires_grad_(False)
    units = BackwardUnits([model])
    units.prepare(0, True, True, True)
    model(ids).float().sum().backward()
    assert not list_cast_units(model.layers[0])[0]._copies
    units.finish_pass(last=True)
    assert all(parameter.grad is None for layer in model.layers for parameter in layer.parameters())
    assert model.embedding.weight.grad is not None


def test_an_update_is_seen_by_the_next_pass():
    model, ids = build()
    with torch.no_grad():
        before = model(ids)
        reshard(model)
        for parameter in model.parameters():
            parameter.add_(1)
        after = model(ids)
    assert not torch.equal(before, after)


def test_passes_that_keep_copies_make_them_once_and_may_infer():
    model, ids = build()
    with torch.inference_mode():
        model(ids)
    with torch.no_grad(), keep_gathered(model, True):
        copies = [unit._copies for unit in list_cast_units(model)]
        with torch.inference_mode():
            said = model(ids)
        assert [unit._copies for unit in list_cast_units(model)] == copies
    reshard(model)
    units = BackwardUnits([model])
    units.prepare(0, True, True, True)
    trained = model(ids)
    trained.float().sum().backward()
    assert torch.equal(trained, said)


def test_a_parameter_of_two_modules_is_cast_once():
    model = Model()
    model.layers[1].weight = model.layers[0].weight
    cast_weights(model, [], torch.bfloat16)
    (unit,) = list_cast_units(model)
    unit.cast()
    assert model.layers[0].weight is model.layers[1].weight
    assert len(unit._copies) == len(list(model.parameters()))
