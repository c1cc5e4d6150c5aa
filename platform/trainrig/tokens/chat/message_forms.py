"""The form of messages that a chat template reads, which differs between published templates.

The content is a text for most templates, and a list of parts for those of multimodal models. The
arguments of a tool call are an object for most, and JSON text for some. A tool call without text
has empty content for most, and null content for some. A template that gets the wrong form often
drops the content without an error, so the form is found by rendering a test conversation in each.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainrig.tokens.chat_template import TemplateRefusal

_QUESTION = "probing question"
_ANSWER = "probing answer"
_CALL = {
    "id": "callprobe",
    "type": "function",
    "function": {"name": "probed_tool", "arguments": {"place": "probed value"}},
}

Render = Callable[[Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True)
class MessageForm:
    """The choices in which the messages of different templates differ."""

    parts: bool = False  # content is a list of parts
    text_arguments: bool = False  # arguments of a tool call are JSON text
    null_content: bool = False  # the content of a tool call without text is null

    def apply(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return `message` in this form."""
        shown = dict(message)
        calls = shown.get("tool_calls")
        if calls and self.text_arguments:
            shown["tool_calls"] = [_with_text_arguments(call) for call in calls]
        if calls and self.null_content and not shown["content"]:
            shown["content"] = None
        elif self.parts:
            shown["content"] = [{"type": "text", "text": shown["content"]}]
        return shown


def find_message_form(render: Render) -> MessageForm:
    """Return the form of messages in which the template renders a test conversation completely.

    The plain form is taken if it works, or if no form works.
    """
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _ANSWER},
    ]
    form = MessageForm()
    if not _shows(render, form, turns, (_QUESTION, _ANSWER)):
        in_parts = MessageForm(parts=True)
        if _shows(render, in_parts, turns, (_QUESTION, _ANSWER)):
            form = in_parts
    calling = [
        turns[0],
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    ]
    for null_content in (False, True):
        for text_arguments in (False, True):
            tried = replace(form, null_content=null_content, text_arguments=text_arguments)
            if _shows(render, tried, calling, ("probed_tool", "probed value")):
                return tried
    return form


def _shows(
    render: Render, form: MessageForm, turns: Sequence[Mapping[str, Any]], words: Sequence[str]
) -> bool:
    try:
        text = render([form.apply(turn) for turn in turns])
    except TemplateRefusal:
        return False
    return all(word in text for word in words)


def _with_text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", call))
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": function} if "function" in call else function
