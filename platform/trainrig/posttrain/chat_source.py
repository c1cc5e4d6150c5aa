"""The tokenizer and the chat template of the model at hand, wherever it lies."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.tokens.chat.rendering import ChatRenderer
from trainrig.tokens.chat.template import build_template
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.special_tokens import (
    MAP,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TokenizerFiles,
)
from trainrig.train import checkpoint


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with the files it came with, and what its chat template may name besides. May be
    pickled."""

    files: TokenizerFiles
    variables: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The tokenizer."""
        return Encoder.of(self.files)

    @functools.cached_property
    def template(self) -> str:
        """The chat template: ours where none came. Raises DataError for a tokenizer that lacks the
        special tokens of ours."""
        return self.files.chat_template or build_template(self.encoder)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the template and of what it may name."""
        named = json.dumps({k: str(v) for k, v in self.named.items()}, sort_keys=True)
        return hashlib.sha256(f"{self.template}\0{named}".encode()).hexdigest()

    @functools.cached_property
    def named(self) -> dict[str, Any]:
        """What the template may name: the tokens that the files name, and `variables`."""
        given = self.files.parse_json(MAP) | self.files.parse_json(TOKENIZER_CONFIG)
        tokens = {
            name: value["content"] if isinstance(value, Mapping) else value
            for name, value in given.items()
            if name.endswith("_token") and isinstance(value, str | Mapping)
        }
        return tokens | dict(self.variables)

    def build_renderer(self) -> ChatRenderer:
        """What renders by it. Raises ConfigError for a template that cannot work."""
        where = TEMPLATE if self.files.chat_template else "trainrig's chat template"
        return ChatRenderer(self.encoder, self.template, self.named, where)


def open_chat_tokenizer(
    path: str, template: str | None = None, variables: Mapping[str, Any] | None = None
) -> ChatTokenizer:
    """The tokenizer at `path`: a folder with a tokenizer.json, a run folder or a checkpoint.

    `template`: a file to take in place of the template that lies there. Raises DataError for a
    tokenizer that is not there, ConfigError for a template that is not or that cannot work.
    """
    files = find_tokenizer_files(path)
    if template is not None:
        if not storage.exists(template):
            raise ConfigError(f"template: {template}: no such file; name a file of Jinja")
        text = storage.read(template).decode()
        files = replace(files, beside={**files.beside, TEMPLATE: text})
    found = ChatTokenizer(files, dict(variables or {}))
    found.build_renderer()  # a template that cannot work is refused before any row is read
    return found


def find_tokenizer_files(path: str) -> TokenizerFiles:
    """The tokenizer at `path`: a folder with a tokenizer.json, a run folder or a checkpoint. Raises
    DataError for one that is not there."""
    if storage.exists(storage.join(path, TOKENIZER)):
        return TokenizerFiles.read(path)
    return checkpoint.read_tokenizer_files(checkpoint.resolve(path))
