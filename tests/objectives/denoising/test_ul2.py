"""UL2: the denoisers of the paper, their mode tokens, reconstruction, and decoder rows."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.objectives.denoising.mixture import MEMBERS
from trainrig.objectives.denoising.noise_spans import Noise, draw_ends, read_texts
from trainrig.objectives.denoising.span_corruption import SpanCorruption
from trainrig.objectives.denoising.ul2 import UL2
from trainrig.objectives.objective_interface import DeviceBatch, find_corruption
from trainrig.tokens.batches import (
    DECODER_IDS,
    DECODER_SEGMENTS,
    IDS,
    IGNORE,
    POSITIONS,
    PREFIXES,
    SEGMENTS,
    TARGETS,
    TOKENS,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

# (mode, corruption rate, mean span) of table 1 of the paper; None is the text's end, L / 4 of it.
TABLE = (
    ("R", 0.15, 3), ("R", 0.15, 8), ("S", 0.25, None), ("X", 0.5, 3), ("X", 0.5, 8),
    ("X", 0.15, 64), ("X", 0.5, 64),
)  # fmt: skip
LENGTH = 512


def build_tokenizer(sentinels, extra):
    settings = ByteLevelBPE(vocabulary=263 + sentinels + len(extra), sentinels=sentinels)
    return Encoder(settings.model_copy(update={"extra": extra}).train([]).decode())


def read_and_said(found, row):
    """Return the input text and the target text of a row."""
    said = found.arrays[TARGETS][row]
    if PREFIXES in found.arrays:
        read = found.ids[row][found.arrays[PREFIXES][row]]
    else:
        read = found.ids[row][found.arrays[SEGMENTS][row] > 0]
    return read.tolist(), said[said != IGNORE].tolist()


def rebuild_text(read, said, corruption):
    """Return the original text: each sentinel replaced by the tokens that follow it in `said`."""
    assert read[-1] == said[-1] == corruption.end
    starts = [n for n, token in enumerate(said) if token in corruption.sentinels]
    spans = {said[a]: said[a + 1 : b] for a, b in zip(starts, [*starts[1:], -1], strict=True)}
    return [token for entry in read[1:-1] for token in spans.get(entry, [entry])]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("number", range(len(TABLE)))
def test_each_denoiser_is_that_of_the_paper(number, joined, encoder, make_rows):
    """Counts match those by hand, and every text is restored from input and targets."""
    mode, density, mean = TABLE[number]
    objective = UL2(joined=joined).list_named()[number].objective
    corruption = find_corruption(objective, encoder, LENGTH)
    micro = make_rows(24, LENGTH, mean=400, first=number * 1000)
    found = corruption.apply(micro, 0)
    left_out = round(density * LENGTH)
    spans = 1 if mean is None else round(left_out / mean)
    for row in range(24):
        read, said = read_and_said(found, row)
        assert read[0] == encoder.special_ids[f"[{mode}]"]
        assert rebuild_text(read, said, corruption) == micro.targets[row].tolist()
        assert len(said) == left_out + spans + 1
        assert len(read) == 1 + LENGTH - left_out + spans + 1
        if mean is None:
            assert said[1:-1] == micro.targets[row, -left_out:].tolist()
    assert objective.compute_lengths(LENGTH) == (len(read), len(said))
    assert found.ids.shape[1] == (objective.compute_row_length(LENGTH) if joined else len(read))


def test_a_decoder_has_the_rows_of_encoder_and_decoder_in_one(encoder, make_rows):
    micro = make_rows(8, 128, padded=True)
    for two, one in zip(UL2().parts(), UL2(joined=True).parts(), strict=True):
        apart, together = (part.make_corruption(encoder).apply(micro, 0) for _, part in (two, one))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(apart.pieces, together.pieces)
        for row in range(8):
            read, said = read_and_said(apart, row)
            assert read_and_said(together, row) == (read, said)
            whole = (read + said)[:-1]
            ids = together.ids[row]
            targets = together.targets[row]
            assert ids[: len(whole)].tolist() == whole
            first = max(len(read) - 1, 0)
            assert targets[first : first + len(said)].tolist() == said
            assert (targets != IGNORE).sum() == len(said)
            assert (ids[len(whole) :] == encoder.special_tokens.padding).all()


def list_documents(found, row):
    """Return the input tokens and the target tokens of each document of a row, in order."""
    ids = found.ids[row]
    targets = found.targets[row]
    if PREFIXES not in found.arrays:
        of_ids, of_said = (found.arrays[name][row] for name in (SEGMENTS, DECODER_SEGMENTS))
        return [
            (ids[of_ids == document].tolist(), targets[of_said == document].tolist())
            for document in np.unique(of_ids[of_ids > 0])
        ]
    begins = np.flatnonzero(found.arrays[POSITIONS][row] == 0)
    parts = []
    for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        read = found.arrays[PREFIXES][row, begin:end].sum()
        said = targets[begin:end][targets[begin:end] != IGNORE]
        whole = ids[begin : begin + read + len(said) - 1].tolist()
        assert whole[read:] == said[:-1].tolist()  # each target is the input one position later
        assert (targets[begin : begin + read - 1] == IGNORE).all()
        parts.append((whole[:read], said.tolist()))
    return parts


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("number", range(len(TABLE)))
def test_documents_of_a_row_have_a_mode_and_gaps_of_their_own(number, joined, encoder, make_rows):
    """Texts are restored from their own inputs and targets.

    The number of targets equals the number in rows with one text.
    """
    mode, _, mean = TABLE[number]
    objective = UL2(joined=joined).list_named()[number].objective
    corruption = find_corruption(objective, encoder, LENGTH)
    micro = make_rows(16, LENGTH, mean=60, first=number * 1000, apart=True)
    found = corruption.apply(micro, 0)
    count = corruption.denominators(0, micro.samples, np.full(16, LENGTH))[TOKENS]
    assert (found.targets != IGNORE).sum() == count
    begun = 0
    for row, text in enumerate(read_texts(micro, corruption.special, corruption.end)):
        texts = [
            text.ids[text.documents == document].tolist() for document in np.unique(text.documents)
        ]
        left = iter(texts)
        documents = list_documents(found, row)
        for place, (read, said) in enumerate(documents):
            assert read[0] == encoder.special_ids[f"[{mode}]"]
            if place == len(documents) - 1:
                assert read.pop() == said.pop() == corruption.end
            starts = [n for n, token in enumerate(said) if token in corruption.sentinels]
            assert starts[:1] == [0][: len(said)]
            ends = [*starts[1:], len(said)][: len(starts)]
            spans = {said[a]: said[a + 1 : b] for a, b in zip(starts, ends, strict=True)}
            assert set(spans) == set(read) & set(corruption.sentinels)
            back = [token for entry in read[1:] for token in spans.get(entry, [entry])]
            # Texts keep their order; a decoder reads no document without targets.
            assert back in left
            if mean is None and spans:
                assert len(spans) == 1
                assert read[-1] in corruption.sentinels
            begun += len(spans) if mean is None else 0
    if mean is None:  # most documents of a row have an end among the targets
        assert begun > 16 * 4


@pytest.mark.parametrize("joined", [False, True])
def test_nothing_of_a_document_is_seen_from_another(joined, encoder, make_rows):
    """Changed tokens of the second document change no bit of the other documents' logits."""
    torch.manual_seed(0)
    sizes = {"layers": 2, "channels": 32, "heads": 2, "vocabulary": encoder.vocabulary_size}
    sizes = {**sizes, "positions": 128}
    model = build_model(DecoderConfig(**sizes) if joined else EncoderDecoderConfig(**sizes))
    initialise(model, 0)
    looked_at = 0
    for number, (_, objective) in enumerate(UL2(joined=joined).parts()):
        corruption = find_corruption(objective, encoder, 64)
        found = corruption.apply(make_rows(4, 64, mean=12, first=number, apart=True), 0)
        device = torch.device("cpu")
        for row in range(4):
            if joined:
                of_ids = np.cumsum(found.arrays[POSITIONS][row] == 0)
                of_said = of_ids
            else:
                of_ids, of_said = (found.arrays[name][row] for name in (SEGMENTS, DECODER_SEGMENTS))
            second = np.unique(of_said[found.targets[row] != IGNORE])[1:2]
            if not len(second):
                continue
            looked_at += 1
            changed = {name: array.copy() for name, array in found.arrays.items()}
            changed[IDS][row, of_ids == second[0]] ^= 1
            if not joined:
                changed[DECODER_IDS][row, of_said == second[0]] ^= 1
            other = dataclasses.replace(found, arrays=changed)
            with torch.no_grad():
                logits, others = (
                    objective.predict(model, DeviceBatch.copy(micro_batch, device))
                    .logits[row]
                    .numpy()
                    for micro_batch in (found, other)
                )
            same = (logits == others).all(-1)
            said = found.targets[row] != IGNORE
            assert same[said & (of_said != second[0])].all()
            assert not same[said & (of_said == second[0])].any()
    assert looked_at > 14


@pytest.mark.parametrize(
    ("sizes", "tokens", "most", "said"),
    [
        ((8, 8, 8), 5, 9, (1, 1, 1)),  # 6 positions: a sentinel and a token each
        ((8, 8, 8), 8, 9, (2, 2, 2)),
        ((20, 2, 2), 5, 9, (5,)),  # the short documents would have less than a sentinel and a token
        ((8, 8, 8), 5, 2, (2, 2)),  # limited by the number of sentinels
        ((12,), 3, 9, (3,)),
        ((1, 1, 2), 3, 9, (3,)),  # no document holds this many tokens: the text's end
    ],
)
def test_ends_are_divided_among_documents(sizes, tokens, most, said):
    documents = np.repeat(np.arange(len(sizes)) + 1, sizes)
    spans = draw_ends(Noise(tokens / len(documents), None), documents, most)
    assert tuple(spans.lengths) == said
    assert spans.lengths.sum() + len(said) == tokens + 1
    past = set(np.cumsum(sizes).tolist())
    assert set(spans.ends.tolist()) <= past


@pytest.mark.parametrize("joined", [False, True])
def test_all_rows_of_a_micro_batch_are_of_one_denoiser_and_none_is_padded(
    joined, encoder, make_rows
):
    objective = UL2(joined=joined)
    corruption = find_corruption(objective, encoder, LENGTH)
    seen = set()
    counted = 0
    stated = 0
    for first in range(0, 256, 4):
        micro = make_rows(4, LENGTH, mean=400, first=first)
        found = corruption.apply(micro, 0)
        (number,) = set(found.arrays[MEMBERS].tolist())
        seen.add(number)
        read, said = objective.parts()[number][1].compute_lengths(LENGTH)
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
    corruption = UL2().make_corruption(encoder).choose_by_sample()
    of = corruption.draw_members(np.arange(70_000))
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
    assert [part.name for part in weighed.list_named()] == ["R-0.15-3", "S-0.25-end"]
    assert [share for share, _ in weighed.parts()] == [0.75, 0.25]


def test_a_row_is_a_function_of_its_sample_and_the_seed(encoder, make_rows):
    micro = make_rows(16, 128)
    alike, other = (
        UL2(corruption_seed=seed).parts()[3][1].make_corruption(encoder)  # type: ignore[attr-defined]
        for seed in (0, 1)
    )
    found = alike.apply(micro, 0)
    np.testing.assert_array_equal(found.ids, alike.apply(micro, 9).ids)
    assert (found.ids != other.apply(micro, 0).ids).any()


def test_modes_go_by_the_names_of_the_papers_checkpoints_too():
    theirs = build_tokenizer(100, ("[NLU]", "[S2S]", "[NLG]"))
    found = UL2().make_corruption(theirs)
    wanted = [theirs.special_ids[name] for name in ("[NLU]", "[S2S]", "[NLG]")]
    assert sorted({denoiser.mode for denoiser in found.corruptions}) == sorted(wanted)


def test_a_missing_token_is_rejected_with_the_setting_that_adds_it():
    with pytest.raises(DataError, match=r"special token \[S\], \[X\].*objective UL2"):
        UL2().make_corruption(build_tokenizer(100, ("[R]",)))
    with pytest.raises(DataError, match=r"<extra_id_4> to <extra_id_84>.* `sentinels = 85`"):
        find_corruption(UL2(), build_tokenizer(4, ("[R]", "[S]", "[X]")), LENGTH)
    with pytest.raises(DataError, match=r"\[X\], which objective SpanCorruption needs"):
        SpanCorruption(mode="X").make_corruption(build_tokenizer(100, ("[R]",)))


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
