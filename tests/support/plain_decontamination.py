"""A slow and simple decontamination to compare with."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainrig.corpus.decontaminate.benchmark_index import Examples
from trainrig.corpus.decontaminate.decontamination_settings import (
    GPT3,
    BySize,
    Llama2,
    Llama3,
    PaLM,
)


class Word(NamedTuple):
    letters: str
    start: int
    end: int


def is_punctuation(character: str) -> bool:
    symbol = unicodedata.category(character)[0] in "PS" and not character.isalnum()
    return symbol or character == "_"


def words(text: str) -> list[Word]:
    found = []
    place = 0
    for chunk in text.split():
        start = text.index(chunk, place)
        place = start + len(chunk)
        punctuation = {i for i, character in enumerate(chunk) if is_punctuation(character)}
        letters = "".join(
            "i\u0307" if chunk[i] == "İ" else character
            for i, character in enumerate(chunk.replace("İ", "I").lower())
            if i not in punctuation
        )
        if letters:
            found.append(Word(letters, start, place))
    return found


def letters(text: str) -> tuple[str, ...]:
    return tuple(word.letters for word in words(text))


def order_of(benchmark: Examples, style: GPT3 | BySize) -> int:
    longest = [max((len(letters(text)) for text in texts), default=0) for texts in benchmark.texts]
    return style.choose_word_count(longest)


def n_grams(text: str, order: int, shortest_whole: int) -> list[tuple[str, ...]]:
    """Return the n-grams by position, or the whole text if it is short, but not too short."""
    there = letters(text)
    if shortest_whole <= len(there) < order:
        return [there]
    return [there[i : i + order] for i in range(len(there) - order + 1)]


class Collision(NamedTuple):
    document: int
    start: int
    end: int
    gram: tuple[str, ...]


def collisions(benchmarks: Sequence[Examples], texts: Iterable[str], style: GPT3) -> set[Collision]:
    known = {
        gram
        for benchmark in benchmarks
        for example in benchmark.texts
        for text in example
        for gram in n_grams(text, order_of(benchmark, style), style.shortest_whole)
    }
    found = set()
    for number, text in enumerate(texts):
        there = words(text)
        for order in {len(gram) for gram in known}:
            for first in range(len(there) - order + 1):
                run = there[first : first + order]
                gram = tuple(word.letters for word in run)
                if gram in known:
                    found.add(Collision(number, run[0].start, run[-1].end, gram))
    return found


def units_held(texts: Sequence[str], document: str, style: BySize) -> tuple[int, int]:
    """Count the units of an example that a document contains, and all units of the example."""
    held = whole = 0
    there = letters(document)
    for text in texts:
        own = letters(text)
        marked: set[int] = set()
        for place in range(len(own) - style.words + 1):
            for word in range(len(there) - style.words + 1):
                if there[word : word + style.words] == own[place : place + style.words]:
                    marked |= _marked(own, place, there, word, style)
        held += len(marked)
        whole += max(0, len(own) - style.words + 1) if isinstance(style, PaLM) else len(own)
    return held, whole


def _marked(
    own: Sequence[str], place: int, there: Sequence[str], word: int, style: BySize
) -> set[int]:
    if isinstance(style, PaLM):
        return {place}
    marked = set(range(place, place + style.words))
    if isinstance(style, Llama2):
        skipped = 0
        for offset in range(style.words, min(len(own) - place, len(there) - word)):
            if own[place + offset] == there[word + offset]:
                marked.add(place + offset)
            else:
                skipped += 1
            if skipped > style.skips:
                break
    return marked


def dirty_from(style: BySize, name: str) -> float:
    own = style.thresholds if isinstance(style, Llama3) else {}
    return own.get(name, style.dirty_from)


def examples_held(
    benchmarks: Sequence[Examples], texts: Sequence[str], style: BySize
) -> set[tuple[int, str, int]]:
    """Return document, benchmark and line of each example that one document makes dirty."""
    found = set()
    for number, document in enumerate(texts):
        for benchmark in benchmarks:
            for line, example in zip(benchmark.lines, benchmark.texts, strict=True):
                held, whole = units_held(example, document, style)
                if held and round(held / whole, 4) >= dirty_from(style, benchmark.name):
                    found.add((number, benchmark.name, line))
    return found
