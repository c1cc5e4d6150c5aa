"""A tokenizer with its own chat template, or with trainrig's if it has none.

The *generation prompt* is the text that opens the assistant's turn at the end of a conversation.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainrig.errors import DataError
from trainrig.tokens.chat.messages import Message
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.chat.template import build_template
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.special_tokens import MAP, TEMPLATE, TOKENIZER_CONFIG, TokenizerFiles


@dataclass(frozen=True)
class ChatTokenizer:
    """Files of a tokenizer, and variables that the user adds to its chat template; picklable."""

    files: TokenizerFiles
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
        given = self.files.parse_json(MAP) | self.files.parse_json(TOKENIZER_CONFIG)
        tokens = {
            name: value["content"] if isinstance(value, Mapping) else value
            for name, value in given.items()
            if name.endswith("_token") and isinstance(value, str | Mapping)
        }
        return tokens | dict(self.variables)

    def build_renderer(self) -> ChatRenderer:
        """Return the renderer of the chat template. Raises ConfigError for an invalid template."""
        where = TEMPLATE if self.files.chat_template else "trainrig's chat template"
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
