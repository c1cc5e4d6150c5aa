"""The text around generation: ids of what is asked, and the text of what is said as it grows."""

import codecs
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.objectives.denoising.fill_in_the_middle import find_infilling_tokens
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.chat.messages import Conversation, Message, adapt_roles
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.encoding.encode import Encoder


@dataclass(frozen=True)
class Gap:
    """Two texts, between which the model is to write."""

    prefix: str
    suffix: str


# A text to go on from, a conversation to answer, with or without tools, or a gap to fill.
AnyPrompt = str | tuple[Message, ...] | Conversation | Gap


@dataclass(frozen=True)
class PromptEncoder:
    """What makes ids of prompts. May be pickled."""

    encoder: Encoder
    # What its chat template may name, beside what its files say.
    variables: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, prompt: AnyPrompt) -> list[int]:
        """The ids after which the model is to speak. Raises DataError for a gap without the
        sentinels of FillInTheMiddle."""
        begin = self.encoder.special_tokens.prefix
        if isinstance(prompt, str):
            return [*begin, *self._encode_text(prompt)]
        if isinstance(prompt, Gap):
            before, after, middle = find_infilling_tokens(self.encoder)
            prefix, suffix = self._encode_text(prompt.prefix), self._encode_text(prompt.suffix)
            return [*begin, before, *prefix, after, *suffix, middle]
        chat = Conversation(prompt) if isinstance(prompt, tuple) else prompt
        messages = adapt_roles(chat.messages, self._tokenizer.template)
        return self._renderer.encode_prompt(messages, chat.tools)

    def _encode_text(self, text: str) -> list[int]:
        return [int(number) for number in self.encoder.encode_batch([text])[0]]

    @functools.cached_property
    def _tokenizer(self) -> ChatTokenizer:
        return ChatTokenizer(self.encoder.files, self.variables)

    @functools.cached_property
    def _renderer(self) -> ChatRenderer:
        """What renders conversations. Raises DataError for a template that does not ask."""
        return self._tokenizer.build_prompting_renderer()


class TextListener:
    """The text of one request as it grows: its pieces are told, and its end is found.

    Pieces are held back while they may be the begin of a text that ends it.
    """

    def __init__(
        self,
        encoder: Encoder,
        stops: Sequence[str],
        answers: bool,
        hear: Callable[[str], None] | None = None,
    ) -> None:
        """`stops`: texts that end it; `answers`: whether it answers a conversation, and does not go
        on from a text."""
        self._encoder, self._hear = encoder, hear
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # The space that the tokenizer put before an answer is none of the text.
        self._skip_space = encoder.adds_space and answers
        self._text, self._told = "", 0
        self.ended_by = ""  # the text that ended it; empty: none did yet

    def __call__(self, drawn: int) -> bool:
        """Whether the text is complete with `drawn`."""
        return self._add(self._encoder.decode_bytes([drawn]))

    def finish(self) -> str:
        """The whole text."""
        if not self.ended_by:
            self._add(b"", final=True)
        self._tell(len(self._text))
        return self._text

    def _add(self, data: bytes, final: bool = False) -> bool:
        new = self._characters.decode(data, final)
        if self._skip_space and new:
            new, self._skip_space = new.removeprefix(" "), False
        before = len(self._text)
        self._text += new
        found = [self._text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stops]
        ends = [each for each in zip(found, self._stops, strict=True) if each[0] >= 0]
        if ends:
            place, self.ended_by = min(ends)
            self._text = self._text[:place]
            return True
        self._tell(max(self._told, len(self._text) - max(self._longest - 1, 0)))
        return False

    def _tell(self, end: int) -> None:
        if self._hear and end > self._told:
            self._hear(self._text[self._told : end])
        self._told = max(self._told, end)
