"""The beginning and the end of an answer in a rendered text, as inference would produce it.

    begin   after the prompt that the template renders at the turn, with the assistant's header and
            anything else that the template puts there (`<think>`, an empty reasoning block)
    end     the special token after the answer's words at which the model stops at that turn

Both are found by rendering the beginnings of the conversation up to that turn. This needs no
`{% generation %}` marks in the template, and existing marks have no effect.

The words of an answer are searched for in the rendered text.

Chat templates trim and fold white space, so words are compared without white space. Templates
render tool calls as JSON, XML or Python calls, so only the names and the words of the values of a
call are searched for.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainrig.tokens.chat.chat_messages import ASSISTANT, BadRow
from trainrig.tokens.chat_template import TemplateRefusal, find_reasoning

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


# The variables with which published templates switch reasoning on and off.
_THINKING = ("enable_thinking", "thinking")
# A noncharacter that no message contains; unlike BREAK it is not removed from texts.
_PROBE = "\ufdd1"

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class Render(Protocol):
    """Rendering by a chat template, which raises TemplateRefusal for messages it refuses."""

    def __call__(
        self, messages: Messages, tools: Tools, prompt: bool, changed: Mapping[str, Any]
    ) -> str:
        """Return `messages` as text, with template variables replaced by `changed`."""
        ...


@dataclass(frozen=True)
class RenderedAnswer:
    """An assistant's turn in the text rendered with that turn as the last."""

    number: int  # index of the turn
    begin: int  # characters of the text before the answer
    closed: str  # the text up to the end of the answer
    text: str  # the whole text


@dataclass(frozen=True)
class _Opening:
    """The text before an answer."""

    begin: int  # characters of the rendered text before the answer
    prompt: str  # the prompt that inference would use in place of these characters
    thoughts: str = ""  # reasoning at the start of the answer that the template drops


@dataclass(frozen=True)
class AnswerFinder:
    """Finder of the answers in the texts that a chat template renders."""

    special: re.Pattern[str]  # matches the names of special tokens
    render: Render

    def find(self, messages: Messages, tools: Tools, number: int) -> RenderedAnswer:
        """Return the answer in turn `number`, an assistant's turn.

        Raises BadRow if the template does not render the answer's words, and TemplateRefusal if it
        refuses the conversation.
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
                "answer_lost",
                f"the chat template leaves out the words {missing[:60]!r} of turn {number}",
            )
        if len(closed) <= begin:
            raise BadRow("empty_mask", f"the chat template leaves out turn {number}")
        return RenderedAnswer(number, begin, closed, text)

    def _find_opening(
        self, before: Messages, tools: Tools, text: str, words: AnswerWords
    ) -> _Opening:
        """Return where the answer begins in `text`, and the prompt that inference would use."""
        prompt = self.render(before, tools, True, {})
        if text.startswith(prompt):
            return _Opening(len(prompt) + self._count_second_header(prompt, text), prompt)
        plain = self.render([*before, {"role": ASSISTANT, "content": _PROBE}], tools, False, {})
        begin = _count_common(prompt, plain)
        opens = begin > _count_common(prompt, self.render(before, tools, False, {}))
        there = opens and text.startswith(prompt[:begin])
        thinks = there and prompt[begin:].strip() == _THOUGHTS and words.thoughts.strip()
        if (
            thinks and find_last(text[begin:], words.thoughts) < 0
        ):  # the template drops the reasoning
            thoughts = words.thoughts.strip("\n") + f"\n{END_OF_THOUGHTS}\n\n"
            return _Opening(len(text) - len(text[begin:].lstrip("\n")), prompt, thoughts)
        for switched in self._render_switched(before, tools):
            if text.startswith(switched):
                return _Opening(len(switched), switched)
        if there:
            return _Opening(begin, text[:begin])
        return _Opening(self._find_header_end(prompt, plain, text, len(before)), prompt)

    def _count_second_header(self, prompt: str, text: str) -> int:
        """Return the length of an assistant header in `text` after `prompt`, or 0 if there is none.

        Some templates omit the header from a prompt that ends in a tool's turn, but render it
        before the answer.
        """
        header = self._header
        second = header and not prompt.endswith(header) and text.startswith(header, len(prompt))
        return len(header) if second else 0

    @functools.cached_property
    def _header(self) -> str:
        """The header of an assistant's turn, rendered after a user's turn; "" if not known."""
        asked = [{"role": "user", "content": _PROBE}]
        try:
            bare, prompt = (self.render(asked, (), given, {}) for given in (False, True))
        except TemplateRefusal:
            return ""
        return prompt.removeprefix(bare) if prompt.startswith(bare) else ""

    def _find_header_end(self, prompt: str, plain: str, text: str, number: int) -> int:
        """Return where the answer begins in a `text` whose earlier turns differ from `prompt`.

        The answer begins after the last header that `text` shares with `plain`, which is rendered
        with a different answer. Raises BadRow if there is none.
        """
        opened = [match.start() for match in self.special.finditer(prompt)]
        header = prompt[opened[-1] :] if opened else ""
        at = text.rfind(header, 0, _count_common(text, plain)) if header else -1
        if at < 0:
            raise BadRow(
                "template_rewrites",
                f"the chat template changes the text before turn {number} when that turn follows",
            )
        return at + len(header)

    def _render_switched(self, before: Messages, tools: Tools) -> Iterator[str]:
        """Yield the prompts for inference with reasoning switched off and on."""
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
        """Return the text up to the end of the answer, and a stop token to append to it.

        The stop token is "" if the text has one. Some templates render an end-of-text token after
        the last turn only, following the end-of-turn token. So the answer ends at the last special
        token that stays when another assistant turn is opened, if this is after the answer's words,
        and otherwise at the first special token after them. If the template has no end-of-turn
        token, the model stops at the token that begins the next turn.
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
        """Return how many first characters of `text` stay when another assistant turn is opened."""
        try:
            return _count_common(text, self.render(turns, tools, True, {}))
        except TemplateRefusal:
            return len(text)

    def _find_follower(
        self, messages: Messages, tools: Tools, number: int, words: AnswerWords
    ) -> str | None:
        """Return the white space after the answer and the special token that begins the next turn.

        Returns None if no special token follows, or the template refuses a next turn.
        """
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
        return self.special.sub(lambda match: "\0" * len(match[0]), text)


def _find_first_words(message: Mapping[str, Any], text: str) -> int:
    """Return where the content of `message`, an assistant's turn 0, begins in `text`."""
    at = text.find(message["content"])
    if not message["content"] or at < 0:
        raise BadRow(
            "template_rewrites", "the chat template changes turn 0, which is the assistant's"
        )
    return at


def _count_common(one: str, other: str) -> int:
    """Return the length of the common beginning of both texts, in characters."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
