import functools

import pytest
import torch
import torch.nn.functional as F
from support.operator_counts import CountedOperators

from trainrig.models.output import Head, ModelOutput
from trainrig.objectives import chunked_head, cross_entropy
from trainrig.objectives.chunked_head import Extras, compute_head_loss
from trainrig.objectives.cross_entropy import token_nats
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.objective_kinds import SFT, CausalLM, Distillation
from trainrig.objectives.teacher_divergence import read_beside_teacher
from trainrig.tokens.batches import IGNORE

V = 37
C = 8


@pytest.fixture
def case():
    """Return hidden states, a head's weight and targets, some of them IGNORE."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 11, C, generator=generator)
    weight = torch.randn(V, C, generator=generator)
    targets = torch.randint(V, (3, 11), generator=generator)
    targets[0, 2] = targets[1, :] = IGNORE
    return hidden, weight, targets


def compute_gradients(loss, hidden, weight, dtype=torch.float32):
    """Return the gradients of `loss(hidden, weight)` with respect to both, and its value."""
    leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in (hidden, weight)]
    value = loss(*leaves)
    value.backward()
    return value.detach(), leaves[0].grad, leaves[1].grad


@pytest.mark.parametrize("block", [1, 100, 2**22])
@pytest.mark.parametrize("chunk", [1, 100])
def test_values_and_gradients_are_those_of_all_logits(case, monkeypatch, block, chunk):
    monkeypatch.setitem(chunked_head.BLOCK_ELEMENTS, "cpu", block)
    monkeypatch.setitem(cross_entropy.CHUNK_ELEMENTS, "cpu", chunk)
    hidden, weight, targets = case
    ours = compute_gradients(
        lambda h, w: compute_head_loss(h, Head(w), targets).nats_BT.sum() / 7, hidden, weight
    )
    plain = compute_gradients(
        lambda h, w: token_nats(F.linear(h, w), targets).sum() / 7, hidden, weight
    )
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    nats = compute_head_loss(hidden, Head(weight), targets).nats_BT
    torch.testing.assert_close(nats, token_nats(F.linear(hidden, weight), targets))
    assert not nats[targets == IGNORE].any()


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z", [0.0, 0.3])
def test_the_terms_of_causal_lm_are_autograds(case, cap, smoothing, z):
    hidden, weight, targets = case
    objective = CausalLM(z_loss=z, label_smoothing=smoothing)

    arrays = {"ids": targets, "targets": targets}
    batch = DeviceBatch(arrays, torch.arange(3), torch.zeros(3))

    def ours(h, w):
        found = objective.compute(
            lambda ids: ModelOutput(h, Head(w, None, cap, 1.5)), batch, {}
        ).terms
        return sum(term.weight * found[term.name].values.sum() for term in objective.terms)

    def plain(h, w):
        logits = 1.5 * F.linear(h, w).flatten(0, 1)
        logits = logits if cap is None else cap * (logits / cap).tanh()
        nats = F.cross_entropy(
            logits, targets.flatten(), reduction="sum", label_smoothing=smoothing
        )
        trained = (targets != IGNORE).flatten()
        return nats + z * logits.logsumexp(-1)[trained].square().sum()

    for mine, theirs in zip(
        compute_gradients(ours, hidden, weight),
        compute_gradients(plain, hidden, weight),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_tokens_that_count_differently_and_a_second_backward_pass_are_computed_again(case):
    hidden, weight, targets = case
    counts = torch.rand(targets.shape)

    def twice(h, w):
        nats = compute_head_loss(h, Head(w), targets).nats_BT
        nats.sum().backward(retain_graph=True)
        return (nats * counts).sum() + nats.sum()

    def plain(h, w):
        nats = token_nats(F.linear(h, w), targets)
        return (nats * counts).sum() + 2 * nats.sum()

    _, *ours = compute_gradients(twice, hidden, weight)
    _, *theirs = compute_gradients(plain, hidden, weight)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("again", [False, True])
def test_weights_multiply_nats_and_their_gradients(case, again):
    """This holds for stored gradients and for gradients computed again after a weight change."""
    hidden, weight, targets = case
    weights = torch.randint(0, 300, targets.shape)
    counts = torch.rand(targets.shape) if again else torch.ones(())
    extras = Extras(z=0.2, uniform=0.1)

    def ours(h, w):
        loss = compute_head_loss(h, Head(w), targets, extras, weights_BT=weights)
        assert torch.equal(loss.nats_BT, unweighted.nats_BT * weights)
        assert torch.equal(loss.z_BT, unweighted.z_BT)
        return (loss.nats_BT * counts).sum() / 700

    def plain(h, w):
        loss = compute_head_loss(h, Head(w), targets, extras)
        return (loss.nats_BT * weights * counts).sum() / 700

    unweighted = compute_head_loss(hidden, Head(weight), targets, extras)
    for mine, theirs in zip(
        compute_gradients(ours, hidden, weight),
        compute_gradients(plain, hidden, weight),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


Products = functools.partial(
    CountedOperators, lambda operator: operator._schema.name in ("aten::mm", "aten::addmm_")
)


@pytest.mark.parametrize("objective", [CausalLM(), SFT(), SFT(z_loss=0.1), Distillation()])
def test_no_product_of_the_head_is_computed_twice(case, objective):
    """Three products suffice: logits, gradient of hidden states, gradient of the weight."""
    hidden, weight, targets = (tensor.detach() for tensor in case)
    entries = torch.zeros(*targets.shape, 1, dtype=torch.long)
    arrays = {"ids": targets, "targets": targets, "weights": torch.randint(1, 300, targets.shape)}
    arrays |= {"teacher_ids": entries, "teacher_log_probabilities": entries - 1.0}
    arrays |= {"teacher_rest": torch.full(targets.shape, 0.5).log()}
    batch = DeviceBatch(arrays, torch.arange(len(targets)), torch.zeros(len(targets)))
    output = ModelOutput(hidden.requires_grad_(), Head(weight.requires_grad_()))
    with Products() as products:
        found = objective.compute(lambda ids: output, batch, {}).terms
        sum(term.weight * found[term.name].values.sum() for term in objective.terms).backward()
    assert products.count == 3


def test_no_product_with_a_teacher_is_computed_twice(case):
    """Three products for the student's head, and one for the teacher's."""
    hidden, weight, targets = case

    def reads(hidden_BTC):
        def read(ids, places_N):
            return ModelOutput(hidden_BTC.flatten(0, 1)[places_N], Head(weight.requires_grad_()))

        return read

    student = hidden.clone().requires_grad_()
    teacher = torch.randn(hidden.shape)
    with Products() as products:
        read = read_beside_teacher(reads(student), reads(teacher), targets, targets, 1.0, V)
        read.divergence_BT.sum().backward()
    assert products.count == 4
    assert not student.grad[targets == IGNORE].any()
    assert student.grad[targets != IGNORE].abs().sum(1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_all_logits_are(case, dtype):
    hidden, weight, targets = case

    def ours(h, w):
        return compute_head_loss(h, Head(w), targets).nats_BT.sum()

    exact = compute_gradients(ours, hidden, weight)
    rounded = compute_gradients(ours, hidden, weight, dtype)
    assert rounded[1].dtype == rounded[2].dtype == dtype
    for near, far in zip(rounded, exact, strict=True):
        torch.testing.assert_close(near.float(), far, rtol=0.05, atol=0.05)


def test_a_bias_has_its_gradient(case):
    hidden, weight, targets = case
    ours, theirs = (torch.linspace(-1, 1, V).requires_grad_() for _ in range(2))
    compute_head_loss(hidden, Head(weight, ours), targets).nats_BT.sum().backward()
    token_nats(F.linear(hidden, weight, theirs), targets).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_no_gradient_is_computed_of_what_needs_none(case, frozen):
    hidden, weight, targets = case
    leaves = {"hidden": hidden.clone(), "weight": weight.clone()}
    other = next(name for name in leaves if name != frozen)
    leaves[other].requires_grad_()
    compute_head_loss(leaves["hidden"], Head(leaves["weight"]), targets).nats_BT.sum().backward()
    assert leaves[frozen].grad is None and leaves[other].grad.any()


def test_a_batch_without_a_target_is_zero_with_zero_gradients(case):
    hidden, weight, targets = case
    nothing = torch.full_like(targets, IGNORE)
    value, *gradients = compute_gradients(
        lambda h, w: compute_head_loss(h, Head(w), nothing).nats_BT.sum(), hidden, weight
    )
    assert value == 0 and not any(gradient.any() for gradient in gradients)


def test_huge_logits_overflow_nowhere():
    hidden = torch.tensor([[[1e30]]])
    weight = torch.tensor([[1.0], [-1.0], [0.0]])
    value, of_hidden, of_weight = compute_gradients(
        lambda h, w: compute_head_loss(h, Head(w), torch.tensor([[0]])).nats_BT.sum(),
        hidden,
        weight,
    )
    assert value == 0 and not of_hidden.any() and not of_weight.any()


def test_extras_are_no_part_of_the_nats(case):
    hidden, weight, targets = case
    plain = compute_head_loss(hidden, Head(weight), targets)
    more = compute_head_loss(hidden, Head(weight), targets, Extras(z=1.0, uniform=1.0))
    assert torch.equal(plain.nats_BT, more.nats_BT)
    logits = F.linear(hidden, weight)
    trained = targets != IGNORE
    torch.testing.assert_close(more.z_BT[trained], logits.logsumexp(-1).square()[trained])
    uniform = -logits.log_softmax(-1).mean(-1)
    torch.testing.assert_close(more.uniform_BT[trained], uniform[trained])
