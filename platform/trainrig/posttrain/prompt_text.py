"""Encoding of prompts for generation, and decoding of the answer while it grows."""

import codecs
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.objectives.denoising.fill_in_the_middle import find_infilling_tokens
from trainrig.tokens.chat.chat_messages import Conversation, Message, adapt_roles
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.tokenizers.encode import Encoder


@dataclass(frozen=True)
class Gap:
    """Two texts; the model writes the text between them."""

    prefix: str
    suffix: str


# A text to continue, a conversation to answer (with or without tools), or a gap to fill.
AnyPrompt = str | tuple[Message, ...] | Conversation | Gap


@dataclass(frozen=True)
class PromptEncoder:
    """Encoder of prompts as token ids; it can be pickled."""

    encoder: Encoder
    # Extra variables for the chat template, besides those in the tokenizer's files.
    variables: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, prompt: AnyPrompt) -> list[int]:
        """Return the token ids that the model continues from.

        Raises DataError for a gap if the tokenizer lacks the sentinels of FillInTheMiddle.
        """
        begin = self.encoder.special_tokens.prefix
        if isinstance(prompt, str):
            return [*begin, *self._encode_text(prompt)]
        if isinstance(prompt, Gap):
            before, after, middle = find_infilling_tokens(self.encoder)
            prefix = self._encode_text(prompt.prefix)
            suffix = self._encode_text(prompt.suffix)
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
        """The chat renderer; raises DataError if the template makes no prompt for an answer."""
        return self._tokenizer.build_prompting_renderer()


class TextListener:
    """The growing text of one request: it streams new pieces and detects stop texts.

    A piece is held back while it may be the start of a stop text.
    """

    def __init__(
        self,
        encoder: Encoder,
        stops: Sequence[str],
        answers: bool,
        hear: Callable[[str], None] | None = None,
    ) -> None:
        """Start an empty text that ends at the first of the texts `stops`.

        `answers` says whether the text answers a conversation; otherwise it continues a text.
        `hear` is called with each new piece.
        """
        self._encoder = encoder
        self._hear = hear
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # The space that the tokenizer puts before an answer is not part of the text.
        self._skip_space = encoder.adds_space and answers
        self._text = ""
        self._told = 0
        self.ended_by = ""  # The stop text that ended this text; empty: none so far.

    def __call__(self, drawn: int) -> bool:
        """Add the token `drawn` and return whether the text is complete."""
        return self._add(self._encoder.decode_bytes([drawn]))

    def finish(self) -> str:
        """Stream what was held back and return the whole text."""
        if not self.ended_by:
            self._add(b"", final=True)
        self._tell(len(self._text))
        return self._text

    def _add(self, data: bytes, final: bool = False) -> bool:
        new = self._characters.decode(data, final)
        if self._skip_space and new:
            new = new.removeprefix(" ")
            self._skip_space = False
        before = len(self._text)
        self._text += new
        found = [self._text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stops]
        ends = [match for match in zip(found, self._stops, strict=True) if match[0] >= 0]
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
