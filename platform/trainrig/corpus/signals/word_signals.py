"""Repetition of word n-grams in a text, and its number of different stop words.

An n-gram can repeat only where its (n - 1)-gram does (Rae et al. 2021, table A1). So each order
examines only the positions that the order before has left, which are few after the bigrams.

The English stop words are Gopher's (Rae et al. 2021, arXiv:2112.11446, appendix A1.1). The others
were chosen by its example: eight of each language's most frequent words that are nothing but
articles, conjunctions, prepositions or forms of "to be".
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import (
    Seen,
    allocate_seen,
    build_batch,
    compute_table_size,
    count_again,
    mix_bits,
)
from trainrig.corpus.signals.text_words import BatchWords, split_words

TOPS = (2, 3, 4)
DUPLICATES = (5, 6, 7, 8, 9, 10)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, rounded to an odd number


class Repetition(NamedTuple):
    """Characters of words in repeated n-grams, for each text."""

    tops: Int64s  # [D, 3] in all occurrences of the most frequent n-gram, n = 2, 3, 4
    duplicates: Int64s  # [D, 6] inside n-grams that occurred before, n = 5 to 10


def measure_repetition(words: BatchWords) -> Repetition:
    """Measure the characters in each text's top n-grams and in its duplicate n-grams.

    Of equally frequent n-grams the longest is the top one; an n-gram that occurs once is none.
    Occurrences may overlap: "a a a" contains "a a" twice. A word inside several duplicates counts
    once.
    """
    firsts = words.firsts_D1
    texts = len(firsts) - 1
    most = int(np.diff(firsts).max(initial=0))
    found = Repetition(
        np.zeros((texts, len(TOPS)), np.int64), np.zeros((texts, len(DUPLICATES)), np.int64)
    )
    table = allocate_seen(most)
    positions = np.empty(most, np.int64)
    places = np.empty(most, np.int64)
    grams = np.empty(most, np.uint64)
    _count_repetition(words, table, positions, places, grams, found)
    return found


@compile_nogil
def _count_repetition(
    words: BatchWords,
    table: Seen,
    positions: Int64s,
    places: Int64s,
    grams: UInt64s,
    found: Repetition,
) -> None:
    hashes = words.hashes_W
    before = words.before_W1
    firsts = words.firsts_D1
    generation = 0
    for text in range(len(firsts) - 1):
        first = firsts[text]
        end = firsts[text + 1]
        size = compute_table_size(end - first)
        alive = end - first
        for word in range(first, end):
            positions[word - first] = word
            grams[word - first] = hashes[word]
        for n in range(2, DUPLICATES[-1] + 1):
            generation += 1
            looked_at = 0
            most = 1  # occurrences of the most frequent n-gram
            covered = first  # words before this are counted already, or not in a duplicate
            for index in range(alive):
                word = positions[index]
                if word + n > end:
                    break
                gram = mix_bits(grams[index] * _MULTIPLIER + hashes[word + n - 1])
                place = count_again(table, generation, size, gram)
                positions[looked_at] = word
                places[looked_at] = place
                grams[looked_at] = gram
                looked_at += 1
                if table.counts[place] > 1:
                    most = max(most, table.counts[place])
                    if n >= DUPLICATES[0]:
                        covered = max(covered, word)
                        column = n - DUPLICATES[0]
                        found.duplicates[text, column] += before[word + n] - before[covered]
                        covered = word + n
            alive = 0
            longest = 0
            for index in range(looked_at):
                count = table.counts[places[index]]
                if count == 1:
                    continue
                word = positions[index]
                if count == most:
                    longest = max(longest, before[word + n] - before[word])
                positions[alive] = word
                grams[alive] = grams[index]
                alive += 1
            if n <= TOPS[-1]:
                found.tops[text, n - TOPS[0]] = most * longest
            if alive == 0:
                break


STOP_WORDS: dict[str, tuple[str, ...]] = {
    "ar": ("في", "من", "على", "إلى", "أن", "التي", "عن", "مع"),
    "bg": ("на", "и", "в", "се", "да", "за", "от", "е"),
    "ca": ("de", "la", "que", "el", "i", "en", "els", "amb"),
    "cs": ("a", "v", "se", "na", "je", "že", "to", "s"),
    "da": ("og", "i", "at", "er", "det", "til", "af", "som"),
    "de": ("der", "die", "und", "in", "zu", "den", "das", "ist"),
    "el": ("και", "το", "της", "η", "του", "να", "με", "για"),
    "en": ("the", "be", "to", "of", "and", "that", "have", "with"),
    "es": ("de", "la", "que", "el", "en", "y", "los", "con"),
    "et": ("ja", "on", "ei", "et", "oli", "ka", "see", "kui"),
    "fa": ("و", "در", "به", "از", "که", "این", "را", "با"),
    "fi": ("ja", "on", "ei", "että", "oli", "se", "myös", "hän"),
    "fr": ("de", "la", "et", "le", "les", "des", "que", "est"),
    "he": ("של", "את", "על", "לא", "הוא", "עם", "זה", "גם"),
    "hi": ("के", "में", "की", "है", "से", "और", "का", "को"),
    "hr": ("i", "u", "je", "na", "se", "za", "da", "su"),
    "hu": ("a", "az", "és", "hogy", "nem", "is", "egy", "ez"),
    "id": ("yang", "dan", "di", "dengan", "untuk", "dari", "ini", "pada"),
    "it": ("di", "e", "che", "la", "il", "in", "per", "non"),
    "ko": ("이", "그", "수", "있다", "및", "등", "것", "있는"),
    "lt": ("ir", "yra", "kad", "su", "į", "iš", "buvo", "kaip"),
    "lv": ("un", "ir", "ar", "no", "uz", "par", "kas", "ka"),
    "nl": ("de", "van", "het", "een", "en", "in", "is", "dat"),
    "no": ("og", "i", "det", "er", "på", "som", "til", "av"),
    "pl": ("w", "i", "na", "z", "do", "się", "nie", "jest"),
    "pt": ("de", "que", "e", "o", "a", "do", "da", "em"),
    "ro": ("de", "și", "în", "la", "a", "cu", "care", "pe"),
    "ru": ("и", "в", "на", "не", "с", "что", "по", "как"),
    "sk": ("a", "v", "sa", "na", "je", "že", "to", "s"),
    "sl": ("in", "je", "v", "na", "se", "da", "za", "ki"),
    "sr": ("и", "у", "је", "на", "се", "за", "да", "су"),
    "sv": ("och", "i", "att", "det", "som", "är", "en", "på"),
    "tr": ("ve", "bir", "bu", "için", "ile", "da", "de", "olarak"),
    "uk": ("і", "в", "на", "не", "що", "з", "до", "та"),
    "vi": ("và", "của", "là", "có", "trong", "các", "được", "cho"),
}
LANGUAGES = tuple(STOP_WORDS)


class _StopWordTable(NamedTuple):
    """Hash table (open addressing): (language, word) → the word's number in its language, or -1."""

    keys: UInt64s
    numbers: Int64s


def count_stop_words(words: BatchWords, languages: Sequence[str]) -> Int64s:
    """Count the different stop words of its language in each text; 0 without a list."""
    numbers = {language: number for number, language in enumerate(STOP_WORDS)}
    known = np.fromiter(
        (numbers.get(language, -1) for language in languages), np.int64, len(languages)
    )
    found = np.zeros(len(languages), np.int64)
    _count_stop_words(words, known, _build_stop_word_table(), found)
    return found


@functools.cache
def _build_stop_word_table() -> _StopWordTable:
    listed = [
        (language, number, word)
        for language, words in enumerate(STOP_WORDS.values())
        for number, word in enumerate(words)
    ]
    size = int(compute_table_size(len(listed)))
    table = _StopWordTable(np.zeros(size, np.uint64), np.full(size, -1, np.int64))
    hashes = split_words(build_batch([word for *_, word in listed]), [""] * len(listed)).hashes_W
    for (language, number, _), word in zip(listed, hashes, strict=True):
        key = np.uint64(_hash_key(word, language))
        place = _find_place(table, key)
        table.keys[place] = key
        table.numbers[place] = number
    return table


@compile_nogil
def _hash_key(word: np.uint64, language: int) -> np.uint64:
    return mix_bits(word + np.uint64(language))


@compile_nogil
def _find_place(table: _StopWordTable, key: np.uint64) -> np.int64:
    keys, numbers = table
    place = np.int64(key & np.uint64(len(keys) - 1))
    while numbers[place] >= 0 and keys[place] != key:
        place = (place + 1) & (len(keys) - 1)
    return place


@compile_nogil
def _count_stop_words(
    words: BatchWords, languages: Int64s, table: _StopWordTable, found: Int64s
) -> None:
    for text in range(len(languages)):
        if languages[text] < 0:
            continue
        met = np.uint64(0)  # one bit for each word of the list
        for word in range(words.firsts_D1[text], words.firsts_D1[text + 1]):
            number = table.numbers[
                _find_place(table, _hash_key(words.hashes_W[word], languages[text]))
            ]
            if number >= 0:
                bit = np.uint64(1) << np.uint64(number)
                if met & bit == np.uint64(0):
                    met |= bit
                    found[text] += 1
