"""UL2: the denoisers of the paper, their modes, what comes back, and rows for a decoder."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from trainrig.errors import DataError
from trainrig.objectives.contract import find_corruption
from trainrig.objectives.denoising.mixture import MEMBERS
from trainrig.objectives.denoising.span_corruption import SpanCorruption
from trainrig.objectives.denoising.ul2 import UL2
from trainrig.tokens.batches import DECODER_IDS, IGNORE, PREFIXES, SEGMENTS, TARGETS, TOKENS
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.tokenizers.train import ByteLevelBPE

# (mode, share left out, mean span) of table 1 of the paper; None: the text's end, L / 4 of it.
TABLE = (
    ("R", 0.15, 3), ("R", 0.15, 8), ("S", 0.25, None), ("X", 0.5, 3), ("X", 0.5, 8),
    ("X", 0.15, 64), ("X", 0.5, 64),
)  # fmt: skip
LENGTH = 512


def tokenizer_with(sentinels, extra):
    settings = ByteLevelBPE(vocabulary=263 + sentinels + len(extra), sentinels=sentinels)
    return Encoder(settings.model_copy(update={"extra": extra}).train([]).decode())


def read_and_said(found, row):
    """The two texts of a row: what is read, and what is to be said of it."""
    said = found.arrays[TARGETS][row]
    if PREFIXES in found.arrays:
        read = found.ids[row][found.arrays[PREFIXES][row]]
    else:
        read = found.ids[row][found.arrays[SEGMENTS][row] > 0]
    return read.tolist(), said[said != IGNORE].tolist()


def rebuilt(read, said, corruption):
    """The text that both are of: each sentinel gives way to what was said after it."""
    assert read[-1] == said[-1] == corruption.end
    starts = [n for n, token in enumerate(said) if token in corruption.sentinels]
    spans = {said[a]: said[a + 1 : b] for a, b in zip(starts, [*starts[1:], -1], strict=True)}
    return [token for each in read[1:-1] for token in spans.get(each, [each])]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("number", range(len(TABLE)))
def test_each_denoiser_is_that_of_the_paper(number, joined, encoder, make_rows):
    """Counts by hand, and every text comes back from what is read and said."""
    mode, density, mean = TABLE[number]
    objective = UL2(joined=joined).named()[number].objective
    corruption = find_corruption(objective, encoder, LENGTH)
    micro = make_rows(24, LENGTH, mean=400, first=number * 1000)
    found = corruption.apply(micro, 0)
    left_out = round(density * LENGTH)
    spans = 1 if mean is None else round(left_out / mean)
    for row in range(24):
        read, said = read_and_said(found, row)
        assert read[0] == encoder.special_ids[f"[{mode}]"]
        assert rebuilt(read, said, corruption) == micro.targets[row].tolist()
        assert len(said) == left_out + spans + 1
        assert len(read) == 1 + LENGTH - left_out + spans + 1
        if mean is None:
            assert said[1:-1] == micro.targets[row, -left_out:].tolist()
    assert objective.lengths(LENGTH) == (len(read), len(said))
    assert found.ids.shape[1] == (objective.row_length(LENGTH) if joined else len(read))


def test_a_decoder_has_the_rows_of_encoder_and_decoder_in_one(encoder, make_rows):
    micro = make_rows(8, 128, padded=True)
    for two, one in zip(UL2().parts(), UL2(joined=True).parts(), strict=True):
        apart, together = (each.corruption(encoder).apply(micro, 0) for _, each in (two, one))
        np.testing.assert_array_equal(apart.pieces, together.pieces)
        for row in range(8):
            read, said = read_and_said(apart, row)
            assert read_and_said(together, row) == (read, said)
            whole = (read + said)[:-1]
            ids, targets = together.ids[row], together.targets[row]
            assert ids[: len(whole)].tolist() == whole
            first = max(len(read) - 1, 0)
            assert targets[first : first + len(said)].tolist() == said
            assert (targets != IGNORE).sum() == len(said)
            assert (ids[len(whole) :] == encoder.special_tokens.padding).all()


@pytest.mark.parametrize("joined", [False, True])
def test_all_rows_of_a_micro_batch_are_of_one_denoiser_and_none_is_padded(
    joined, encoder, make_rows
):
    objective = UL2(joined=joined)
    corruption = find_corruption(objective, encoder, LENGTH)
    seen, counted, stated = set(), 0, 0
    for first in range(0, 256, 4):
        micro = make_rows(4, LENGTH, mean=400, first=first)
        found = corruption.apply(micro, 0)
        (number,) = set(found.arrays[MEMBERS].tolist())
        seen.add(number)
        read, said = objective.parts()[number][1].lengths(LENGTH)
        if joined:
            assert found.ids.shape == (4, read + said - 1)
        else:
            assert (found.ids.shape, found.arrays[DECODER_IDS].shape) == ((4, read), (4, said))
            assert (found.arrays[SEGMENTS] > 0).all()
            assert (found.targets != IGNORE).all()
        counted += int((found.targets != IGNORE).sum())
        targets = np.full(4, LENGTH)
        stated += corruption.denominators(0, micro.samples, targets)[TOKENS]
    assert seen == set(range(len(TABLE)))
    assert stated == counted


def test_denoisers_are_as_likely_each_unless_weighed(encoder):
    corruption = UL2().corruption(encoder).by_sample()
    of = corruption.deal(np.arange(70_000))
    sigma = math.sqrt(70_000 / 7 * 6 / 7)
    assert np.abs(np.bincount(of, minlength=7) - 10_000).max() < 4 * sigma
    weighed = UL2.model_validate(
        {
            "denoisers": (
                {"mode": "R", "noise_density": 0.15, "mean_span": 3.0, "weight": 3.0},
                {"mode": "S", "noise_density": 0.25},
            )
        }
    )
    assert [each.name for each in weighed.named()] == ["R-0.15-3", "S-0.25-end"]
    assert [share for share, _ in weighed.parts()] == [0.75, 0.25]


def test_a_row_is_a_function_of_its_sample_and_the_seed(encoder, make_rows):
    micro = make_rows(16, 128)
    alike, other = (UL2(corruption_seed=seed).parts()[3][1].corruption(encoder) for seed in (0, 1))
    found = alike.apply(micro, 0)
    np.testing.assert_array_equal(found.ids, alike.apply(micro, 9).ids)
    assert (found.ids != other.apply(micro, 0).ids).any()


def test_modes_go_by_the_names_of_the_papers_checkpoints_too():
    theirs = tokenizer_with(100, ("[NLU]", "[S2S]", "[NLG]"))
    found = UL2().corruption(theirs)
    wanted = [theirs.special_ids[name] for name in ("[NLU]", "[S2S]", "[NLG]")]
    assert sorted({each.mode for each in found.corruptions}) == sorted(wanted)


def test_what_a_tokenizer_lacks_is_refused_with_what_would_add_it():
    with pytest.raises(
        DataError, match=r"no special token \[S\], \[X\], which objective UL2 needs"
    ):
        UL2().corruption(tokenizer_with(100, ("[R]",)))
    with pytest.raises(DataError, match=r"<extra_id_4> to <extra_id_84>.* `sentinels = 85`"):
        find_corruption(UL2(), tokenizer_with(4, ("[R]", "[S]", "[X]")), LENGTH)
    with pytest.raises(DataError, match=r"\[X\], which objective SpanCorruption needs"):
        SpanCorruption(mode="X").corruption(tokenizer_with(100, ("[R]",)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"denoisers": ({"mode": "R", "noise_density": 0.15, "mean_span": 3.0},)}, "at least 2"),
        ({"denoisers": ({"mode": "S", "noise_density": 0.25},) * 2}, "2 are S-0.25-end"),
        ({"denoisers": ({"mode": "T", "noise_density": 0.25},) * 2}, "'R', 'S' or 'X'"),
    ],
)
def test_denoisers_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        UL2.model_validate(changes)
