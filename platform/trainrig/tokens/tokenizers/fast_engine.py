"""The fast encoder: tiktoken with the merges of a tokenizer.json, where both give the same ids.

tiktoken encodes six times as fast as the tokenizers library (14 to 18 MB/s on one core, against 2.2
to 2.6 MB/s, on 31 MB of web pages), but it follows other rules. The library merges the pairs that
its tokenizer.json lists, in the order of that list. tiktoken merges any two neighbours whose
concatenated bytes are an entry of the vocabulary, lowest id first. Of equal candidates both take
the leftmost. The two give the same ids if

1. the merges are listed in the order of the ids that they produce; and
2. for each entry, the library encodes the entry's bytes, as a single word, to that entry.

Proof. Consider the first merge in which they differ: tiktoken merges the neighbours x and y to z.
If the library lists (x, y), then by 1 this is also its first merge, and they do not differ. Suppose
that it does not list (x, y). Tokens only grow, so no token has crossed the borders of these bytes
before. Between the borders, the library therefore did the same as it does for the bytes of z alone:
each merge was the first in order there, and the leftmost of its kind. Two tokens are left, and by 2
the library goes on to merge them to z. So it does list (x, y), a contradiction. (The library cannot
list two pairs that both give z either, and prefer one that is not the leftmost: alone, the bytes of
z reduce to two tokens in only one way.) tiktoken skips the merges for a whole word that is an
entry; for such a word, condition 2 is the claim itself.

Both split a text into words by the same regular expression. Their regex engines search alike (first
alternative that matches, greedy, with backtracking), but each has its own Unicode tables of what is
a letter. `build_fast_engine` compares them on the probe's characters, in particular on recent ones;
test_engine.py compares them on all characters.

Only the patterns listed here are accepted, because a long run of white space needs treatment that
depends on the pattern. tiktoken 0.14 pushes one stack entry for each character of such a run, and
at 1,000,000 the stack overflows. Long words of other characters are safe: from an eighth of a
million to four million letters without a break, each doubling of the length takes two to three
times as long.

The probe's texts are also encoded by both when a tokenizer is loaded and reported.

They combine every kind of character: scripts, digits, runs of white space, emoji, code and all
bytes that occur in UTF-8. They also have characters that are recent in Unicode, which libraries
with older Unicode tables classify differently.
"""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tiktoken
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from trainrig.tokens.tokenizers.tokenizer_kinds import GPT_2_WORDS, LLAMA_3_WORDS

# Blocks of letters, marks and digits that were added in Unicode 14 to 17 (appendix D of each
# version of the standard). Unicode tables of different versions differ here.
_LATE_BLOCKS = (
    (0x088F, 0x0890), (0x0C5C, 0x0C5D), (0x1C89, 0x1C8B), (0x1ACF, 0x1ADE), (0xA7C0, 0xA7DD),
    (0xA7F1, 0xA7F5), (0x10570, 0x105BD), (0x105C0, 0x105F4), (0x10940, 0x1095A),
    (0x10D40, 0x10D86), (0x10EC2, 0x10EC8), (0x10F70, 0x10F8A), (0x11070, 0x11076),
    (0x11240, 0x11242), (0x11380, 0x113E3), (0x116D0, 0x116E4), (0x11AB0, 0x11AF9),
    (0x11BC0, 0x11BFA), (0x11DB0, 0x11DEA), (0x11F00, 0x11F5B), (0x12F90, 0x12FF3),
    (0x13460, 0x13480), (0x16100, 0x1613A), (0x16A70, 0x16ACA), (0x16D40, 0x16D7A),
    (0x16EA0, 0x16ED4), (0x187F8, 0x18800), (0x1B132, 0x1B133), (0x1B155, 0x1B156),
    (0x1DF00, 0x1DF2B), (0x1E030, 0x1E08F), (0x1E290, 0x1E2AF), (0x1E4D0, 0x1E4FA),
    (0x1E5D0, 0x1E600), (0x1E6C0, 0x1E700), (0x1E7E0, 0x1E7FF), (0x2A6DD, 0x2A6E0),
    (0x2B735, 0x2B73A), (0x2EBF0, 0x2EBF2), (0x31350, 0x31352), (0x323B0, 0x323B2),
    (0x33478, 0x3347A),
)  # fmt: skip
_STRIDE = 61  # every 61st character of Plane 0 is used, so that each block is represented


@functools.cache
def build_probe_texts() -> list[str]:
    """Return the texts, about 115,000 generated characters in all."""
    late = [chr(code) for begin, end in _LATE_BLOCKS for code in range(begin, end)]
    low = [chr(code) for code in range(0x600)]
    spread = [chr(code) for code in range(0x600, 0xD800, _STRIDE)]
    emoji = ["👩🏽‍🚀", "🏳️‍🌈", "🇳🇱", "e\u0301", "\u200d", "\ufeff", "\U0010ffff", "\ue000"]
    texts = []
    for characters in (low, spread, late, emoji):
        # Each character between letters, digits, marks and spaces, repeated, and after apostrophes.
        for pattern in ("a{0}a {0} ", "1{0}!{0}\n", "{0}", "'{0}' ", " {0}\r\n\t", "'r{0} '{0}l "):
            texts.append("".join(pattern.format(character) for character in characters))
    spaces = ["".join(pair) * count for pair in zip(" \t\n\r\x85\u3000", "\n \r ab", strict=True)
              for count in (1, 2, 3, 8, 33)]  # fmt: skip
    texts += ["x" + run + "y" + run for run in spaces] + spaces
    texts += ["0123456789" * 9, "3.14e-10, 1,000,000 १२३ ²³½ Ⅻ", "'S'll'VE 'ſ don't DON'T"]
    texts += ["def f(x):\n    return x  # ok\n\n\nif a<=b && c!=d: {[(-->)]} \\n\\t /*…*/ ;;;\n"]
    return texts


# Longest run of white space that tiktoken is given: a tenth of the length at which it fails.
LONGEST_RUN = 100_000
# Without any special token tiktoken takes a slower path. This one is never produced from text.
_NO_TOKEN = "<|no_token|>"
_WHOLE = r"(?s:.+)"
# Unicode's White_Space, which is `\s` in both engines. Python's own `\s` has four more characters.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_RUN = re.compile(f"[{WHITE_SPACE}]+")
_LINE_BREAKS = re.compile(r"[\r\n]*")

Ids = NDArray[np.uint32]


class NotEquivalent(Exception):
    """Raised if the fast encoder might give other ids; the message says why."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression whose matches are the words.

    `_split_at_spaces` relies on how the alternatives of the known patterns treat white space.
    """

    regex: str
    # Whether a line break ends a word of white space, and joins punctuation directly before it.
    line_breaks: bool


@dataclass(frozen=True)
class Separator:
    """A string that is a word wherever it occurs; the text between is one word each.

    The empty string means that the whole text is one word.
    """

    text: str


GPT_2 = Pattern(GPT_2_WORDS, line_breaks=False)
LLAMA_3 = Pattern(LLAMA_3_WORDS, line_breaks=True)  # also GPT-4's pattern
QWEN_2 = Pattern(LLAMA_3_WORDS.replace("{1,3}", ""), line_breaks=True)
_KNOWN = {pattern.regex: pattern for pattern in (GPT_2, LLAMA_3, QWEN_2)}


class FastEngine:
    """An encoder that gives the same ids as its tokenizer, on the caller's thread."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        ranks: dict[bytes, int],
        words: Pattern | Separator,
        longest_run: int = LONGEST_RUN,
    ) -> None:
        """Initialize the encoder; call `build_fast_engine`, which proves that the ids agree."""
        self._ranks = ranks
        self._words = words
        self._longest_run = longest_run
        self._cut = tokenizer.pre_tokenizer.pre_tokenize_str

    def encode(self, text: str) -> Ids:
        """Return the ids of `text`; raise UnicodeEncodeError if it has half a surrogate pair."""
        if isinstance(self._words, Pattern):
            if len(text) < self._longest_run:
                return self._word_encoding.encode_to_numpy(text, disallowed_special=())
            parts = self._split_at_spaces(text, self._words)
        else:
            parts = self._split_at_separator(text, self._words.text)
        found = [
            (self._single_word_encoding if is_word else self._word_encoding).encode_to_numpy(
                part, disallowed_special=()
            )
            for part, is_word in parts
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @functools.cached_property
    def _word_encoding(self) -> tiktoken.Encoding:
        assert isinstance(self._words, Pattern)
        return self._make_encoding(self._words.regex)

    @functools.cached_property
    def _single_word_encoding(self) -> tiktoken.Encoding:
        return self._make_encoding(_WHOLE)

    def _make_encoding(self, pattern: str) -> tiktoken.Encoding:
        none = {_NO_TOKEN: max(self._ranks.values()) + 1}
        return tiktoken.Encoding(
            "trainrig", pat_str=pattern, mergeable_ranks=self._ranks, special_tokens=none
        )

    def _split_at_separator(self, text: str, separator: str) -> Iterator[tuple[str, bool]]:
        """Yield each word of `text` with True, which says that it is a single word."""
        for number, part in enumerate(text.split(separator) if separator else [text]):
            if number:
                yield separator, True
            yield part, True

    def _split_at_spaces(self, text: str, words: Pattern) -> Iterator[tuple[str, bool]]:
        """Yield parts of `text` that can be encoded separately, with whether each is one word.

        No pattern of `_KNOWN` uses look-behind. So a text may be cut at the end of a word, as long
        as the words before the cut do not depend on the character after it. For a whole run of
        white space the words are known:

        - line breaks directly after punctuation belong to the punctuation's word (`line_breaks`);
        - then everything up to the last line break is one word (`line_breaks`);
        - then the rest is one word, except for its last character, which may belong to the next
          word; at the end of the text that character belongs to the rest.

        The text before the run ends in a character that is not white space, or in line breaks of
        the same word. So none of its words depend on what follows.
        """
        done = 0
        for begin, end in find_long_runs(text, self._longest_run):
            if words.line_breaks and begin > done and self._keeps_line_breaks(text[begin - 1]):
                begin = _find_end_of_line_breaks(text, begin, end)
            yield text[done:begin], False
            if words.line_breaks:
                after_breaks = 1 + max(
                    text.rfind("\r", begin, end), text.rfind("\n", begin, end), begin - 1
                )
                yield text[begin:after_breaks], True
                begin = after_breaks
            done = end if end == len(text) else max(begin, end - 1)
            yield text[begin:done], True
        yield text[done:], False

    def _keeps_line_breaks(self, character: str) -> bool:
        return len(self._cut(character + "\n")) == 1


def _find_end_of_line_breaks(text: str, begin: int, end: int) -> int:
    found = _LINE_BREAKS.match(text, begin, end)
    assert found is not None  # the pattern also matches the empty string
    return found.end()


def find_long_runs(text: str, least: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each run of at least `least` characters of white space, in order.

    A run of that length covers a multiple of `least`, so only those positions are inspected.
    """
    place = 0
    while place < len(text):
        found = _RUN.match(text, place)
        if found is None:
            place += least
            continue
        before = text[max(0, place - least) : place]
        begin = place - (len(before) - len(before.rstrip(WHITE_SPACE)))
        if found.end() - begin >= least:
            yield begin, found.end()
        place += least * ((found.end() - place) // least + 1)


def build_fast_engine(
    tokenizer: tokenizers.Tokenizer, entries: Sequence[bytes], longest_run: int = LONGEST_RUN
) -> FastEngine:
    """Return the fast encoder for `tokenizer`; `entries` are the bytes of its ids, in order.

    Raises NotEquivalent unless it is certain to give the tokenizer's ids for every text.
    """
    settings = json.loads(tokenizer.to_str())
    words = _find_word_pattern(settings)
    special = _list_special_ids(settings)
    ranks = {entry: number for number, entry in enumerate(entries) if number not in special}
    _check_merges(settings["model"], ranks, special)
    engine = FastEngine(tokenizer, ranks, words, longest_run)
    _compare(engine, tokenizer)
    return engine


def _find_word_pattern(settings: dict[str, Any]) -> Pattern | Separator:
    """Return the rule that splits a text into words; raise NotEquivalent if it is not known."""
    if settings["normalizer"] is not None:
        raise NotEquivalent(f"it changes texts first ({settings['normalizer']['type']})")
    match settings["pre_tokenizer"]:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT_2
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return Separator("")
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": found, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            if found.get("Regex") in _KNOWN:
                return _KNOWN[found["Regex"]]
            if "String" in found:
                return Separator(found["String"])
    raise NotEquivalent("it cuts texts into words in a way that is not known here")


def _list_special_ids(settings: dict[str, Any]) -> set[int]:
    for token in settings["added_tokens"]:
        if not token["special"]:
            raise NotEquivalent(
                f"it finds {token['content']!r} in texts before it cuts them into words"
            )
    return {token["id"] for token in settings["added_tokens"]}


def _check_merges(model: dict[str, Any], ranks: dict[bytes, int], special: set[int]) -> None:
    """Raise NotEquivalent if tiktoken could make other merges than `model`, or in another order."""
    if model["type"] != "BPE":
        raise NotEquivalent(f"it is no byte-pair encoding, but {model['type']}")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[option]:
            raise NotEquivalent(f"its model has {option} = {model[option]!r}")
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise NotEquivalent("not every byte is an entry")
    ids = model["vocab"]
    merges = [(left, right) for left, right in model["merges"]]
    results = [ids[left + right] for left, right in merges]
    if any(earlier > later for earlier, later in itertools.pairwise(results)):
        raise NotEquivalent("its merges are not in the order of the entries that they make")
    alone = tokenizers.Tokenizer(models.BPE(ids, merges))
    names = [name for name, number in ids.items() if number not in special]
    for name, encoding in zip(names, alone.encode_batch_fast(names), strict=True):
        if encoding.ids != [ids[name]]:
            raise NotEquivalent(f"entry {ids[name]} ({name!r}) is not what its own text becomes")


def _compare(engine: FastEngine, tokenizer: tokenizers.Tokenizer) -> None:
    """Raise NotEquivalent if the two give different ids for one of the probe's texts."""
    probe = build_probe_texts()
    expected = tokenizer.encode_batch_fast(probe, add_special_tokens=False)
    for text, encoding in zip(probe, expected, strict=True):
        if engine.encode(text).tolist() != encoding.ids:
            raise NotEquivalent(f"the two engines differ on {text[:20]!r}")
