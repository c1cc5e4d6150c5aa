"""Prefix language models: masks against brute force, targets, row cutting, rejected settings."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.attention import MaskRegions, make_document_mask, number_documents
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.layer_parts import Rotation
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.objective_kinds import PrefixLM
from trainrig.tokens.batches import (
    IGNORE,
    POSITIONS,
    PREFIXES,
    TOKENS,
    MicroBatch,
    build_token_arrays,
)

LENGTH = 24


def cut(corruption, micro):
    return corruption.apply(micro, 0)


def make_prefix_rows(lengths, seed=0, padding=0, first=0):
    """Return rows of documents of `lengths`; the last `padding` targets are IGNORE."""
    dice = np.random.default_rng(seed)
    count = len(lengths)
    length = sum(lengths[0])
    ids = dice.integers(1, 60, (count, length + 1))
    targets = ids[:, 1:].copy()
    if padding:
        targets[:, -padding:] = IGNORE
    positions = np.array([np.concatenate([np.arange(n) for n in row]) for row in lengths])
    pieces = [
        (row, int(place), number)
        for row, sizes in enumerate(lengths)
        for number, place in enumerate(np.cumsum([0, *sizes[:-1]]))
    ]
    arrays = build_token_arrays(ids[:, :-1], targets, positions)
    samples = np.arange(first, first + count)
    return MicroBatch(arrays, samples, np.zeros(count, dtype=np.int64), np.array(pieces))


DOCUMENTS = [[10, 1, 13], [24], [1, 1, 22], [12, 12]]


def test_half_of_a_row_by_hand():
    """Documents of 5 and 3 tokens have 3 targets: 8 x 3/8 = 3.

    One target is in the first document (floor of 15/8), and two are in the second.
    """
    micro = make_prefix_rows([[5, 3]])
    found = cut(PrefixLM(prefix_tokens=3).make_corruption(None), micro)
    assert found.arrays[PREFIXES].astype(int).tolist() == [[1, 1, 0, 0, 0, 1, 1, 1]]
    kept = [place for place, target in enumerate(found.targets[0]) if target != IGNORE]
    assert kept == [1, 2, 3, 4, 7]


def compute_mask_by_brute_force(prefixes, positions):
    """Return whether each query may attend to each key, one pair at a time."""
    length = len(positions)
    document = np.cumsum(positions == 0)
    return [
        [document[q] == document[k] and (k <= q or bool(prefixes[k])) for k in range(length)]
        for q in range(length)
    ]


def test_the_mask_is_that_of_brute_force():
    found = cut(PrefixLM().make_corruption(None), make_prefix_rows(DOCUMENTS, first=3))
    prefixes = found.arrays[PREFIXES]
    positions = found.positions
    assert prefixes.any() and not prefixes.all()
    numbers = number_documents(torch.from_numpy(positions))
    mask = make_document_mask(numbers, LENGTH, marks=MaskRegions(torch.from_numpy(prefixes)))[:, 0]
    for row in range(len(DOCUMENTS)):
        assert mask[row].tolist() == compute_mask_by_brute_force(prefixes[row], positions[row])


def make_decoder(**changes):
    config = DecoderConfig(
        layers=2, channels=32, heads=4, kv_heads=2, vocabulary=61, positions=48, initial_std=0.3,
        **changes,
    )  # fmt: skip
    model = Decoder(config)
    initialise(model, 0)
    return model


def compute_naive_attention(layer, x, mask, positions):
    """Compute softmax attention over the keys in `mask`, head by head, without a kernel."""
    rotation = Rotation(positions, layer.head_channels, Rope())
    query, key, value = (
        projection(x).view(1, len(positions[0]), -1, layer.head_channels).transpose(1, 2)
        for projection in (layer.query, layer.key, layer.value)
    )
    query = rotation(query)
    key = rotation(key)
    shared = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        logits = query[0, head] @ key[0, head // shared].T / layer.head_channels**0.5
        shares = logits.masked_fill(~mask, -torch.inf).softmax(-1)
        heads.append(shares @ value[0, head // shared])
    return layer.output(torch.cat(heads, dim=-1))[None]


def test_logits_are_those_of_a_naive_implementation():
    model = make_decoder()
    found = cut(PrefixLM().make_corruption(None), make_prefix_rows(DOCUMENTS, first=3))
    ids = torch.from_numpy(found.ids)
    positions = torch.from_numpy(found.positions)
    prefixes = torch.from_numpy(found.arrays[PREFIXES])
    with torch.no_grad():
        whole = model(ids, positions_BT=positions, prefixes_BT=prefixes).logits
        for row in range(len(ids)):
            mask = torch.tensor(compute_mask_by_brute_force(prefixes[row], found.positions[row]))
            x = model.embedding(ids[row : row + 1])
            for layer in model.layers:
                normed = layer.attention_norm(x)
                x = x + compute_naive_attention(
                    layer.attention, normed, mask, positions[row : row + 1]
                )
                x = x + layer.feedforward(layer.feedforward_norm(x))
            logits = F.linear(model.norm(x), model.embedding.weight)
            assert (whole[row] - logits[0]).abs().max() <= 1e-5
        plain = model(ids, positions_BT=positions).logits
    assert (whole - plain).abs().max() > 1e-2


def test_no_target_is_seen_by_the_place_that_predicts_it():
    """Another token in place of a target changes none of the logits that predict it."""
    model = make_decoder()
    found = cut(PrefixLM().make_corruption(None), make_prefix_rows(DOCUMENTS, first=3))
    positions = torch.from_numpy(found.positions)
    prefixes = torch.from_numpy(found.arrays[PREFIXES])
    ids = torch.from_numpy(found.ids)
    with torch.no_grad():
        before = model(ids, positions_BT=positions, prefixes_BT=prefixes).logits
        checked = 0
        for row in range(len(ids)):
            for place in np.flatnonzero(found.targets[row][:-1] != IGNORE).tolist():
                other = ids.clone()
                other[row, place + 1] = (other[row, place + 1] + 7) % 60
                after = model(other, positions_BT=positions, prefixes_BT=prefixes).logits
                assert torch.equal(after[row, : place + 1], before[row, : place + 1])
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("tokens", [None, 0, 9, 23])
def test_denominators_are_known_before_rows_are_read(tokens, padding):
    corruption = PrefixLM(prefix_tokens=tokens).make_corruption(None)
    micro = make_prefix_rows(DOCUMENTS * 10, padding=padding)
    found = cut(corruption, micro)
    counts = (micro.targets != IGNORE).sum(1)
    left = (found.targets != IGNORE).sum(1)
    assert corruption.denominators(4, micro.samples, counts) == {TOKENS: left.sum()}
    assert (left >= 1).all()
    if tokens is not None:
        assert (left == np.maximum(counts - tokens, 1)).all()
    kept = found.targets != IGNORE
    np.testing.assert_array_equal(found.targets[kept], micro.targets[kept])
    np.testing.assert_array_equal(found.ids, micro.ids)


def test_prefixes_take_half_of_the_tokens_on_average(encoder, make_rows):
    micro = make_rows(200, 512, mean=40)  # 10^5 tokens
    objective = PrefixLM()
    found = cut(objective.make_corruption(encoder), micro)
    left = (found.targets != IGNORE).sum(1)
    # All counts of a row are equally likely, so the mean is a mean of 200 uniform draws.
    assert abs(left.mean() - 512 * objective.compute_trained_share(512)) < 4 * 512 / np.sqrt(
        12 * 200
    )
    # Attention crosses documents here, so the row is one text with one prefix at its start.
    prefix = found.arrays[PREFIXES]
    assert (np.diff(prefix.astype(int), axis=1) <= 0).all()
    np.testing.assert_array_equal(prefix.sum(1), np.where(left < 512, 513 - left, 0))
    p = np.where(left < 512, 513 - left, 1)
    ahead = (p * (p - 1) / 2 / 512).mean()
    assert ahead == pytest.approx(objective.keys_ahead(512), rel=0.2)
    exact = sum(p * (p - 1) / 2 for p in range(1, 33)) / 32 / 32
    assert objective.keys_ahead(32) == pytest.approx(exact, rel=1e-12)
    assert PrefixLM(prefix_tokens=9).keys_ahead(32) == 10 * 9 / 2 / 32


def test_the_loss_is_that_of_the_suffixes_alone():
    model = make_decoder()
    micro = make_prefix_rows(DOCUMENTS, first=3)
    found = cut(PrefixLM().make_corruption(None), micro)
    batch = DeviceBatch.copy(found, torch.device("cpu"))
    with torch.no_grad():
        computed = PrefixLM().compute(model, batch, {})
        arrays = batch.arrays
        logits = model(
            arrays["ids"], positions_BT=arrays[POSITIONS], prefixes_BT=arrays[PREFIXES]
        ).logits
        nats = F.cross_entropy(logits.flatten(0, 1), arrays["targets"].flatten(), reduction="sum")
    term = computed.terms["cross_entropy"]
    assert float(term.values.sum()) == pytest.approx(float(nats), rel=1e-6)
    assert int(term.counts_B.sum()) == int((found.targets != IGNORE).sum())


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": {"window": {"size": 5}}},
        {"attention": {"logit_cap": 30.0}},
        {"attention": {"sinks": True}},
        {"position_embedding": {"kind": "Alibi"}},
    ],
)
def test_attention_that_takes_no_mask_is_refused(changes):
    model = make_decoder(**changes)
    ids = torch.ones(1, 8, dtype=torch.int64)
    with pytest.raises(ValueError, match="does not support prefixes"):
        model(ids, prefixes_BT=torch.ones(1, 8, dtype=torch.bool))
