"""The fast engine: tiktoken on the merges of a tokenizer.json, where it gives the library's ids.

tiktoken encodes six times as fast as the tokenizers library (14 to 18 MB/s on one core against 2.2
to 2.6, on 31 MB of pages), by other rules. The library merges the pairs that it lists, lowest place
in the list first. tiktoken merges any two neighbours whose bytes together are an entry, lowest id
first. Both take the leftmost of equals. They agree if

1. the merges are listed in the order of the ids that they make; and
2. the library makes of each entry's bytes, as a word of their own, that entry.

Proof. Take the first merge in which they differ: tiktoken joins the neighbours x and y to z. If the
library lists (x, y), this is the lowest of its merges too, by 1. If it does not: no token reached
across the ends of these bytes before, because tokens only grow, and none does now. So between the
ends the library did what it does to the bytes of z alone: each merge was the lowest there and the
leftmost of its kind. Two tokens are left, and by 2 it goes on to z: by a merge of x and y, which it
therefore lists. (Nor can it list two pairs for one z and prefer another than the leftmost: alone,
the bytes of z come to two tokens in one way.) A whole word that is an entry, which tiktoken does
not even merge, is 2 itself.

Where a text is cut into words, both go by the same pattern. Their engines search alike (first
alternative that fits, greedy, with backtracking), but each has tables of its own of what is a
letter: `build_fast_engine` compares the probe's, late ones above all, and test_engine.py every one.

Only patterns known here are used, because only for them is it known what to do about a long run of
white space: tiktoken 0.14 keeps a place on a stack for each character of one, and at 1,000,000 the
stack is full. Long words of other characters are no danger: from an eighth of a million letters
without a break to four million, each takes two to three times as long.
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

from trainrig.tokens.encoding.probe import probe_texts
from trainrig.tokens.tokenizers.words import GPT_2_WORDS, LLAMA_3_WORDS

# Characters of white space in a row beyond which we cut them ourselves: a tenth of tiktoken's most.
LONGEST_RUN = 100_000
# Without any special token tiktoken takes a slower way. No text makes this one.
_NO_TOKEN = "<|no_token|>"
_WHOLE = r"(?s:.+)"
# Unicode's White_Space: `\s` in both engines. Python's own `\s` has four more.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_RUN = re.compile(f"[{WHITE_SPACE}]+")
_LINE_BREAKS = re.compile(r"[\r\n]*")

Ids = NDArray[np.uint32]


class Unequal(Exception):
    """The fast engine might give other ids; the message says why."""


@dataclass(frozen=True)
class Pattern:
    """Words are what a pattern finds; each alternative keeps to what
    `_split_at_spaces` relies on."""

    regex: str
    # Whether line breaks end a run of white space, and stick to punctuation before them.
    line_breaks: bool


@dataclass(frozen=True)
class Separator:
    """Words are the copies of a string, and what is between them; without a string, all text."""

    text: str


GPT_2 = Pattern(GPT_2_WORDS, line_breaks=False)
LLAMA_3 = Pattern(LLAMA_3_WORDS, line_breaks=True)  # GPT-4's too
QWEN_2 = Pattern(LLAMA_3_WORDS.replace("{1,3}", ""), line_breaks=True)
_KNOWN = {pattern.regex: pattern for pattern in (GPT_2, LLAMA_3, QWEN_2)}


class FastEngine:
    """Encodes as the tokenizer it is made of does, on the caller's thread."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        ranks: dict[bytes, int],
        words: Pattern | Separator,
        longest_run: int = LONGEST_RUN,
    ) -> None:
        """Made by `build_fast_engine`, which knows that it is right."""
        self._ranks = ranks
        self._words = words
        self._longest_run = longest_run
        self._cut = tokenizer.pre_tokenizer.pre_tokenize_str

    def encode(self, text: str) -> Ids:
        """The ids of `text`. Raises UnicodeEncodeError for one with half a surrogate pair."""
        if isinstance(self._words, Pattern):
            if len(text) < self._longest_run:
                return self._by_words.encode_to_numpy(text, disallowed_special=())
            parts = self._split_at_spaces(text, self._words)
        else:
            parts = self._split_at_separator(text, self._words.text)
        found = [
            (self._as_one_word if is_word else self._by_words).encode_to_numpy(
                part, disallowed_special=()
            )
            for part, is_word in parts
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @functools.cached_property
    def _by_words(self) -> tiktoken.Encoding:
        assert isinstance(self._words, Pattern)
        return self._make_encoding(self._words.regex)

    @functools.cached_property
    def _as_one_word(self) -> tiktoken.Encoding:
        return self._make_encoding(_WHOLE)

    def _make_encoding(self, pattern: str) -> tiktoken.Encoding:
        none = {_NO_TOKEN: max(self._ranks.values()) + 1}
        return tiktoken.Encoding(
            "trainrig", pat_str=pattern, mergeable_ranks=self._ranks, special_tokens=none
        )

    def _split_at_separator(self, text: str, separator: str) -> Iterator[tuple[str, bool]]:
        """`text` in words, each with True: that is what it is."""
        for number, part in enumerate(text.split(separator) if separator else [text]):
            if number:
                yield separator, True
            yield part, True

    def _split_at_spaces(self, text: str, words: Pattern) -> Iterator[tuple[str, bool]]:
        """`text` in parts that are encoded apart, each with whether it is one word.

        No pattern of `_KNOWN` looks back, so a text may be cut wherever a word ends in it, if what
        comes before is not cut otherwise for want of its next character. For a whole run of white
        space the words are known:

        - line breaks that follow punctuation at once are the end of that word (`line_breaks`);
        - then all up to the last line break is a word (`line_breaks`);
        - then what is left is a word but for its last character, which may belong to the next
          word; at the end of the text that is in it too.

        What comes before ends, without the run, in a character that is no white space, or in line
        breaks of the same word: nothing in it depends on what follows.
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
    assert found is not None  # it matches nothing at all too
    return found.end()


def find_long_runs(text: str, least: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of `least` or more characters of white space, in order.

    A run so long covers a multiple of `least`, so only those places are looked at.
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
    """The fast engine for `tokenizer`, whose ids stand for the bytes `entries`.

    Raises Unequal if it is not certain to give the tokenizer's ids for every text.
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
    """How texts are cut."""
    if settings["normalizer"] is not None:
        raise Unequal(f"it changes texts first ({settings['normalizer']['type']})")
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
    raise Unequal("it cuts texts into words in a way that is not known here")


def _list_special_ids(settings: dict[str, Any]) -> set[int]:
    for token in settings["added_tokens"]:
        if not token["special"]:
            raise Unequal(f"it finds {token['content']!r} in texts before it cuts them into words")
    return {token["id"] for token in settings["added_tokens"]}


def _check_merges(model: dict[str, Any], ranks: dict[bytes, int], special: set[int]) -> None:
    """Raise Unequal if tiktoken could merge what `model` would not, or in another order."""
    if model["type"] != "BPE":
        raise Unequal(f"it is no byte-pair encoding, but {model['type']}")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[option]:
            raise Unequal(f"its model has {option} = {model[option]!r}")
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise Unequal("not every byte is an entry")
    ids = model["vocab"]
    merges = [(left, right) for left, right in model["merges"]]
    results = [ids[left + right] for left, right in merges]
    if any(earlier > later for earlier, later in itertools.pairwise(results)):
        raise Unequal("its merges are not in the order of the entries that they make")
    alone = tokenizers.Tokenizer(models.BPE(ids, merges))
    names = [name for name, number in ids.items() if number not in special]
    for name, encoding in zip(names, alone.encode_batch_fast(names), strict=True):
        if encoding.ids != [ids[name]]:
            raise Unequal(f"entry {ids[name]} ({name!r}) is not what its own text becomes")


def _compare(engine: FastEngine, tokenizer: tokenizers.Tokenizer) -> None:
    """Raise Unequal if the two encode a text of the probe differently."""
    probe = probe_texts()
    expected = tokenizer.encode_batch_fast(probe, add_special_tokens=False)
    for text, encoding in zip(probe, expected, strict=True):
        if engine.encode(text).tolist() != encoding.ids:
            raise Unequal(f"the two engines differ on {text[:20]!r}")
