"""Which tokens may be sampled, compared with Transformers, and how often."""

from itertools import product

import pytest
import torch

from trainrig.models.token_sampling import NextToken, Sampling, derive_stream, draw
from trainrig.randomness import RandomKey, draw_uniforms

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
def test_candidates_equal_transformers(settings):
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
    stream = derive_stream(sampling)
    tokens = [NextToken(sampling, stream, place, SAID) for place in range(4000)]
    drawn = draw(LOGITS.expand(4000, -1), tokens)
    counts = torch.bincount(torch.tensor(drawn), minlength=40) / 4000
    assert set(drawn) <= set(shares.nonzero().flatten().tolist())
    assert (counts - shares).abs().max() < 0.04


def test_a_penalty_moves_the_likeliest_too():
    likeliest = int(LOGITS.argmax())
    greedy = Sampling(temperature=0.0, repetition_penalty=50.0)
    said, fresh = (NextToken(greedy, 0, 0, ids) for ids in ([likeliest], []))
    without, with_it = draw(LOGITS.expand(2, -1), [said, fresh])
    assert without != likeliest
    assert with_it == likeliest
    assert not greedy.plain


def test_rows_sampled_together_equal_single_rows():
    settings = [{}, {"temperature": 0.0}, {"temperature": 0.7}, *SETTINGS]
    kinds = [Sampling(**setting, seed=seed) for setting, seed in product(settings, (0, 7, 2**40))]
    tokens = [
        NextToken(kind, derive_stream(kind), place, SAID[: place + 1])
        for place in range(4)
        for kind in kinds
    ]
    rows = torch.randn(len(tokens), 40, generator=torch.Generator().manual_seed(6)) * 3
    together = draw(rows, tokens)
    alone = [draw(row[None], [token])[0] for row, token in zip(rows, tokens, strict=True)]
    assert together == alone
    assert len(set(together)) > 20


@pytest.mark.parametrize("seed", [0, 3, 2**62])
def test_a_plain_draw_by_hand(seed):
    """Expect the first entry at which the cumulative probability exceeds the seed's number."""
    sampling = Sampling(temperature=0.8, seed=seed)
    shares = (LOGITS.double() / 0.8).softmax(-1).tolist()
    for place in range(50):
        luck = float(draw_uniforms(RandomKey(seed, "sampling"), torch.tensor([place])))
        expected = next(i for i in range(40) if sum(shares[: i + 1]) > luck)
        drawn = draw(LOGITS[None], [NextToken(sampling, derive_stream(sampling), place)])
        assert drawn == [expected]
