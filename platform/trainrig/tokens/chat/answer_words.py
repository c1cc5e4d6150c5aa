"""The words of an assistant's answer, and their positions in a rendered chat.

Chat templates trim and fold white space, so words are compared without white space. Templates
render tool calls as JSON, XML or Python calls, so only the names and the words of the values of a
call are searched for.
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
    """The content, tool calls and reasoning of one assistant turn."""

    content: str  # without the reasoning that comes before it
    called: tuple[str, ...]  # names and words of its tool calls
    thoughts: str

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "AnswerWords":
        """Return the words of `message`, an assistant turn in the form that templates read."""
        before, _, content = message["content"].rpartition(END_OF_THOUGHTS)
        reasoning = find_reasoning(message)
        thoughts = reasoning if isinstance(reasoning, str) else before.rpartition(_THOUGHTS)[2]
        called = tuple(_list_call_words(message.get("tool_calls") or ()))
        return cls(content, called, thoughts)

    def find_end(self, text: str) -> int:
        """Return the position in `text` after the last word, or 0 if no word occurs in `text`.

        `text` begins with the turn, and its special tokens are blanked out.
        """
        ends = [find_last(text, words) for words in (self.content, self.thoughts)]
        ends += [text.rfind(word) + len(word) for word in self.called if word in text]
        return max([0, *ends])

    def find_missing(self, text: str) -> str:
        """Return the content or a word of a tool call that `text` lacks; "" if none is missing."""
        if find_last(text, self.content) < 0:
            return self.content.strip()
        return next((word for word in self.called if word not in text), "")


def find_last(text: str, words: str) -> int:
    """Return the end of the last occurrence of `words` in `text`, ignoring white space.

    Returns −1 if `text` does not contain the words, and 0 if `words` is blank.
    """
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
    """Yield the words of tool calls: function names, argument names and argument values."""
    for call in value:
        function = call.get("function", call)
        yield function["name"]
        yield from _list_words(function.get("arguments"))


def _list_words(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if inner is not None:  # some templates leave out null arguments
                yield from _WORD.findall(key)
                yield from _list_words(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_words(inner)
    elif isinstance(value, str):
        yield from _WORD.findall(value)
