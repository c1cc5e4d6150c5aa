"""Conversations: what they are, from which rows they come, and what of them is trained on."""

from trainrig.tokens.chat.messages import Conversation, Message
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.chat.template import TEMPLATE

__all__ = ["TEMPLATE", "ChatRenderer", "Conversation", "Message"]
