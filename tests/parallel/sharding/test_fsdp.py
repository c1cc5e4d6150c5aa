import numpy as np
import pytest
import torch
from torch import nn

from trainrig.parallel.mesh import build_mesh, find_local_device
from trainrig.parallel.sharding.deterministic_reduction import UNITS_UNDER_WAY, SummedInTree
from trainrig.parallel.sharding.fsdp import shard
from trainrig.parallel.sharding.sum_tree import TreeSum
from trainrig.tokens.batches import MicroBatchSlot


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_of_ranks_are_added_up_not_averaged(world, deterministic, ranks):
    """Torch calls the replacement of its reduce-scatter in deterministic mode.

    The gradients are then views of the tensor that the replacement fills.
    """
    factors = (1.0, 10.0, 100.0)[:world]
    ((one, _),) = ranks(1, "sharded_gradient", factors=(1.0,), deterministic=False)
    answers = ranks(world, "sharded_gradient", factors=factors, deterministic=deterministic)
    for gradients, norm in answers:
        for whole, unit in zip(gradients, one, strict=True):
            np.testing.assert_allclose(whole, sum(factors) * unit, rtol=1e-5)
        expected = np.sqrt(
            sum(np.square(gradient, dtype=np.float64).sum() for gradient in gradients)
        )
        assert norm == pytest.approx(expected, rel=1e-6)
        assert norm == answers[0][1]


SIZES = {"layers": 2, "channels": 32, "heads": 2, "vocabulary": 64, "positions": 8}
LAYERS = ["layers.0", "layers.1"]


@pytest.mark.parametrize("reshard", ["step", "layer"])
def test_embedding_and_head_are_gathered_and_sent_by_themselves(reshard, ranks):
    """The head is gathered after the layers, and its gradient is sent before theirs.

    The embedding is gathered for a forward pass alone.
    """
    model = {**SIZES, "tie_embeddings": False}
    (gathered, sent, between), other = ranks(2, "units_sent", model=model, reshard=reshard)
    assert (gathered, sent, between) == other
    forward = ["", "embedding", *LAYERS, "head"]
    backward = LAYERS[::-1]
    passes = 2 * (forward + backward) if reshard == "layer" else forward
    assert gathered == passes
    assert sent[:3] == ["head", *backward]
    assert sorted(sent[3:]) == ["", "embedding"]
    for_a_step = dict.fromkeys(("embedding", *LAYERS), reshard == "step")
    assert between == {"": True, "head": True, **for_a_step}


def test_a_head_that_is_the_embedding_is_gathered_with_the_rest(ranks):
    gathered, sent, _ = ranks(1, "units_sent", model=SIZES, reshard="step")[0]
    assert not sent
    gathered, sent, _ = ranks(2, "units_sent", model=SIZES, reshard="step")[0]
    assert gathered == ["", *LAYERS]
    assert sent == [*LAYERS[::-1], ""]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("layers", [4, 24])
def test_bytes_in_flight_do_not_grow_with_the_model(world, layers, ranks):
    for unit, held, units in ranks(world, "under_way", layers=layers):
        assert units == UNITS_UNDER_WAY + 1  # the unit that begins, before the oldest is summed
        # The bytes sent and received; with 3 ranks, 64 rows are cut into 3 times 22.
        assert held <= units * 2 * unit * (66 / 64 if world == 3 else 1)


@pytest.mark.parametrize("virtual", [1, 3, 4])
def test_a_rank_alone_adds_up_each_gradient_as_soon_as_it_is_there(virtual, alone):
    """The tree is the same, but the gradients of a virtual worker are never held together."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(3)])
    model = nn.Sequential(*layers)
    mesh = build_mesh(find_local_device())
    root = shard(model, layers, mesh.sharding)
    parameters = list(model.parameters())
    gradients = SummedInTree([root], parameters, True, mesh)
    inputs = torch.randn(virtual, 5, 6)
    gradients.begin(virtual, virtual)
    for number in range(virtual):
        slot = MicroBatchSlot(number, True, number, closes=True)
        gradients.backward(model(inputs[number]).square().sum(), slot, last=number == virtual - 1)
        assert all(parameter.grad is None for parameter in parameters)
    gradients.finish()
    plain = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(3)))
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), parameters, strict=True):
            mine.copy_(theirs.full_tensor())  # type: ignore[attr-defined]
    leaves = []
    for number in range(virtual):
        plain.zero_grad()
        plain(inputs[number]).square().sum().backward()
        leaves.append([weight.grad.clone() for weight in plain.parameters()])
    for number, parameter in enumerate(parameters):
        tree = TreeSum(virtual)
        for leaf in range(virtual):
            tree.add((leaf, leaf + 1), leaves[leaf][number])
        assert torch.equal(parameter.grad.full_tensor(), tree.whole())
