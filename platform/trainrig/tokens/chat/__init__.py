"""Conversations: reading them from rows, rendering them, and choosing the tokens to train on."""

from trainrig.tokens.chat.chat_messages import Conversation, Message
from trainrig.tokens.chat.chat_tokenizer import TEMPLATE
from trainrig.tokens.chat.rendering import ChatRenderer

__all__ = ["TEMPLATE", "ChatRenderer", "Conversation", "Message"]
