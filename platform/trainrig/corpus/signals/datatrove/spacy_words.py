"""spaCy's English tokens, one white-space chunk at a time, and what datatrove asks of each.

datatrove 0.10 takes `spacy.blank("en")` for its words whatever the filter, and the default
`sentencizer` for its sentences. Its rules are read from the spaCy that is installed: none are here.
"""

import functools
import string
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

SYMBOLS_ONLY = 1  # all characters are what datatrove calls punctuation
LETTERED = 2  # has a letter
ENDS_SENTENCE = 4  # the sentencizer's
PUNCTUATION = 8  # all characters are Unicode's P
STOP_WORD_SHIFT = 4  # the bits above: the number of the stop word, from 1; 0: none
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # case matters

# Sentence ends that datatrove knows beside those of spaCy's sentencizer.
_MORE_ENDS = (
    *(0x61D, 0x61E, 0x837, 0x839, 0x83D, 0x83E, 0x17D4, 0x17D5, 0x17D6, 0x17D9, 0x17DA),
    *(0x1B7D, 0x1B7E, 0x2E53, 0x2E54, *range(0x10F55, 0x10F5A), *range(0x10F86, 0x10F8A)),
    *(0x11944, 0x11946, 0x11EF7, 0x11EF8, 0x11F43, 0x11F44, 0x16E98),
)
# What it counts as punctuation beside ASCII's, sentence ends, and control characters.
_MORE_PUNCTUATION = "«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～"
_CONTROLS = (*range(9), 11, 12, *range(13, 32), *range(127, 160))
_AT_ONCE = 4_000  # chunks given to spaCy in one text


class Token(NamedTuple):
    """One word of spaCy's."""

    text: str
    flags: int


class SpacyWords:
    """spaCy's tokenizer, asked for chunks: runs of characters without white space."""

    def __init__(self) -> None:
        import spacy
        from spacy.tokenizer import Tokenizer
        from spacy.vocab import Vocab

        english: Any = spacy.blank("en")
        rules = english.tokenizer
        # The rules without the vocabulary: it would work out twenty attributes of each new word.
        self._vocabulary = Vocab()
        self._tokenizer: Any = Tokenizer(
            self._vocabulary,
            rules=rules.rules,
            prefix_search=rules.prefix_search,
            suffix_search=rules.suffix_search,
            infix_finditer=rules.infix_finditer,
            token_match=rules.token_match,
            url_match=rules.url_match,
        )
        sentencizer: Any = english.add_pipe("sentencizer")
        self.sentence_ends = frozenset(sentencizer.punct_chars)
        self.terminals = self.sentence_ends | set(map(chr, _MORE_ENDS))
        self._symbols = self.terminals.union(
            string.punctuation, _MORE_PUNCTUATION, map(chr, _CONTROLS)
        )
        self._flags = functools.lru_cache(2**16)(self._find_flags)

    @property
    def special_cases(self) -> list[str]:
        """Chunks with tokens of their own, whatever the other rules say."""
        rules: Iterable[str] = self._tokenizer.rules
        return sorted(rule for rule in rules if len(rule.split()) == 1 and rule == rule.strip())

    def tokens(self, chunks: Sequence[str]) -> list[list[Token]]:
        """The words of each chunk."""
        pieces = (chunks[n : n + _AT_ONCE] for n in range(0, len(chunks), _AT_ONCE))
        return list(chain.from_iterable(map(self._tokens, pieces)))

    def _tokens(self, chunks: Sequence[str]) -> Iterator[list[Token]]:
        # A new line is a token of its own, which no special case reaches over.
        with self._vocabulary.memory_zone():
            found: list[list[Token]] = [[]]
            for token in self._tokenizer("\n".join(chunks)):
                text: str = token.text
                if text == "\n":
                    found.append([])
                else:
                    found[-1].append(Token(text, self._flags(text)))
        assert len(found) == len(chunks)
        yield from found

    def _find_flags(self, text: str) -> int:
        if text in STOP_WORDS:
            return LETTERED | (STOP_WORDS.index(text) + 1) << STOP_WORD_SHIFT
        if text.isalpha():
            return LETTERED
        is_punctuation = all(unicodedata.category(character)[0] == "P" for character in text)
        return (
            (SYMBOLS_ONLY if self._symbols.issuperset(text) else 0)
            | (LETTERED if any(map(str.isalpha, text)) else 0)
            | (ENDS_SENTENCE if text in self.sentence_ends else 0)
            | (PUNCTUATION if is_punctuation else 0)
        )


@functools.cache
def english_words() -> SpacyWords:
    """The one of this process; a second to make."""
    return SpacyWords()
