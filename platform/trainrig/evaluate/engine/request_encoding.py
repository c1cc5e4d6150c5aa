"""Prompts and answers as token ids: the border between them, and truncation to the context.

The chat template of the evaluated model renders prompts as user turns.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.tokens.chat import ChatRenderer, Message
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.tokenizers.encode import Encoder


def encode_chat_prompt(encoder: Encoder, turns: Sequence[tuple[str, str]]) -> list[int]:
    """Return the token ids of `turns` of (role, text) as a prompt for the assistant's next turn.

    The chat template is the tokenizer's, or trainrig's if it has none. Raises DataError if the
    template refuses the turns, or if trainrig's template is used and the tokenizer lacks its
    special tokens.
    """
    return _build_renderer(encoder).encode_prompt([Message(role, words) for role, words in turns])


@functools.lru_cache(maxsize=2)  # the evaluated model and its judge
def _build_renderer(encoder: Encoder) -> ChatRenderer:
    return ChatTokenizer(encoder.files).build_prompting_renderer()


@dataclass(frozen=True)
class LikelihoodRequest:
    """A request for the likelihood of `continuation` after `context`, neither of them empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    truncated: bool = False  # true: the first tokens were cut off


@dataclass(frozen=True)
class GenerationRequest:
    """A request for the model's answer to `prompt`."""

    prompt: tuple[int, ...]
    truncated: bool = False


@dataclass(frozen=True)
class RequestEncoder:
    """A tokenizer, with the rules that turn texts into requests for a model of `positions`.

    The border is that of lm-evaluation-harness: white space at the end of a context moves to the
    continuation, both are encoded as one text, and the ids after the number of ids of the context
    alone are the continuation. Requests that are too long lose tokens from the left; the
    continuation stays whole if it fits alone.
    """

    encoder: Encoder
    positions: int
    document_start: bool  # true: each context begins with the end-of-text token

    def request_continuations(
        self, context: str, following: Sequence[str]
    ) -> list[LikelihoodRequest]:
        """Return a likelihood request for each text of `following` after `context`."""
        stripped = context.rstrip()
        moved = context[len(stripped) :]
        whole = [stripped + moved + text for text in following]
        encoded = [tuple(map(int, ids)) for ids in self.encoder.encode_batch([stripped, *whole])]
        before, *wholes = encoded
        return [self.request(self.begin_text(before), ids[len(before) :]) for ids in wholes]

    def request(self, context: Sequence[int], continuation: Sequence[int]) -> LikelihoodRequest:
        """Return a likelihood request, truncated from the left to the model's positions."""
        context = tuple(context)
        continuation = tuple(continuation)
        if not context:
            context = (self.encoder.end_of_text,)
        # The last token is only predicted, so one more than `positions` fits.
        kept = (context + continuation)[-(self.positions + 1) :]
        cut = len(context) + len(continuation) - len(kept)
        if not cut:
            return LikelihoodRequest(context, continuation)
        border = max(1, len(context) - cut)
        return LikelihoodRequest(kept[:border], kept[border:], truncated=True)

    def encode_plain_prompt(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a plain-text prompt."""
        (ids,) = self.encoder.encode_batch([text])
        return self.begin_text(tuple(map(int, ids)))

    def request_generation(self, prompt: Sequence[int], maximum_tokens: int) -> GenerationRequest:
        """Return a request whose prompt is cut from the left so that the answer fits."""
        prompt = tuple(prompt) or (self.encoder.end_of_text,)
        room = max(1, self.positions - maximum_tokens)
        return GenerationRequest(prompt[-room:], truncated=len(prompt) > room)

    def request_windows(self, text: str) -> list[LikelihoodRequest]:
        """Return requests that together predict each token of `text` once.

        Windows do not overlap: the context of each is the last token of the window before, as in
        lm-evaluation-harness's rolling log-likelihood.
        """
        (ids,) = self.encoder.encode_batch([text])
        tokens = [self.encoder.end_of_text, *map(int, ids)]
        starts = range(1, len(tokens), self.positions)
        return [
            LikelihoodRequest((tokens[at - 1],), tuple(tokens[at : at + self.positions]))
            for at in starts
        ]

    def begin_text(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return `ids`, after the end-of-text token if `document_start` is set."""
        return (self.encoder.end_of_text, *ids) if self.document_start else ids
