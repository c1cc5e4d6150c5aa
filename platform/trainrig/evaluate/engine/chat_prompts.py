"""Prompts as user turns, rendered by the chat template of the evaluated model."""

import functools
from collections.abc import Sequence

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
