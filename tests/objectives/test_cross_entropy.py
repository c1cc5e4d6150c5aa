import math

import pytest
import torch
import torch.nn.functional as F
from support.losses import cross_entropy_sum

from trainrig.objectives import cross_entropy
from trainrig.objectives.cross_entropy import token_nats
from trainrig.tokens.batches import IGNORE


def make_batch(rows=3, positions=7, vocabulary=11, scale=3.0):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, positions, vocabulary, generator=generator) * scale
    targets = torch.randint(vocabulary, (rows, positions), generator=generator)
    targets[0, 2] = targets[1, :] = IGNORE
    return logits, targets


def test_a_hand_worked_token_costs_minus_the_log_of_its_share():
    logits = torch.tensor([[[1.0, 2.0, 5.0]]]).log()
    assert token_nats(logits, torch.tensor([[2]])).tolist() == [[pytest.approx(math.log(8 / 5))]]
    assert cross_entropy_sum(logits, torch.tensor([[0]])).item() == pytest.approx(math.log(8))


@pytest.mark.parametrize("chunk_elements", [1, 11, 40, 2**24])
def test_values_and_gradients_are_torchs_however_the_rows_are_cut(monkeypatch, chunk_elements):
    monkeypatch.setitem(cross_entropy.CHUNK_ELEMENTS, "cpu", chunk_elements)
    logits, targets = make_batch()
    ours = logits.clone().requires_grad_()
    theirs = logits.clone().requires_grad_()
    sum_ours = cross_entropy_sum(ours, targets)
    sum_theirs = F.cross_entropy(theirs.flatten(0, 1), targets.flatten(), reduction="sum")
    (sum_ours / 5).backward()
    (sum_theirs / 5).backward()
    assert sum_ours.item() == pytest.approx(sum_theirs.item(), rel=1e-6)
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_the_rows_are_cut_changes_no_bit(monkeypatch, dtype):
    logits, targets = make_batch(rows=4, positions=33, vocabulary=100)
    found = []
    for chunk_elements in (1, 700, 2**24):
        monkeypatch.setitem(cross_entropy.CHUNK_ELEMENTS, "cpu", chunk_elements)
        mine = logits.to(dtype, copy=True).requires_grad_()
        nats = token_nats(mine, targets)
        nats.sum().backward()
        found.append((nats, mine.grad))
    for nats, gradients in found[1:]:
        assert torch.equal(nats, found[0][0])
        assert torch.equal(gradients, found[0][1])


def test_ignored_targets_cost_nothing_and_teach_nothing():
    logits, targets = make_batch()
    logits.requires_grad_()
    nats = token_nats(logits, targets)
    nats.sum().backward()
    ignored = targets == IGNORE
    assert nats.shape == targets.shape
    assert not nats[ignored].any()
    assert (nats[~ignored] > 0).all()
    assert not logits.grad[ignored].any()
    assert logits.grad[~ignored].any(-1).all()


def test_a_batch_with_nothing_to_train_on_is_zero_with_zero_gradients():
    logits, targets = make_batch()
    logits.requires_grad_()
    total = cross_entropy_sum(logits, torch.full_like(targets, IGNORE))
    total.backward()
    assert total.item() == 0
    assert not logits.grad.any()


def test_gradients_of_single_tokens_are_those_of_their_nats():
    logits, targets = make_batch(rows=2, positions=3, vocabulary=4)
    weights = torch.arange(6.0).view(2, 3)
    ours = logits.clone().requires_grad_()
    theirs = logits.clone().requires_grad_()
    (token_nats(ours, targets) * weights).sum().backward()
    reference = F.cross_entropy(theirs.flatten(0, 1), targets.flatten(), reduction="none")
    (reference.view(2, 3) * weights).sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)


def test_bfloat16_logits_are_added_up_in_float32():
    logits, targets = make_batch(vocabulary=5000, scale=1.0)
    halves = logits.bfloat16().requires_grad_()
    nats = token_nats(halves, targets)
    exact = token_nats(halves.detach().float(), targets)
    assert nats.dtype == torch.float32
    assert torch.equal(nats, exact)
    nats.sum().backward()
    assert halves.grad.dtype == torch.bfloat16


def test_huge_logits_overflow_nowhere():
    logits = torch.tensor([[[1e30, -1e30, 0.0]]], requires_grad=True)
    nats = token_nats(logits, torch.tensor([[0]]))
    nats.sum().backward()
    assert nats.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_nothing_of_the_size_of_the_logits_is_kept_but_the_logits():
    logits, targets = make_batch(vocabulary=300)
    logits.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        token_nats(logits, targets)
    large = [t for t in kept if t.numel() >= logits.numel()]
    assert [t.data_ptr() for t in large] == [logits.data_ptr()]
