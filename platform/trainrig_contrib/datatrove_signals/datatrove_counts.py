"""Lines, sentences and repeated n-grams of texts, counted as datatrove counts them.

datatrove has three definitions of a line, none of which trims lines. Gopher's repetition filter
splits at runs of new lines, and counts the empty pieces before the first run and after the last.
Gopher's quality filter splits as `str.splitlines` does. FineWeb's splits at each new line and
leaves out blank lines; a line ends a sentence by its very last character, even a space.

Sentences are those of spaCy's `sentencizer`, in the lines that datatrove's C4 filter keeps.

The top n-gram is the most frequent one (the first, among equally frequent ones), even if it occurs
only once; its length includes the spaces between words. Duplicates are counted from left to right
without overlap: n-grams that start inside a duplicate are skipped. Their lengths include no spaces.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.line_signals import (
    Pieces,
    RepeatedPieces,
    ends_in_dots,
    measure_repeated,
)
from trainrig.corpus.signals.text_arrays import (
    LINE_BREAK,
    SPACE,
    Seen,
    TextBatch,
    allocate_seen,
    compute_table_size,
    count_again,
    hash_characters,
    mix_bits,
)
from trainrig.corpus.signals.word_signals import DUPLICATES, TOPS, Repetition
from trainrig_contrib.datatrove_signals.chunk_cache import Chunks, Tokens
from trainrig_contrib.datatrove_signals.spacy_tables import ENDS_SENTENCE, PUNCTUATION

_NEW_LINE = 0x0A
_RETURN = 0x0D
_BULLET = 0x2022
_DASH = 0x2D
_ELLIPSIS = 0x2026
_SHORT_LINE = 30


class QualityLines(NamedTuple):
    """Counts of each text's lines, as `str.splitlines` splits them."""

    lines: NDArray[np.int64]
    bullets: NDArray[np.int64]
    ellipses: NDArray[np.int64]


class FineWebLines(NamedTuple):
    """Counts of each text's lines that are not blank."""

    lines: NDArray[np.int64]
    terminals: NDArray[np.int64]
    short: NDArray[np.int64]
    duplicate_characters: NDArray[np.int64]
    characters: NDArray[np.int64]  # characters of the text without new lines


def measure_repeated_lines(batch: TextBatch) -> RepeatedPieces:
    """Measure how often pieces between runs of new lines repeat."""
    return measure_repeated(batch, _find_pieces(batch, 1))


def measure_repeated_paragraphs(batch: TextBatch) -> RepeatedPieces:
    """Measure how often pieces between runs of two or more new lines repeat, in trimmed texts."""
    return measure_repeated(batch, _find_pieces(batch, 2))


def measure_quality_lines(batch: TextBatch) -> QualityLines:
    """Count the lines of each text, and those that start with a bullet or end with an ellipsis."""
    found = np.zeros((len(QualityLines._fields), len(batch.starts_D1) - 1), np.int64)
    _count_quality(*batch, found)
    return QualityLines(*found)


def measure_fineweb_lines(batch: TextBatch, is_terminal: NDArray[np.bool_]) -> FineWebLines:
    """Count the lines of each text by how they end; `is_terminal` is indexed by code point."""
    found = np.zeros((len(FineWebLines._fields), len(batch.starts_D1) - 1), np.int64)
    table = allocate_seen(int(np.diff(batch.starts_D1).max(initial=0)) // 2 + 1)
    _count_fineweb(batch, is_terminal, table, found)
    return FineWebLines(*found)


def _find_pieces(batch: TextBatch, new_lines: int) -> Pieces:
    room = len(batch.codes_C) + len(batch.starts_D1)
    starts = np.empty(room, np.int64)
    ends = np.empty(room, np.int64)
    firsts = np.zeros(len(batch.starts_D1), np.int64)
    _split_at_new_lines(*batch, new_lines, starts, ends, firsts)
    count = int(firsts[-1])
    return Pieces(starts[:count], ends[:count], firsts)


@compile_nogil
def _split_at_new_lines(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    new_lines: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    firsts: NDArray[np.int64],
) -> None:
    piece = 0
    for text in range(len(texts) - 1):
        place = texts[text]
        end = texts[text + 1]
        if new_lines > 1:
            while place < end and classes[place] & SPACE:
                place += 1
            while place < end and classes[end - 1] & SPACE:
                end -= 1
        starts[piece] = place
        while place < end:
            run = place
            while run < end and codes[run] == _NEW_LINE:
                run += 1
            if run - place >= new_lines:
                ends[piece] = place
                piece += 1
                starts[piece] = run
            place = max(run, place + 1)
        ends[piece] = end
        piece += 1
        firsts[text + 1] = piece


@compile_nogil
def _count_quality(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(texts) - 1):
        place = texts[text]
        end_of_text = texts[text + 1]
        while place < end_of_text:
            start = place
            while place < end_of_text and classes[place] & LINE_BREAK == 0:
                place += 1
            end = place
            place += 1
            if place < end_of_text and codes[end] == _RETURN and codes[place] == _NEW_LINE:
                place += 1
            found[0, text] += 1
            while start < end and classes[start] & SPACE:
                start += 1
            while start < end and classes[end - 1] & SPACE:
                end -= 1
            if start < end:
                found[1, text] += codes[start] == _BULLET or codes[start] == _DASH
                found[2, text] += codes[end - 1] == _ELLIPSIS or ends_in_dots(codes, start, end)


@compile_nogil
def _count_fineweb(
    batch: TextBatch, is_terminal: NDArray[np.bool_], table: Seen, found: NDArray[np.int64]
) -> None:
    codes, classes, texts = batch
    for text in range(len(texts) - 1):
        place = texts[text]
        end_of_text = texts[text + 1]
        size = compute_table_size((end_of_text - place) // 2 + 1)
        while place < end_of_text:
            start = place
            is_blank = True
            while place < end_of_text and codes[place] != _NEW_LINE:
                is_blank &= classes[place] & SPACE != 0
                place += 1
            end = place
            place += 1
            found[4, text] += end - start
            if is_blank:
                continue
            found[0, text] += 1
            found[1, text] += is_terminal[codes[end - 1]]
            found[2, text] += end - start <= _SHORT_LINE
            again = count_again(table, text + 1, size, hash_characters(codes, start, end))
            if table.counts[again] > 1:
                found[3, text] += end - start


_SPACE = 0x20
_END_MARKS = tuple(map(ord, ".?!\"'"))


def count_sentences(batch: TextBatch, chunks: Chunks, tokens: Tokens) -> NDArray[np.int64]:
    """Count each text's sentences, [2, texts]: of all lines, and of lines with a C4 line end."""
    found = np.zeros((2, len(batch.starts_D1) - 1), np.int64)
    _count_sentences(
        batch.codes_C,
        batch.starts_D1,
        *(chunks.starts_K, chunks.ends_K, chunks.firsts_D1),
        *(tokens.flags_T, tokens.firsts_K1),
        found,
    )
    return found


@compile_nogil
def _count_sentences(
    codes: NDArray[np.uint32],
    texts: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    first_chunks: NDArray[np.int64],
    flags: NDArray[np.uint8],
    first_tokens: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(texts) - 1):
        # sentences of this line, and whether the last one has ended
        sentences = 0
        ended = False
        for chunk in range(first_chunks[text], first_chunks[text + 1]):
            if sentences == 0:
                sentences = 1
                line = starts[chunk]
            for token in range(first_tokens[chunk], first_tokens[chunk + 1]):
                if flags[token] & ENDS_SENTENCE:
                    ended = True
                elif ended and flags[token] & PUNCTUATION == 0:
                    sentences += 1
                    ended = False
            end = ends[chunk]
            is_last = chunk + 1 == first_chunks[text + 1]
            after = texts[text + 1] if is_last else starts[chunk + 1]
            if is_last or _NEW_LINE in codes[end:after]:
                found[0, text] += sentences
                if codes[end - 1] in _END_MARKS and not ends_in_dots(codes, line, end):
                    found[1, text] += sentences
                sentences = 0
                ended = False
            elif ended and (after - end > 1 or codes[end] != _SPACE):
                # White space other than one space is a token, and so starts a sentence.
                sentences += 1
                ended = False


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, rounded to an odd number


def measure_repetition(
    hashes_T: NDArray[np.uint64], lengths_T: NDArray[np.int32], firsts_D1: NDArray[np.int64]
) -> Repetition:
    """Measure the characters in each text's top n-grams and in its duplicate n-grams."""
    texts = len(firsts_D1) - 1
    most = int(np.diff(firsts_D1).max(initial=0))
    before = np.zeros(len(lengths_T) + 1, np.int64)
    np.cumsum(lengths_T, out=before[1:])
    found = Repetition(
        np.zeros((texts, len(TOPS)), np.int64), np.zeros((texts, len(DUPLICATES)), np.int64)
    )
    positions = np.empty(most, np.int64)
    places = np.empty(most, np.int64)
    grams = np.empty(most, np.uint64)
    table = allocate_seen(most)
    _count_repetition(hashes_T, before, firsts_D1, table, positions, places, grams, found)
    return found


@compile_nogil
def _count_repetition(
    hashes: NDArray[np.uint64],
    before: NDArray[np.int64],
    firsts: NDArray[np.int64],
    table: Seen,
    positions: NDArray[np.int64],
    places: NDArray[np.int64],
    grams: NDArray[np.uint64],
    found: Repetition,
) -> None:
    counts = table.counts
    generation = 0
    for text in range(len(firsts) - 1):
        first = firsts[text]
        end = firsts[text + 1]
        size = compute_table_size(end - first)
        alive = end - first
        for token in range(first, end):
            positions[token - first] = token
            grams[token - first] = hashes[token]
        for n in range(2, DUPLICATES[-1] + 1):
            generation += 1
            looked_at = 0
            for index in range(alive):
                token = positions[index]
                if token + n > end:
                    break
                gram = mix_bits(grams[index] * _MULTIPLIER + hashes[token + n - 1])
                places[looked_at] = count_again(table, generation, size, gram)
                positions[looked_at] = token
                grams[looked_at] = gram
                looked_at += 1
            if n <= TOPS[-1]:
                top = first
                most = 1
                for index in range(looked_at):
                    if counts[places[index]] > most:
                        top = positions[index]
                        most = counts[places[index]]
                if top + n <= end:
                    length = before[top + n] - before[top] + n - 1
                    found.tops[text, n - TOPS[0]] = most * length
            alive = 0
            for index in range(looked_at):
                if counts[places[index]] > 1:
                    positions[alive] = positions[index]
                    grams[alive] = grams[index]
                    alive += 1
            if n >= DUPLICATES[0]:
                generation += 1
                free = first  # the first token after the last duplicate n-gram
                for index in range(alive):
                    token = positions[index]
                    if token < free:
                        continue
                    place = count_again(table, generation, size, grams[index])
                    if counts[place] > 1:
                        length = before[token + n] - before[token]
                        found.duplicates[text, n - DUPLICATES[0]] += length
                        free = token + n
            if alive == 0 and n >= TOPS[-1]:
                break
