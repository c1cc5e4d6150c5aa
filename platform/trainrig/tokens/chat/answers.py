"""Where an answer begins and ends in a rendered text, as inference would make it.

    begin   behind the prompt that the template gives at the turn, with its header and all that it
            puts there for the assistant to go on from (`<think>`, an empty block of thoughts)
    end     the special token after the answer's words by which the model stops at that turn

Both come from beginnings of the conversation rendered by themselves. This needs no marks in the
template, and those that are there change nothing.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainrig.tokens.chat.answer_words import END_OF_THOUGHTS, AnswerWords, find_last
from trainrig.tokens.chat.messages import ASSISTANT, BadRow
from trainrig.tokens.chat_template import TemplateRefusal

# By these variables published templates switch thoughts on and off.
_THINKING = ("enable_thinking", "thinking")
_THOUGHTS = "<think>"
# A noncharacter that stands nowhere else; unlike BREAK it is not taken out of texts.
_PROBE = "\ufdd1"

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class Render(Protocol):
    """A chat template. Raises TemplateRefusal."""

    def __call__(
        self, messages: Messages, tools: Tools, prompt: bool, changed: Mapping[str, Any]
    ) -> str:
        """Return the text of `messages`, with variables of the template `changed`."""
        ...


@dataclass(frozen=True)
class Answer:
    """An assistant's turn in the text that the template makes when the turn is the last."""

    number: int  # of the turn
    begin: int  # characters of the text before what the model says
    closed: str  # the text up to the end of the answer
    text: str  # all of it


@dataclass(frozen=True)
class _Opening:
    """What stands before an answer."""

    begin: int  # characters of the rendered text before the answer
    prompt: str  # what inference gives in their place
    thoughts: str = ""  # what the model says first, and the template drops


@dataclass(frozen=True)
class AnswerFinder:
    """Finds answers in what a chat template renders."""

    special: re.Pattern[str]  # special tokens
    render: Render

    def find(self, messages: Messages, tools: Tools, number: int) -> Answer:
        """Return the answer that turn `number` is.

        Raises BadRow where the template renders something else, TemplateRefusal for a conversation
        that it does not take.
        """
        text = self.render(messages[: number + 1], tools, False, {})
        words = AnswerWords.of(messages[number])
        if number:
            opening = self._find_opening(messages[:number], tools, text, words)
        else:
            at = _find_first_words(messages[0], text)
            opening = _Opening(at, text[:at])
        closed, follower = self._close(messages, tools, number, text, opening.begin, words)
        before = opening.prompt + opening.thoughts
        begin = len(opening.prompt)
        closed = before + closed[opening.begin :] + follower
        text = closed if follower else before + text[opening.begin :]
        if missing := words.find_missing(self._blank(closed[begin:])):
            raise BadRow(
                "answer_lost", f"turn {number} is rendered without its words {missing[:60]!r}"
            )
        if len(closed) <= begin:
            raise BadRow("empty_mask", f"turn {number} is rendered as nothing")
        return Answer(number, begin, closed, text)

    def _find_opening(
        self, before: Messages, tools: Tools, text: str, words: AnswerWords
    ) -> _Opening:
        """Where the answer begins in `text`, and what inference puts before it."""
        prompt = self.render(before, tools, True, {})
        if text.startswith(prompt):
            return _Opening(len(prompt) + self._count_second_header(prompt, text), prompt)
        plain = self.render([*before, {"role": ASSISTANT, "content": _PROBE}], tools, False, {})
        begin = _count_common(prompt, plain)
        opens = begin > _count_common(prompt, self.render(before, tools, False, {}))
        there = opens and text.startswith(prompt[:begin])
        thinks = there and prompt[begin:].strip() == _THOUGHTS and words.thoughts.strip()
        if thinks and find_last(text[begin:], words.thoughts) < 0:  # the template drops them
            thoughts = words.thoughts.strip("\n") + f"\n{END_OF_THOUGHTS}\n\n"
            return _Opening(len(text) - len(text[begin:].lstrip("\n")), prompt, thoughts)
        for switched in self._render_switched(before, tools):
            if text.startswith(switched):
                return _Opening(len(switched), switched)
        if there:
            return _Opening(begin, text[:begin])
        return _Opening(self._find_header_end(prompt, plain, text, len(before)), prompt)

    def _count_second_header(self, prompt: str, text: str) -> int:
        """Characters of a header behind `prompt`: some templates have none in a prompt that ends in
        a tool's turn, and one before the answer."""
        header = self._header
        second = header and not prompt.endswith(header) and text.startswith(header, len(prompt))
        return len(header) if second else 0

    @functools.cached_property
    def _header(self) -> str:
        """What the template puts behind a user's turn for the assistant to go on from."""
        asked = [{"role": "user", "content": _PROBE}]
        try:
            bare, prompt = (self.render(asked, (), given, {}) for given in (False, True))
        except TemplateRefusal:
            return ""
        return prompt.removeprefix(bare) if prompt.startswith(bare) else ""

    def _find_header_end(self, prompt: str, plain: str, text: str, number: int) -> int:
        """Where the answer begins in a `text` that renders turns before it otherwise than `prompt`
        does: behind the same header, before `text` differs from `plain`, which has another answer.
        """
        opened = [match.start() for match in self.special.finditer(prompt)]
        header = prompt[opened[-1] :] if opened else ""
        at = text.rfind(header, 0, _count_common(text, plain)) if header else -1
        if at < 0:
            raise BadRow(
                "template_rewrites",
                f"what stands before turn {number} is rendered otherwise once it is there",
            )
        return at + len(header)

    def _render_switched(self, before: Messages, tools: Tools) -> Iterator[str]:
        """The prompts that inference gives where thoughts are switched off, or on."""
        for name in _THINKING:
            for value in (False, True):
                yield self.render(before, tools, True, {name: value})

    def _close(
        self,
        messages: Messages,
        tools: Tools,
        number: int,
        text: str,
        begin: int,
        words: AnswerWords,
    ) -> tuple[str, str]:
        """The text up to the end of the answer, and a token that ends it where the text has none.

        Some templates put an end of text after the last turn alone, behind the token that ends each
        turn. So the end is the last special token that stays when the assistant is to speak again,
        if it is behind the words; else the first one that is. A template that ends no turn itself
        is left to the token by which the next turn begins: at that the model stops.
        """
        turns = messages[: number + 1]
        behind = begin + words.find_end(self._blank(text[begin:]))
        stays = self._count_common_with_next(turns, tools, text)
        ends = [match.end() for match in self.special.finditer(text, begin)]
        lasting = [end for end in ends if end <= stays]
        if lasting and lasting[-1] > behind:
            return text[: lasting[-1]], ""
        if later := [end for end in ends if end > behind]:
            return text[: later[0]], ""
        if (follower := self._find_follower(messages, tools, number, words)) is not None:
            return text.rstrip(), follower
        return text[:stays].rstrip(), ""

    def _count_common_with_next(self, turns: Messages, tools: Tools, text: str) -> int:
        """Characters at the beginning of `text` that stay when the assistant is to speak again."""
        try:
            return _count_common(text, self.render(turns, tools, True, {}))
        except TemplateRefusal:
            return len(text)

    def _find_follower(
        self, messages: Messages, tools: Tools, number: int, words: AnswerWords
    ) -> str | None:
        """White space and the special token by which the next turn begins, behind the answer."""
        turns = list(messages[: number + 1])
        following = messages[number + 1 : number + 2]
        if not following or following[0]["role"] == ASSISTANT:
            role = "tool" if turns[-1].get("tool_calls") else "user"
            following = [{"role": role, "content": _PROBE}]
        try:
            text = self.render([*turns, *following], tools, False, {})
            begin = _count_common(text, self.render(turns[:-1], tools, True, {}))
        except TemplateRefusal:
            return None
        behind = begin + words.find_end(self._blank(text[begin:]))
        found = self.special.search(text, behind)
        if found is None:
            return None
        between = text[behind : found.start()]
        return between[len(between.rstrip()) :] + found[0]

    def _blank(self, text: str) -> str:
        """`text`, in which special tokens are no words."""
        return self.special.sub(lambda match: "\0" * len(match[0]), text)


def _find_first_words(message: Mapping[str, Any], text: str) -> int:
    """Where the text of a conversation that the assistant begins, begins."""
    at = text.find(message["content"])
    if not message["content"] or at < 0:
        raise BadRow("template_rewrites", "turn 0 is the assistant's and is rendered otherwise")
    return at


def _count_common(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
