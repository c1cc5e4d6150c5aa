"""Prompts as a user's words, in the format that the tokenizer's special tokens spell."""

from collections.abc import Sequence

from trainrig.tokens.chat import Message, prompt_ids
from trainrig.tokens.encoding.encode import Encoder


def chat_prompt(encoder: Encoder, turns: Sequence[tuple[str, str]]) -> list[int]:
    """The ids after which the assistant is to speak, behind `turns` of (role, words).

    Raises DataError for a tokenizer without the special tokens of a conversation.
    """
    return prompt_ids([Message(role, words) for role, words in turns], encoder)
