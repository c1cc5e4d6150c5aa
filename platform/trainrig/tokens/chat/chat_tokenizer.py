"""A tokenizer with its own chat template, or with trainrig's if it has none.

The *generation prompt* is the text that opens the assistant's turn at the end of a conversation.

trainrig's template renders

    <|end_of_text|><|user|>QUESTION<|end_of_turn|><|assistant|>ANSWER<|end_of_turn|>

There is no white space between a special token and the text next to it. Tools are listed in the
system turn, tool calls are JSON in the assistant's text, and tool results are user turns.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainrig.errors import DataError
from trainrig.tokens import special_tokens
from trainrig.tokens.chat.chat_messages import Message
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.tokenizers.encode import Encoder

TEMPLATE = (
    special_tokens.END_OF_TEXT
    + """{% if tools %}{{ '"""
    + special_tokens.SYSTEM
    + """' }}
{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\\n\\n' }}{% endif %}
{{ 'Tools, each as its JSON schema:\\n' }}
{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{ 'To call one, write <tool_call>{"name": ..., "arguments": ...}</tool_call>' }}{{ '"""
    + special_tokens.END_OF_TURN
    + """' }}{% endif %}
{% for message in messages %}
{% if message['role'] == 'tool' %}{{ '"""
    + special_tokens.USER
    + "<tool_response>' + message['content'] + '</tool_response>"
    + special_tokens.END_OF_TURN
    + """' }}
{% elif not (tools and loop.first and message['role'] == 'system') %}
{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}
{% for call in message['tool_calls'] or [] %}
{{ '<tool_call>' + (call['function'] or call) | tojson + '</tool_call>' }}
{% endfor %}
{{ '"""
    + special_tokens.END_OF_TURN
    + """' }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '"""
    + special_tokens.ASSISTANT
    + "' }}{% endif %}"
).replace("\n{", "{")


def build_template(encoder: Encoder) -> str:
    """Return the template for the special tokens of `encoder`. Raises DataError if it lacks one.

    Without a special token for system turns, the template refuses tools and system turns.
    """
    by_id = {number: name for name, number in encoder.special_ids.items()}
    names: Mapping[str, str] = {
        role: by_id[number]
        for role in (
            special_tokens.END_OF_TEXT,
            special_tokens.USER,
            special_tokens.ASSISTANT,
            special_tokens.END_OF_TURN,
        )
        for number in [encoder.find_special(role)]
    }
    template = TEMPLATE
    for role, name in names.items():
        if name != role:
            raise DataError(
                f"the tokenizer has {name} for {role}, from another model; name that model's "
                "chat template"
            )
    if special_tokens.find_role_id(encoder.special_ids, special_tokens.SYSTEM) is None:
        template = (
            "{% if tools or messages[0]['role'] == 'system' %}{{ raise_exception('the \
tokenizer has no special token for a system turn') }}{% endif %}"
            + template
        )
    return template


@dataclass(frozen=True)
class ChatTokenizer:
    """Files of a tokenizer, and variables that the user adds to its chat template; picklable."""

    files: special_tokens.TokenizerFiles
    variables: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder that is built from the files."""
        return Encoder.of(self.files)

    @functools.cached_property
    def template(self) -> str:
        """The chat template of the tokenizer, or trainrig's if it has none.

        Raises DataError if trainrig's template is needed and the tokenizer lacks a special token.
        """
        return self.files.chat_template or build_template(self.encoder)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the template and its variables."""
        variables = {name: str(value) for name, value in self.template_variables.items()}
        packed = json.dumps(variables, sort_keys=True)
        return hashlib.sha256(f"{self.template}\0{packed}".encode()).hexdigest()

    @functools.cached_property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the template: the special tokens of the tokenizer, and `variables`."""
        given = self.files.parse_json(special_tokens.MAP) | self.files.parse_json(
            special_tokens.TOKENIZER_CONFIG
        )
        tokens = {
            name: value["content"] if isinstance(value, Mapping) else value
            for name, value in given.items()
            if name.endswith("_token") and isinstance(value, str | Mapping)
        }
        return tokens | dict(self.variables)

    def build_renderer(self) -> ChatRenderer:
        """Return the renderer of the chat template. Raises ConfigError for an invalid template."""
        where = (
            special_tokens.TEMPLATE_FILE if self.files.chat_template else "trainrig's chat template"
        )
        return ChatRenderer(self.encoder, self.template, self.template_variables, where)

    def build_prompting_renderer(self) -> ChatRenderer:
        """Return a renderer of conversations for a model to continue with the assistant's turn.

        Raises DataError if the template closes the user's turn and adds no generation prompt: the
        model would then have to generate the header of its turn itself.
        """
        renderer = self.build_renderer()
        turn = self.encoder.special_tokens.end_of_turn
        question = (Message("user", "a"),)
        bare = renderer.render_text(question, ())
        closes_turn = turn is not None and bare.rstrip().endswith(turn.text)
        if turn and closes_turn and renderer.render_text(question, (), prompt=True) == bare:
            raise DataError(
                f"{self.files.where}: the chat template writes nothing to prompt the "
                f"assistant: a user's turn ends in {turn.text} with and without "
                "add_generation_prompt; add {% if add_generation_prompt %}…{% endif %} to its "
                "end"
            )
        return renderer
