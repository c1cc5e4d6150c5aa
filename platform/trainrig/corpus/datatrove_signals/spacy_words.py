"""spaCy's English tokens, one chunk (a run of characters without white space) at a time.

datatrove 0.10 takes the words of `spacy.blank("en")` for every filter, and the sentences of the
default `sentencizer`. The rules are read from the installed spaCy; no copy of them is kept here.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from trainrig.corpus.datatrove_signals.affixes import Rules, build_rules
from trainrig.corpus.datatrove_signals.splitting import Specials, build_specials
from trainrig.corpus.datatrove_signals.token_flags import Kinds, TokenFlags

_AT_ONCE = 4_000  # chunks that spaCy tokenizes in one text


class Token(NamedTuple):
    """One token of spaCy's."""

    text: str
    flags: int


class SplittingRules(NamedTuple):
    """Tables that split chunks without spaCy."""

    rules: Rules
    specials: Specials
    kinds: Kinds
    is_url: Callable[[str], object]


class SpacyWords:
    """spaCy's tokenizer, applied to chunks: runs of characters without white space."""

    def __init__(self) -> None:
        import spacy
        from spacy.tokenizer import Tokenizer
        from spacy.vocab import Vocab

        self._english: Any = spacy.blank("en")
        rules: Any = self._english.tokenizer
        # A tokenizer with an empty vocabulary: spaCy's own computes twenty attributes of each new
        # word.
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
        sentencizer: Any = self._english.add_pipe("sentencizer")
        flags = TokenFlags(sentencizer.punct_chars)
        self.terminals = flags.terminals
        self._flags = functools.lru_cache(2**16)(flags.of)
        self._kinds = flags.build_kinds

    @functools.cached_property
    def grammar(self) -> SplittingRules | None:
        """The tokenizer's rules as tables; None if a rule cannot be converted."""
        defaults = self._english.Defaults
        rules = build_rules(defaults.prefixes, defaults.suffixes, defaults.infixes)
        if rules is None or self._tokenizer.token_match is not None:
            return None
        cases: Iterable[str] = self._tokenizer.rules
        # Special cases that contain white space cannot occur in a chunk.
        chunks = sorted(case for case in cases if case.split() == [case])
        texts = [[token.text for token in tokens] for tokens in self.tokenize(chunks)]
        specials = build_specials(dict(zip(chunks, texts, strict=True)))
        return SplittingRules(rules, specials, self._kinds(), self._tokenizer.url_match)

    def tokenize(self, chunks: Sequence[str]) -> list[list[Token]]:
        """Return the tokens of each chunk."""
        pieces = (chunks[n : n + _AT_ONCE] for n in range(0, len(chunks), _AT_ONCE))
        return list(chain.from_iterable(map(self._tokenize, pieces)))

    def _tokenize(self, chunks: Sequence[str]) -> Iterator[list[Token]]:
        # A new line is always a token, and no special case extends over it.
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


@functools.cache
def load_spacy_words() -> SpacyWords:
    """Return this process's tokenizer, which takes a second to build."""
    return SpacyWords()
