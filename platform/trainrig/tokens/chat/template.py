"""The chat template for models without a chat template.

    <|end_of_text|><|user|>QUESTION<|end_of_turn|><|assistant|>ANSWER<|end_of_turn|>

There is no white space between a special token and the text next to it. Tools are listed in the
system turn, tool calls are JSON in the assistant's text, and tool results are user turns.
"""

from collections.abc import Mapping

from trainrig.errors import DataError
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.special import (
    ASSISTANT,
    END_OF_TEXT,
    END_OF_TURN,
    SYSTEM,
    USER,
    find_role_id,
)

TEMPLATE = (
    END_OF_TEXT
    + """{% if tools %}{{ '"""
    + SYSTEM
    + """' }}
{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\\n\\n' }}{% endif %}
{{ 'Tools, each as its JSON schema:\\n' }}
{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{ 'To call one, write <tool_call>{"name": ..., "arguments": ...}</tool_call>' }}{{ '"""
    + END_OF_TURN
    + """' }}{% endif %}
{% for message in messages %}
{% if message['role'] == 'tool' %}{{ '"""
    + USER
    + "<tool_response>' + message['content'] + '</tool_response>"
    + END_OF_TURN
    + """' }}
{% elif not (tools and loop.first and message['role'] == 'system') %}
{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}
{% for call in message['tool_calls'] or [] %}
{{ '<tool_call>' + (call['function'] or call) | tojson + '</tool_call>' }}
{% endfor %}
{{ '"""
    + END_OF_TURN
    + """' }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '"""
    + ASSISTANT
    + "' }}{% endif %}"
).replace("\n{", "{")


def build_template(encoder: Encoder) -> str:
    """Return the template for the special tokens of `encoder`. Raises DataError if it lacks one.

    Without a special token for system turns, the template refuses tools and system turns.
    """
    by_id = {number: name for name, number in encoder.special_ids.items()}
    names: Mapping[str, str] = {
        role: by_id[number]
        for role in (END_OF_TEXT, USER, ASSISTANT, END_OF_TURN)
        for number in [encoder.find_special(role)]
    }
    template = TEMPLATE
    for role, name in names.items():
        if name != role:
            raise DataError(
                f"the tokenizer has {name} for {role}, from another model; name that model's "
                "chat template"
            )
    if find_role_id(encoder.special_ids, SYSTEM) is None:
        template = (
            "{% if tools or messages[0]['role'] == 'system' %}{{ raise_exception('the \
tokenizer has no special token for a system turn') }}{% endif %}"
            + template
        )
    return template
