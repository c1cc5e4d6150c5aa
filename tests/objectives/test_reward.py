"""Scores of answers and of steps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainrig.objectives.objective_kinds import ProcessReward, Reward
from trainrig.objectives.reward import score_answers
from trainrig.tokens.batches import IGNORE


class Scorer(torch.nn.Module):
    """Scorer of each position: the last layer's mean logit over a few entries."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, ids_BT, places_N=None):
        output = self.decoder(ids_BT, places_N=places_N)
        return SimpleNamespace(logits=output.logits[..., :3].mean(-1, keepdim=True), auxiliary={})


def test_ranking_has_its_known_values():
    chosen = torch.tensor([2.0, 0.0]).double()
    rejected = torch.tensor([1.0, 3.0]).double()
    found = Reward.compute_ranking_losses(chosen, rejected, 0.0)
    assert found.tolist() == pytest.approx([0.31326169, 3.04858735], abs=1e-8)
    found = Reward.compute_ranking_losses(chosen[:1], rejected[:1], 0.5)
    assert found.tolist() == pytest.approx([0.47407698], abs=1e-8)


def test_an_answer_is_scored_at_its_end_whatever_the_padding(completions, decoder):
    model = Scorer(decoder())
    ids, targets = completions(3, 1)
    (found,), _ = score_answers(model, (torch.from_numpy(ids), torch.from_numpy(targets)))
    for row, score in enumerate(found):
        end = int(np.flatnonzero(targets[row] != IGNORE)[-1]) + 1
        alone = model(torch.from_numpy(ids[row : row + 1, :end])).logits[0, -1, 0]
        torch.testing.assert_close(score, alone, rtol=1e-5, atol=1e-6)


def test_a_pair_has_a_ranking_and_a_centring(completions, device_batch, decoder):
    model = Scorer(decoder())
    (ids, targets) = completions(4, 1)
    halves = {"chosen": slice(0, 2), "rejected": slice(2, 4)}
    arrays = {f"{side}_ids": ids[rows] for side, rows in halves.items()}
    arrays |= {f"{side}_targets": targets[rows] for side, rows in halves.items()}
    (scores,), _ = score_answers(model, (torch.from_numpy(ids), torch.from_numpy(targets)))
    found = Reward(centring=0.1).compute(model, device_batch(**arrays), {})
    difference = scores[:2] - scores[2:]
    ranking = found.terms["ranking"].values
    torch.testing.assert_close(ranking, -functional.logsigmoid(difference), rtol=1e-5, atol=1e-6)
    centring = found.terms["centring"].values
    torch.testing.assert_close(centring, (scores[:2] + scores[2:]) ** 2, rtol=1e-5, atol=1e-6)
    with_margin = device_batch(**arrays, margins=np.array([0.5, 0.0]))
    ranking = Reward().compute(model, with_margin, {}).terms["ranking"].values
    expected = -functional.logsigmoid(difference - torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(ranking, expected, rtol=1e-5, atol=1e-6)
    assert [term.name for term in Reward(centring=0).terms] == ["ranking"]


def test_each_labelled_step_counts_once(completions, device_batch, decoder):
    model = Scorer(decoder())
    (ids, _) = completions(2, 1)
    labels = np.full(ids.shape, IGNORE)
    labels[0, [4, 8]] = [1, 0]
    labels[1, 6] = 1
    found = ProcessReward().compute(model, device_batch(ids=ids, step_labels=labels), {})
    scores = model(torch.from_numpy(ids)).logits[..., 0]
    expected = [
        functional.binary_cross_entropy_with_logits(scores[at], torch.tensor(label))
        for at, label in (((0, 4), 1.0), ((0, 8), 0.0), ((1, 6), 1.0))
    ]
    term = found.terms["step_cross_entropy"]
    assert term.counts_B.tolist() == [2, 1]
    assert float(term.values.sum()) == pytest.approx(float(sum(expected)), rel=1e-5)
