"""Conversations as ids, with what each id counts as a target.

The template makes one text of a conversation, and the tokenizer ids of the text, as Transformers
does. What of it is trained on comes from the beginnings of the conversation rendered by themselves:

    start of a turn     the turns before it, with the prompt for the assistant: the header is no
                        target, as whoever generates gives it
    end of a turn       the turns up to it, less what stands after the last special token: the end
                        of turn is a target, the newline after it is not

Some templates render a turn anew once others follow (Qwen3 drops its thoughts). Such a turn ends at
the first token after its start by which it ends when it is the last. This needs no marks in the
template, and those that are there change nothing.

No text can make a special token. Where a message has the name of one, BREAK is put into it before
it is rendered and taken out after.
"""

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trainrig.tokens.chat.messages import (
    BREAK,
    BadRow,
    Conversation,
    Message,
    to_hundredths,
)
from trainrig.tokens.chat_template import TemplateRefusal, render_chat
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.shard_files import FULL_WEIGHT

Span = tuple[int, int]  # characters of the rendered text


@dataclass(frozen=True)
class Rendered:
    """A conversation as ids, and as the text they are of."""

    ids: Integers  # [T]
    weights: NDArray[np.uint8]  # [T] hundredths; 0: not trained on
    text: str

    @property
    def prompt(self) -> int:
        """Ids before the first that is trained on."""
        return int(np.flatnonzero(self.weights)[0])


class ChatRenderer:
    """A chat template with its tokenizer. May be pickled."""

    def __init__(
        self,
        encoder: Encoder,
        template: str,
        variables: Mapping[str, Any] | None = None,
        where: str = "chat_template",
    ) -> None:
        """`variables`: what the template may name, such as `bos_token`; `where`: see errors.

        Raises ConfigError for a template that is no Jinja, or reaches out of its sandbox.
        """
        self._given = (encoder, template, dict(variables or {}), where)
        self._encoder, self._template, self._variables, self._where = self._given
        self._names = sorted(encoder.special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, self._names)) or r"(?!)")
        self._probe()

    def __reduce__(self) -> tuple[type["ChatRenderer"], tuple[Any, ...]]:
        return ChatRenderer, self._given

    def _probe(self) -> None:
        probe = Conversation((Message("user", "a"), Message("assistant", "b")))
        with contextlib.suppress(TemplateRefusal):  # it may want more, which rows will tell
            self.render_text(probe.messages, ())

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], prompt: bool = False
    ) -> str:
        """What the template makes of `messages`; `prompt`: and the assistant is to speak."""
        return render_chat(
            self._template,
            [self._break_special_names(message.as_json()) for message in messages],
            {**self._variables, "tools": self._break_special_names(list(tools)) or None},
            add_generation_prompt=prompt,
            where=self._where,
        )

    def encode_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The ids after which the assistant is to speak. Raises TemplateRefusal."""
        ids, _ = self._encode_text(self.render_text(messages, tools, prompt=True))
        return ids

    def render(self, chat: Conversation) -> Rendered:
        """The ids of a whole conversation. Raises BadRow for one that the template does not take,
        and for one of which nothing or all would be trained on."""
        try:
            text = self.render_text(chat.messages, chat.tools)
            spans = [(self._find_span(chat, number, text), number) for number in chat.trained_turns]
        except TemplateRefusal as error:
            raise BadRow("template_refuses", str(error)) from None
        ids, offsets = self._encode_text(text)
        weights = np.zeros(len(ids), dtype=np.uint8)
        firsts, pasts = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
        for (begin, end), number in spans:
            weight = to_hundredths(chat.messages[number].weight)
            weights[(firsts < end) & (pasts > begin)] = weight
        weights[:1] = 0  # nothing stands before it to predict it from
        if not weights.any():
            raise BadRow("empty_mask", "nothing of the rendered text would be trained on")
        if len(ids) > 1 and weights[1:].all():
            raise BadRow("full_mask", "all of the rendered text would be trained on")
        return Rendered(np.array(ids, dtype=np.int64), weights, text.replace(BREAK, ""))

    def ends_turns(self) -> bool:
        """Whether a special token ends what the assistant says, by which a model learns to stop.
        True, too, for a template that takes no plain conversation: rows will tell."""
        chat = Conversation((Message("user", "a"), Message("assistant", "b")))
        try:
            text = self.render_text(chat.messages, ())
            begin, end = self._find_span(chat, 1, text)
        except (TemplateRefusal, BadRow):
            return True
        return self._special.search(text, begin, end) is not None

    def step_ends(self, chat: Conversation, steps: Sequence[str]) -> list[int]:
        """The number of the last id of each of `steps`, of which the last turn of `chat` is made.

        Raises BadRow where the template renders them otherwise, or two end within one token.
        """
        try:
            text = self.render_text(chat.messages, chat.tools)
            at, _ = self._find_span(chat, len(chat.messages) - 1, text)
        except TemplateRefusal as error:
            raise BadRow("template_refuses", str(error)) from None
        ends = []
        for step in steps:
            shown: str = self._break_special_names(step)
            if (found := text.find(shown, at)) < 0:
                raise BadRow("template_rewrites", f"the step {step[:40]!r} is rendered otherwise")
            at = found + len(shown)
            ends.append(at)
        _, offsets = self._encode_text(text)
        firsts = np.array(offsets, dtype=np.int64).reshape(-1, 2)[:, 0]
        places: list[int] = (np.searchsorted(firsts, ends) - 1).tolist()
        if len(set(places)) < len(places):
            raise BadRow("steps_share_a_token", "two steps end within one token")
        return places

    def _find_span(self, chat: Conversation, number: int, text: str) -> Span:
        """Where turn `number` stands in the whole `text`, less its header and what follows it."""
        before = (
            self.render_text(chat.messages[:number], chat.tools, prompt=True) if number else None
        )
        if before is None:
            begin = self._find_opening(chat, text)
        elif text.startswith(before):
            begin = len(before)
        else:
            begin = self._find_repeated_header(before, text, number)
        closed = self._close_turn(chat, number, begin)
        if text.startswith(closed):
            end = len(closed)
        else:
            end = self._cut_turn_end(closed, text, begin, number)
        if end <= begin:
            raise BadRow("empty_mask", f"turn {number} is rendered as nothing")
        return begin, end

    def _close_turn(self, chat: Conversation, number: int, begin: int) -> str:
        """The text up to the end of turn `number`, as it is when the turn is the last.

        That is what it has in common with the text in which the assistant is to speak again: some
        templates put an end of text after the last turn. Less what stands after the last special
        token, such as a newline.
        """
        turns = chat.messages[: number + 1]
        last, more = (
            self.render_text(turns, chat.tools),
            self.render_text(turns, chat.tools, prompt=True),
        )
        common = _find_common_beginning(last, more)
        ends = [match.end() for match in self._special.finditer(common, min(begin, len(common)))]
        return common[: ends[-1]] if ends else common.rstrip()

    def _find_opening(self, chat: Conversation, text: str) -> int:
        """Where the text of a conversation that the assistant begins, begins."""
        at = text.find(self._break_special_names(chat.messages[0].content))
        if not chat.messages[0].content or at < 0:
            raise BadRow("template_rewrites", "turn 0 is the assistant's and is rendered otherwise")
        return at

    def _find_repeated_header(self, before: str, text: str, number: int) -> int:
        """The start of a turn before which the template renders otherwise once others follow: the
        place after the same header, that closes as many turns."""
        header = before[_find_last_end(self._special, before) :]
        opened = len(self._special.findall(before))
        places = [match.end() for match in self._special.finditer(text)]
        if header and opened <= len(places) and text.startswith(header, places[opened - 1]):
            return places[opened - 1] + len(header)
        raise BadRow(
            "template_rewrites",
            f"what stands before turn {number} is rendered otherwise once others follow",
        )

    def _cut_turn_end(self, closed: str, text: str, begin: int, number: int) -> int:
        """The end of a turn that is rendered otherwise once others follow."""
        marks = self._special.findall(closed, min(begin, len(closed)))
        if marks and (at := text.find(marks[-1], begin)) >= 0:
            return at + len(marks[-1])
        raise BadRow("template_rewrites", f"turn {number} is rendered otherwise once others follow")

    def _break_special_names(self, value: Any) -> Any:
        """`value` with BREAK in each name of a special token that its texts have."""
        if isinstance(value, str):
            return self._special.sub(lambda m: m[0][:1] + BREAK + m[0][1:], value)
        if isinstance(value, Mapping):
            return {key: self._break_special_names(each) for key, each in value.items()}
        return (
            [self._break_special_names(each) for each in value]
            if isinstance(value, list | tuple)
            else value
        )

    def _encode_text(self, text: str) -> tuple[list[int], list[Span]]:
        """Ids of a rendered text, and where each stands in it."""
        if BREAK not in text:
            found = self._tokenizer.encode(text, add_special_tokens=False)
            return found.ids, found.offsets
        ids: list[int] = []
        offsets: list[Span] = []
        at = 0
        for match in [*self._special.finditer(text), None]:
            begin, end = match.span() if match else (len(text), len(text))
            self._extend(ids, offsets, text[at:begin], at)
            if match:
                ids.append(self._encoder.special_ids[match[0]])
                offsets.append((begin, end))
            at = end
        return ids, offsets

    def _extend(self, ids: list[int], offsets: list[Span], text: str, at: int) -> None:
        """Add the ids of a text between special tokens, at `at`, none of them special."""
        plain = text.replace(BREAK, "")
        places = [n for n, character in enumerate(text) if character != BREAK] + [len(text)]
        found = self._plain_tokenizer.encode(plain, add_special_tokens=False)
        ids += found.ids
        offsets += [(at + places[begin], at + places[end]) for begin, end in found.offsets]

    @functools.cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        return _disable_trimming(self._encoder.text, special=True)

    @functools.cached_property
    def _plain_tokenizer(self) -> tokenizers.Tokenizer:
        return _disable_trimming(self._encoder.text, special=False)


def _disable_trimming(tokenizer_json: str, special: bool) -> tokenizers.Tokenizer:
    """The tokenizer, whose offsets cover all of a text: some leave spaces out of them."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not special
    tokenizer.post_processor = tokenizers.processors.Sequence([])
    return tokenizer


def _find_common_beginning(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _find_last_end(special: re.Pattern[str], text: str) -> int:
    ends = [match.end() for match in special.finditer(text)]
    return ends[-1] if ends else 0


__all__ = ["FULL_WEIGHT", "ChatRenderer", "Rendered"]
