"""The words of an answer, and where they stand in a rendered text.

Templates trim and fold white space, so words are compared without it. Tool calls are rendered as
JSON, XML or calls of Python, so of a call its names and the words of its values are looked for.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.tokens.chat_template import find_reasoning

END_OF_THOUGHTS = "</think>"
_THOUGHTS = "<think>"
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class AnswerWords:
    """What an assistant's turn says."""

    content: str  # without the thoughts that stand before it
    called: tuple[str, ...]  # names and words of its tool calls
    thoughts: str

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "AnswerWords":
        """Return the words of `message`, as a template would read it."""
        before, _, content = message["content"].rpartition(END_OF_THOUGHTS)
        reasoning = find_reasoning(message)
        thoughts = reasoning if isinstance(reasoning, str) else before.rpartition(_THOUGHTS)[2]
        called = tuple(_list_call_words(message.get("tool_calls") or ()))
        return cls(content, called, thoughts)

    def find_end(self, text: str) -> int:
        """Return the place in `text` behind the last of the words, or 0 if there is none of them.

        `text` begins with the turn, and its special tokens are blank.
        """
        ends = [find_last(text, words) for words in (self.content, self.thoughts)]
        ends += [text.rfind(word) + len(word) for word in self.called if word in text]
        return max([0, *ends])

    def find_missing(self, text: str) -> str:
        """Return words of the content or of a call that `text` lacks; none: it has them all."""
        if find_last(text, self.content) < 0:
            return self.content.strip()
        return next((word for word in self.called if word not in text), "")


def find_last(text: str, words: str) -> int:
    """Return where `words` end at their last place in `text`, whatever the white space; −1 if they
    are not there. No words end at 0."""
    wanted = "".join(words.split())
    if not wanted:
        return 0
    plain = words.strip()
    if (at := text.rfind(plain)) >= 0:
        return at + len(plain)
    places = [at for at, character in enumerate(text) if not character.isspace()]
    found = "".join(text[at] for at in places).rfind(wanted)
    return -1 if found < 0 else places[found + len(wanted) - 1] + 1


def _list_call_words(value: Any) -> Iterator[str]:
    """Yield the words of tool calls: the names of functions and arguments, and the values."""
    for call in value:
        function = call.get("function", call)
        yield function["name"]
        yield from _list_words(function.get("arguments"))


def _list_words(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if inner is not None:  # some templates leave out what is null
                yield from _WORD.findall(key)
                yield from _list_words(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_words(inner)
    elif isinstance(value, str):
        yield from _WORD.findall(value)
