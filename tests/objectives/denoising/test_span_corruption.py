"""Span corruption: the worked example, reconstruction, rates, boundaries, and known lengths."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.errors import DataError
from trainrig.objectives.denoising.noise_spans import Noise, Spans, draw_spans, leave_out
from trainrig.objectives.denoising.span_corruption import SpanCorruption, shift_targets
from trainrig.objectives.objective_interface import find_corruption
from trainrig.randomness import RandomKey
from trainrig.tokens.batches import (
    DECODER_IDS,
    DECODER_SEGMENTS,
    IDS,
    IGNORE,
    SEGMENTS,
    TARGETS,
    TOKENS,
    build_token_arrays,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

WORDS = ["Preheat", "the", "oven", "to", "350°F", "and", "grease", "the", "pan"]
X0 = 100
X1 = 101


def test_the_example_of_the_paper():
    text = np.arange(len(WORDS))
    found = leave_out(text, Spans(np.array([1, 6]), np.array([3, 2])), np.array([X0, X1, 102]))

    def say(ids):
        return " ".join({X0: "<X0>", X1: "<X1>"}.get(n) or WORDS[n] for n in ids.tolist())

    assert say(found.ids) == "Preheat <X0> 350°F and <X1> pan"
    assert say(found.targets) == "<X0> the oven to <X1> grease the"
    assert found.places.tolist() == [0, 1, 4, 5, 6, 8]
    assert found.target_places.tolist() == [1, 1, 2, 3, 6, 6, 7]


def rebuild_text(ids, targets, corruption):
    """Return the original text: each sentinel replaced by the tokens of its span."""
    sentinels = set(corruption.sentinels)
    spans = {}
    current = None
    for token in targets:
        if token == corruption.end and current is not None and token == targets[-1]:
            break
        if token in sentinels:
            current = token
            spans[current] = []
        else:
            spans[current].append(token)
    assert ids[-1] == corruption.end
    return [token for entry in ids[:-1] for token in spans.get(entry, [entry])]


def split_sides(micro, row):
    arrays = micro.arrays
    ids = arrays[IDS][row][arrays[SEGMENTS][row] > 0].tolist()
    return ids, arrays[TARGETS][row][arrays[TARGETS][row] != IGNORE].tolist()


@pytest.mark.parametrize("closing", [False, True])
def test_every_text_comes_back_and_no_special_token_is_left_out(encoder, make_rows, closing):
    micro = make_rows(200, 512, mean=40)  # 10^5 tokens
    corruption = SpanCorruption(closing_sentinel=closing).make_corruption(encoder)
    found = corruption.apply(micro, 0)
    noise = 0
    for row in range(200):
        ids, targets = split_sides(found, row)
        assert rebuild_text(ids, targets, corruption) == micro.targets[row].tolist()
        said = [t for t in targets[:-1] if t not in corruption.sentinels]
        noise += len(said)
        assert not set(said) & set(corruption.special)
        assert targets[-1] == corruption.end
        assert len([t for t in targets if t in corruption.sentinels]) == 26 + closing
    assert noise == 200 * 77  # T5: round(0.15 x 512) in each row


def test_every_place_is_as_likely_to_be_left_out():
    key = RandomKey(0, "test")
    noise = Noise(0.15, 3.0)
    none = np.zeros(100, dtype=bool)
    counts = np.zeros(100)
    rows = 1000  # 10^5 tokens
    for sample in range(rows):
        spans = draw_spans(key, sample, noise, none)
        assert (spans.begins[1:] > spans.ends[:-1]).all()
        for begin, end in zip(spans.begins, spans.ends, strict=True):
            counts[begin:end] += 1
    assert counts.sum() == rows * 15
    assert np.abs(counts[5:-5] - rows * 0.15).max() < 4.5 * math.sqrt(rows * 0.15 * 0.85)


@given(st.integers(2, 80), st.integers(0, 10**6), st.floats(0, 0.25), st.sampled_from([1.0, 3.0]))
def test_spans_keep_off_walls_where_they_can(length, sample, share, mean):
    walls = np.random.default_rng(sample).random(length) < share
    noise = Noise(0.15, mean)
    tokens, count = (int(total[0]) for total in noise.count(np.array([length])))
    spans = draw_spans(RandomKey(1, "test"), sample, noise, walls)
    assert spans.lengths.sum() == tokens
    assert len(spans.begins) == count
    assert spans.begins[0] >= 0
    assert spans.ends[-1] <= length
    assert (spans.begins[1:] > spans.ends[:-1]).all()
    held = [walls[b:e].any() for b, e in zip(spans.begins, spans.ends, strict=True)]
    if mean == 1.0 and count == 1 and not walls.all():
        assert not any(held)
    unwalled = draw_spans(RandomKey(1, "test"), sample, noise, np.zeros(length, dtype=bool))
    if any(held):  # no free place was found, so the spans stay where they were drawn
        np.testing.assert_array_equal(spans.begins, unwalled.begins)


@given(st.integers(0, 3000), st.floats(0.01, 0.9), st.floats(1, 40))
def test_counts_follow_from_lengths_and_fit_the_widest_row(length, density, mean):
    noise = Noise(density, mean)
    tokens, spans = noise.count(np.arange(length + 1))
    assert (spans <= tokens).all()
    assert (spans <= np.arange(length + 1) - tokens + 1).all()
    for side in (np.arange(length + 1) - tokens + spans, tokens + spans):
        assert side.max() == side[-1] or length < 2


def test_short_rows_are_padded_and_counted_as_they_are(encoder, make_rows):
    micro = make_rows(64, 64, padded=True)
    corruption = SpanCorruption().make_corruption(encoder)
    found = corruption.apply(micro, 0)
    texts = (micro.targets != IGNORE).sum(1)
    assert corruption.denominators(0, micro.samples, texts) == {
        TOKENS: (found.targets != IGNORE).sum()
    }
    assert found.ids.shape[1], found.targets.shape[1] == SpanCorruption().compute_lengths(64)
    for row in range(64):
        ids, targets = split_sides(found, row)
        if texts[row] < 2:
            assert (ids, targets) == ([], [])
        else:
            wanted = micro.targets[row][micro.targets[row] != IGNORE].tolist()
            assert rebuild_text(ids, targets, corruption) == wanted
    full = SpanCorruption().compute_lengths(64)
    assert (found.ids.shape[1], found.targets.shape[1]) == full


def test_segments_tell_documents_apart_and_the_decoder_begins_each_afresh(encoder, make_rows):
    micro = make_rows(8, 128, mean=30)
    places = np.zeros_like(micro.ids)
    places[micro.pieces[:, 0], micro.pieces[:, 1]] = micro.pieces[:, 1]
    positions = np.arange(128) - np.maximum.accumulate(places, axis=1)
    by_document = dataclasses.replace(
        micro, arrays=build_token_arrays(micro.ids, micro.targets, positions)
    )
    corruption = SpanCorruption().make_corruption(encoder)
    found = corruption.apply(by_document, 0)
    plain = corruption.apply(micro, 0)
    assert set(np.unique(plain.arrays[SEGMENTS])) == {1}
    for name in (IDS, TARGETS):
        np.testing.assert_array_equal(found.arrays[name], plain.arrays[name])
    for row in range(8):
        segments = found.arrays[SEGMENTS][row]
        ids = found.arrays[IDS][row]
        ends = np.flatnonzero(ids[:-1] == corruption.end)
        changes = np.flatnonzero(np.diff(segments))
        assert set(changes) <= set(ends)  # a document ends before the next begins
        assert segments.max() - segments.min() >= len(changes) > 0
        of_target = found.arrays[DECODER_SEGMENTS][row]
        begins = np.flatnonzero(np.diff(of_target)) + 1
        read = found.arrays[DECODER_IDS][row]
        assert (read[[0, *begins]] == corruption.padding).all()
        rest = np.setdiff1d(np.arange(1, len(read)), begins)
        np.testing.assert_array_equal(read[rest], found.targets[row][rest - 1])
        # The tokens of a span belong to the document of their sentinel.
        for place, token in enumerate(ids.tolist()):
            if token in corruption.sentinels:
                said = found.targets[row].tolist().index(token)
                assert segments[place] == of_target[said] == of_target[said + 1]


def test_pieces_say_where_documents_begin_in_what_is_encoded(encoder, make_rows):
    micro = make_rows(20, 128, mean=30)
    corruption = SpanCorruption().make_corruption(encoder)
    found = corruption.apply(micro, 0)
    np.testing.assert_array_equal(found.pieces[:, [0, 2]], micro.pieces[:, [0, 2]])
    for (row, before, _), (_, after, _) in zip(micro.pieces, found.pieces, strict=True):
        if before > 1:
            assert found.ids[row, after - 1] == corruption.end
            token = found.ids[row, after]
            assert token == micro.ids[row, before] or token in corruption.sentinels


def test_a_decoder_reads_each_target_one_place_later():
    targets = np.array([[5, 6, 7, 8, IGNORE, IGNORE]])
    segments = np.array([[1, 1, 2, 2, 0, 0]])
    assert shift_targets(targets, segments, 0).tolist() == [[0, 5, 0, 7, 0, 0]]


def test_too_few_sentinels_are_refused_with_how_many_are_needed(encoder):
    find_corruption(SpanCorruption(), encoder, 2000)
    with pytest.raises(DataError, match=r"<extra_id_100> to <extra_id_204>.*`sentinels = 205`"):
        find_corruption(SpanCorruption(), encoder, 4096)
    plain = Encoder(ByteLevelBPE(vocabulary=264, sentinels=1).train([]).decode())
    find_corruption(SpanCorruption(), plain, 20)
    with pytest.raises(DataError, match="special token <extra_id_1>"):
        find_corruption(SpanCorruption(closing_sentinel=True), plain, 20)
