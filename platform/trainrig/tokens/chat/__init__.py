"""Conversations: what they are, from which rows they come, and what of them is trained on."""

from collections.abc import Sequence

from trainrig.tokens.chat.messages import Conversation, Message
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.chat.template import TEMPLATE, build_template
from trainrig.tokens.encoding.encode import Encoder


def encode_prompt(messages: Sequence[Message], encoder: Encoder) -> list[int]:
    """The ids after which the assistant is to speak, by our own template. Raises DataError for a
    tokenizer without the special tokens of a conversation."""
    return ChatRenderer(encoder, build_template(encoder)).encode_prompt(messages)


__all__ = ["TEMPLATE", "ChatRenderer", "Conversation", "Message", "encode_prompt"]
