"""Conversations: reading them from rows, rendering them, and choosing the tokens to train on."""

from trainrig.tokens.chat.messages import Conversation, Message
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.chat.template import TEMPLATE

__all__ = ["TEMPLATE", "ChatRenderer", "Conversation", "Message"]
