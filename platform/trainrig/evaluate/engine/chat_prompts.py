"""Prompts as a user's words, in the format that the tokenizer's special tokens spell."""

from collections.abc import Sequence

from trainrig.tokens.chat import Message, encode_prompt
from trainrig.tokens.encoding.encode import Encoder


def encode_chat_prompt(encoder: Encoder, turns: Sequence[tuple[str, str]]) -> list[int]:
    """The ids after which the assistant is to speak, behind `turns` of (role, words).

    Raises DataError for a tokenizer without the special tokens of a conversation.
    """
    return encode_prompt([Message(role, words) for role, words in turns], encoder)
