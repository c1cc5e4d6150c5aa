"""Answers that share one copy of their prompt have the results of separate rows."""

import numpy as np
import pytest
import torch

from trainrig.models.architecture.attention_settings import AttentionSettings, SlidingWindow
from trainrig.models.architecture.layer_settings import LearnedPositions, MixtureOfExperts
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.attention import MaskRegions, make_document_mask
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.lora import adapt
from trainrig.objectives.objective_kinds import DPO, IPO, Reward
from trainrig.objectives.shared_prompts import lay_out, read_answers
from trainrig.tokens.batches import IGNORE

SMALL = {"layers": 2, "channels": 16, "heads": 2, "vocabulary": 64, "positions": 48}
# Tokens of a prompt, of the chosen answer and of the rejected answer.
LENGTHS = ((20, 3, 6), (9, 12, 4), (7, 2, 5), (1, 5, 4), (2, 2, 3))
WIDTH = 30
NAMES = ("chosen_ids", "chosen_targets", "rejected_ids", "rejected_targets")


@pytest.fixture(scope="module")
def pairs():
    dice = np.random.default_rng(3)
    arrays = {name: np.full((len(LENGTHS), WIDTH), IGNORE * ("targets" in name)) for name in NAMES}
    for row, (prompt, *answers) in enumerate(LENGTHS):
        whole = [dice.integers(1, 60, prompt + length) for length in answers]
        whole[1][:prompt] = whole[0][:prompt]
        if row == 2:  # the rejected answer is longer than the chosen one and begins with it
            whole[1][: len(whole[0])] = whole[0]
        elif row == 3:  # the prompt is not shared either
            whole[1][0] = whole[0][0] + 1
        for side, ids in zip(("chosen", "rejected"), whole, strict=True):
            arrays[f"{side}_ids"][row, : len(ids) - 1] = ids[:-1]
            arrays[f"{side}_targets"][row, prompt - 1 : len(ids) - 1] = ids[prompt:]
    return arrays


def stack_pairs(pairs):
    chosen, of_chosen, rejected, of_rejected = (torch.from_numpy(pairs[name]) for name in NAMES)
    return torch.cat([chosen, rejected]), torch.cat([of_chosen, of_rejected])


def compute_loss_and_gradients(objective, model, batch):
    computed = objective.compute(model, batch, {})
    loss = sum(term.weight * computed.terms[term.name].values.sum() for term in objective.terms)
    model.zero_grad()
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize(
    "objective", [DPO(), IPO(), Reward()], ids=lambda objective: objective.kind
)
def test_losses_and_gradients_are_those_of_answers_apart(
    objective, positions, pairs, decoder, device_batch, monkeypatch
):
    changes = {"position_embedding": LearnedPositions()} if positions == "learned" else {}
    config = DecoderConfig(**SMALL, **changes)
    if isinstance(objective, Reward):
        config = config.with_score_head()
    model = decoder(0, config)
    reference = decoder(1, config)
    batch = device_batch({"reference": reference}, **pairs)
    read = []
    model.register_forward_pre_hook(lambda _, *given: read.append(given[1]), with_kwargs=True)
    loss, gradients = compute_loss_and_gradients(objective, model, batch)
    assert "branches_BT" in read[-1]
    monkeypatch.setattr(Decoder, "reads_branches", False)
    wanted, of_wanted = compute_loss_and_gradients(objective, model, batch)
    assert "branches_BT" not in read[-1]
    assert loss == pytest.approx(wanted, rel=1e-6)
    for name, gradient in of_wanted.items():
        error = (gradients[name] - gradient).norm() / gradient.norm()
        assert error < 1e-5, name  # rounding of float32 sums in another order


def test_in_float64_they_are_equal_to_all_digits_that_matter(pairs, decoder, monkeypatch):
    model = decoder(0, DecoderConfig(**SMALL)).double()
    ids, targets = stack_pairs(pairs)
    places = (targets.flatten() != IGNORE).nonzero().squeeze(1)
    together = read_answers(model, ids, targets, places, sets=2).logits
    monkeypatch.setattr(Decoder, "reads_branches", False)
    apart = read_answers(model, ids, targets, places, sets=2).logits
    torch.testing.assert_close(together, apart, rtol=1e-11, atol=1e-11)


def test_a_common_prefix_is_stored_once_and_short_pairs_share_a_row(pairs):
    ids, targets = stack_pairs(pairs)
    layout = lay_out(ids, targets)
    beginnings = set()
    for row, (ids_T, targets_T) in enumerate(zip(ids.tolist(), targets.tolist(), strict=True)):
        end = max(place for place, target in enumerate(targets_T) if target != IGNORE) + 1
        pair = row % len(LENGTHS)
        beginnings |= {(pair, *ids_T[:length]) for length in range(1, end + 1)}
    assert (layout.sources_RW >= 0).sum() == len(beginnings)
    assert layout.sources_RW.shape == (3, 27)
    again = ids.flatten()[torch.from_numpy(layout.sources_RW).flatten()]
    places = (targets.flatten() != IGNORE).nonzero().squeeze(1)
    assert (again[torch.from_numpy(layout.cells)[places]] == ids.flatten()[places]).all()


def test_a_token_sees_the_beginning_and_its_own_branch():
    documents = torch.tensor([[1, 1, 1, 1, 2, 2, 2]])
    branches = torch.tensor([[0, 1, 2, 2, 0, 1, 2]])
    seen = make_document_mask(documents, 7, marks=MaskRegions(branches_BS=branches))[0, 0]
    for query in range(7):
        for key in range(7):
            own = documents[0, key] == documents[0, query] and key <= query
            assert seen[query, key] == (own and branches[0, key] in (0, branches[0, query]))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": AttentionSettings(window=SlidingWindow(size=4))},
        {"feedforward": MixtureOfExperts(experts=2, active=1)},
    ],
    ids=["window", "experts"],
)
def test_models_that_tell_rows_apart_read_each_answer_by_itself(changes, pairs, decoder):
    model = decoder(0, DecoderConfig(**SMALL, **changes))
    read = []
    model.register_forward_pre_hook(lambda _, *given: read.append(given[1]), with_kwargs=True)
    ids, targets = stack_pairs(pairs)
    read_answers(model, ids, targets, torch.tensor([25]), sets=2)
    assert "branches_BT" not in read[-1]


def test_dropout_of_an_adapter_is_by_the_row_while_it_is_trained(decoder):
    model = decoder(0, DecoderConfig(**SMALL))
    assert model.reads_branches
    adapt(model, LoRA(dropout=0.1))
    assert not model.reads_branches
    with torch.no_grad():  # no dropout
        assert model.reads_branches
