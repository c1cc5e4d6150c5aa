"""Prompts as a user's words, by the chat template of the model that is asked."""

import functools
from collections.abc import Sequence

from trainrig.tokens.chat import ChatRenderer, Message
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.encoding.encode import Encoder


def encode_chat_prompt(encoder: Encoder, turns: Sequence[tuple[str, str]]) -> list[int]:
    """Return the ids after which the assistant is to speak, behind `turns` of (role, words).

    The template is the one that came with the tokenizer, or trainrig's. Raises DataError for a
    template that does not take the turns, and for a tokenizer without any template that lacks the
    special tokens of ours.
    """
    return _build_renderer(encoder).encode_prompt([Message(role, words) for role, words in turns])


@functools.lru_cache(maxsize=2)  # the model that is asked, and its judge
def _build_renderer(encoder: Encoder) -> ChatRenderer:
    return ChatTokenizer(encoder.files).build_prompting_renderer()
