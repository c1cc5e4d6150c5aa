"""Replaced tokens: masking, sampling, and both losses against a plain computation."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.models.output import Head, ModelOutput
from trainrig.objectives.denoising.masked import draw_entries
from trainrig.objectives.objective_interface import DeviceBatch, compute_differentiable_loss
from trainrig.objectives.objective_kinds import ReplacedTokenDetection
from trainrig.tokens.batches import (
    DRAWS,
    IDS,
    IGNORE,
    PLACES,
    POSITIONS,
    TARGETS,
    TEXT_PLACES,
    TOKENS,
)

SIZES = {
    "layers": 2, "channels": 32, "heads": 4, "positions": 64, "embedding_channels": 16,
    "head": "replaced", "generator": {"layers": 1, "channels": 24, "heads": 2},
    "initial_std": 0.2,
}  # fmt: skip


def test_rates_and_draws_are_those_asked_for_and_special_tokens_stay(encoder, make_rows):
    micro = make_rows(200, 512, mean=40)  # 10^5 tokens
    corruption = ReplacedTokenDetection().make_corruption(encoder)
    hidden = corruption.apply(micro, 0)
    drawn = hidden.arrays[DRAWS]
    text = micro.targets != IGNORE
    predicted = hidden.targets != IGNORE
    assert abs(predicted.sum() - 0.15 * text.sum()) < 4 * math.sqrt(200) / 2
    assert (hidden.ids[predicted] == corruption.mask).all()
    np.testing.assert_array_equal(hidden.arrays[TEXT_PLACES], text)
    np.testing.assert_array_equal(drawn >= 0, predicted)
    assert not np.isin(micro.ids, corruption.special)[drawn >= 0].any()
    count = int(predicted.sum())
    tenths = np.bincount((drawn[predicted] * 10).astype(int), minlength=10)
    assert len(tenths) == 10
    assert np.abs(tenths - count / 10).max() < 4 * math.sqrt(count * 0.09) + 1


def test_denominators_are_known_of_rows_that_are_padded_or_special(encoder, make_rows):
    micro = make_rows(64, 256, mean=3, padded=True)
    corruption = ReplacedTokenDetection(rate=0.95).make_corruption(encoder)
    hidden = corruption.apply(micro, 0)
    counts = (micro.targets != IGNORE).sum(1)
    assert corruption.denominators(0, micro.samples, counts) == {
        TOKENS: (hidden.targets != IGNORE).sum(),
        PLACES: hidden.arrays[TEXT_PLACES].sum(),
    }
    special = (hidden.targets != IGNORE) & np.isin(micro.ids, corruption.special)
    assert special.any() and (hidden.arrays[DRAWS][special] < 0).all()


def test_entries_are_drawn_by_their_shares():
    """Compare draws with a search in cumulative sums, and their frequencies with the shares."""
    dice = torch.Generator().manual_seed(2)
    weight = torch.randn(50, 8, generator=dice)
    hidden = torch.randn(4, 1, 8, generator=dice)
    output = ModelOutput(hidden.expand(4, 5000, 8), Head(weight))
    draws = torch.rand(4, 5000, dtype=torch.float64, generator=dice)
    draws[:, ::10] = -1.0
    text = torch.full((4, 5000), 99)
    found = draw_entries(output, text, draws)
    shares = (hidden[:, 0] @ weight.T).double().softmax(-1)
    for row in range(4):
        assert (found[row, ::10] == 99).all()
        free = draws[row] >= 0
        expected = torch.searchsorted(shares[row].cumsum(0), draws[row, free])
        assert (found[row, free] == expected).float().mean() > 0.999
        often = torch.bincount(found[row, free], minlength=50) / free.sum()
        assert (often - shares[row]).abs().max() < 4 * math.sqrt(0.25 / 4500)


@pytest.fixture(scope="module")
def model(encoder):
    config = EncoderConfig.model_validate(SIZES).for_tokenizer(encoder.vocabulary_size)
    made = build_model(config)
    initialise(made, 5)
    return made


def test_both_losses_are_those_of_a_plain_computation(encoder, make_rows, model):
    """The generator's loss is over masked tokens, the detection loss over all text.

    Their weights are 1 and 50. No gradient passes through the sampled tokens.
    """
    objective = ReplacedTokenDetection(rate=0.4)
    micro = objective.make_corruption(encoder).apply(make_rows(3, 40, padded=True), 0)
    micro.arrays[POSITIONS] = np.tile(np.arange(40) % 13, (3, 1))
    batch = DeviceBatch.copy(micro, torch.device("cpu"))
    denominators = {TOKENS: 31, PLACES: 97}
    computed = objective.compute(model, batch, {})
    loss = compute_differentiable_loss(objective, computed, denominators, 1)
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    ids, targets, positions = (batch.arrays[key] for key in (IDS, TARGETS, POSITIONS))
    hidden = targets != IGNORE
    text = batch.arrays[TEXT_PLACES].bool()
    logits = model.generator(ids, positions_BT=positions).logits
    of_generator = F.cross_entropy(logits[hidden], targets[hidden], reduction="sum")
    whole = torch.where(hidden, targets, ids)
    drawn = whole.clone()
    upto = logits.detach().double().softmax(-1).cumsum(-1)
    for place in (batch.arrays[DRAWS] >= 0).nonzero():
        row, at = place.tolist()
        drawn[row, at] = torch.searchsorted(upto[row, at], batch.arrays[DRAWS][row, at])
    detected = model(drawn, positions_BT=positions).logits.squeeze(-1)
    replaced = (drawn != whole).float()
    assert 0 < replaced.sum() < hidden.sum()
    of_detection = F.binary_cross_entropy_with_logits(
        detected[text], replaced[text], reduction="sum"
    )
    plain = of_generator / 31 + 50 * of_detection / 97
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert (gradients[name] - parameter.grad).abs().max() <= 1e-5 * (
            1 + parameter.grad.abs().max()
        ), name
    model.zero_grad()
    told = (detected > 0) & text
    watched = {name: diagnostic.values.sum() / diagnostic.counts_B.sum() for name, diagnostic in
               computed.diagnostics.items()}  # fmt: skip
    assert watched["replaced"] == pytest.approx(float(replaced.sum() / hidden.sum()))
    right = (told == replaced.bool())[text].float().mean()
    assert watched["accuracy"] == pytest.approx(float(right))
    assert watched["found"] == pytest.approx(float((told & (replaced > 0)).sum() / replaced.sum()))


def test_generator_and_model_share_one_embedding(model):
    names = [name for name, _ in model.named_parameters()]
    assert [name for name in names if "embedding.weight" in name] == ["embedding.weight"]
    assert model.generator.embedding is model.embedding
    assert any(name.startswith("generator.layers.0.") for name in names)
    assert set(model.state_dict()) == set(names)
