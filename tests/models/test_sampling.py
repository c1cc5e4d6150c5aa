"""Which tokens may be drawn, against Transformers, and how often."""

import pytest
import torch

from trainrig.models.sampling import Sampling, draw

LOGITS = torch.randn(40, generator=torch.Generator().manual_seed(5)) * 3
SAID = [3, 9, 9, 21]
SETTINGS = [
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"top_k": 12, "top_p": 0.8},
    {"temperature": 2.5, "top_k": 30, "top_p": 0.9, "min_p": 0.05},
    {"repetition_penalty": 1.8, "top_p": 0.6},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_may_be_drawn_is_what_transformers_leaves(settings):
    transformers = pytest.importorskip("transformers")
    logits = LOGITS[None, :].clone()
    ids = torch.tensor([SAID])
    penalty = settings.get("repetition_penalty", 1.0)
    steps = [transformers.RepetitionPenaltyLogitsProcessor(penalty)]
    steps += [transformers.TemperatureLogitsWarper(float(settings.get("temperature", 1.0)))]
    steps += [transformers.TopKLogitsWarper(settings.get("top_k", 40))]
    steps += [transformers.TopPLogitsWarper(settings.get("top_p", 1.0))]
    if "min_p" in settings:
        steps += [transformers.MinPLogitsWarper(settings["min_p"])]
    for step in steps:
        logits = step(ids, logits)
    shares = logits.softmax(-1)[0]
    sampling = Sampling.model_validate(settings)
    drawn = [draw(LOGITS, sampling, place, SAID) for place in range(4000)]
    counts = torch.bincount(torch.tensor(drawn), minlength=40) / 4000
    assert set(drawn) <= set(shares.nonzero().flatten().tolist())
    assert (counts - shares).abs().max() < 0.04


def test_a_penalty_moves_the_likeliest_too():
    likeliest = int(LOGITS.argmax())
    greedy = Sampling(temperature=0.0, repetition_penalty=50.0)
    assert draw(LOGITS, greedy, 0, [likeliest]) != likeliest
    assert draw(LOGITS, greedy, 0, []) == likeliest
    assert not greedy.plain
