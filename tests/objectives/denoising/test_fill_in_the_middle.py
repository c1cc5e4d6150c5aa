"""Fill-in-the-middle: reconstruction, rates, and rows that stay unchanged."""

import dataclasses
import math

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.objectives.objective_kinds import FillInTheMiddle
from trainrig.posttrain.prompt_text import Gap, PromptEncoder
from trainrig.tokens.batches import IGNORE, TOKENS
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE


def list_pieces(micro):
    """Return (row, tokens with the row's last target) of each piece of `micro`."""
    for row, (ids, targets) in enumerate(zip(micro.ids, micro.targets, strict=True)):
        trained = np.flatnonzero(targets != IGNORE)
        filled = int(trained[-1]) + 2 if len(trained) else 0
        whole = np.append(ids, targets[-1])
        begins = micro.pieces[micro.pieces[:, 0] == row, 1].tolist()
        for begin, end in zip(begins, [*begins[1:], filled], strict=True):
            yield row, whole[begin : min(end, filled)].tolist()


def restore_text(piece, corruption):
    """Return the original text of a piece without its end, and whether the piece is SPM."""
    assert piece[0] == corruption.prefix
    # Or a last target that belongs to the next piece.
    assert piece[-1] == corruption.end or piece[-2] == corruption.end
    piece = piece[: piece.index(corruption.end)]
    suffix = piece.index(corruption.suffix)
    middle = piece.index(corruption.middle)
    if suffix == 1 and middle >= suffix:
        spm = piece[middle + 1 :] + piece[suffix + 1 : middle]
        return piece[1:suffix] + piece[middle + 1 :] + piece[suffix + 1 : middle], spm
    return piece[1:suffix] + piece[middle + 1 :] + piece[suffix + 1 : middle], None


def test_every_text_comes_back_but_for_the_tokens_that_made_room(encoder, make_rows):
    micro = make_rows(40, 256, mean=50)
    corruption = FillInTheMiddle(rate=1.0).make_corruption(encoder)
    moved = corruption.apply(micro, 0)
    assert moved.ids.shape == micro.ids.shape
    np.testing.assert_array_equal(moved.pieces, micro.pieces)
    long = 0
    for (_, before), (_, after) in zip(list_pieces(micro), list_pieces(moved), strict=True):
        assert len(before) == len(after)
        if before == after:
            assert len(before) <= 6
            continue
        long += 1
        text, _ = restore_text(after, corruption)
        there = before[: before.index(corruption.end)] if corruption.end in before else before
        lost = 3 if corruption.end in before else 4
        assert text == there[: len(there) - lost]
    assert long > 150


def test_rows_stay_rows_of_next_token_prediction(encoder, make_rows):
    micro = make_rows(30, 128, padded=True)
    corruption = FillInTheMiddle(rate=0.8).make_corruption(encoder)
    moved = corruption.apply(micro, 0)
    np.testing.assert_array_equal(moved.targets == IGNORE, micro.targets == IGNORE)
    inner = moved.targets[:, :-1] != IGNORE
    np.testing.assert_array_equal(moved.targets[:, :-1][inner], moved.ids[:, 1:][inner])
    for row in range(30):  # padding is unchanged
        filled = 128 - row + 1
        np.testing.assert_array_equal(moved.ids[row, filled:], micro.ids[row, filled:])
    counts = (micro.targets != IGNORE).sum(1)
    assert corruption.denominators(0, micro.samples, counts) == {TOKENS: counts.sum()}


def test_rates_are_those_asked_for_within_binomial_error(encoder, make_rows):
    micro = make_rows(200, 512, mean=40)  # 10^5 tokens
    corruption = FillInTheMiddle(rate=0.6, spm_rate=0.25).make_corruption(encoder)
    moved = corruption.apply(micro, 0)
    pairs = [
        (before, after)
        for (_, before), (_, after) in zip(list_pieces(micro), list_pieces(moved), strict=True)
        if len(before) > 8
    ]
    changed = [after for before, after in pairs if before != after]
    assert abs(len(changed) - 0.6 * len(pairs)) < 4 * math.sqrt(len(pairs) * 0.24)
    # A PSM piece with an empty prefix begins like an SPM piece; each cut is equally likely.
    spm = sum(piece[1] == corruption.suffix for piece in changed)
    empty = sum(0.75 * 2 / (len(piece) - 3) for piece in changed)
    assert abs(spm - 0.25 * len(changed) - empty) < 5 * math.sqrt(len(changed) * 0.25 * 0.75)


def test_a_tokenizer_without_sentinels_is_refused_with_what_would_work():
    plain = Encoder(ByteLevelBPE(vocabulary=264, extra=("<fim_suffix>",)).train([]).decode())
    with pytest.raises(DataError, match=r"<\|fim_prefix\|>, <\|fim_middle\|>.*`extra = \["):
        FillInTheMiddle().make_corruption(plain)


def test_a_prompt_to_fill_a_gap_is_what_rows_have_before_the_middle(encoder, make_rows):
    text = np.array(encoder.encode_batch(["def add(a, b): total = a + b return total"])[0])
    row = np.append(text, encoder.end_of_text).astype(np.int64)
    whole = np.append(row, [row[0]])
    micro = make_rows(1, len(row))
    micro = dataclasses.replace(
        micro,
        arrays={"ids": whole[None, :-1], "targets": whole[None, 1:]},
        pieces=np.array([[0, 0, 0]]),
    )
    corruption = FillInTheMiddle(rate=1.0, spm_rate=0.0).make_corruption(encoder)
    ids = corruption.apply(micro, 0).ids[0].tolist()
    middle = ids.index(corruption.middle)
    suffix = ids.index(corruption.suffix)
    gap = Gap(encoder.decode(ids[1:suffix]), encoder.decode(ids[suffix + 1 : middle]))
    begin = list(encoder.special_tokens.prefix)
    assert PromptEncoder(encoder).encode(gap) == [*begin, *ids[: middle + 1]]
    plain = Encoder(ByteLevelBPE(vocabulary=263).train([]).decode())
    with pytest.raises(DataError, match="no special token <\\|fim_prefix"):
        PromptEncoder(plain).encode(gap)
