"""Search for the tokenizer and the chat template of a model at any kind of path."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.special_tokens import (
    TEMPLATE_FILE,
    TOKENIZER,
    TokenizerFiles,
)
from trainrig.train import checkpoint


def open_chat_tokenizer(
    path: str, template: str | None = None, variables: Mapping[str, Any] | None = None
) -> ChatTokenizer:
    """Open the chat tokenizer at `path`: a tokenizer folder, run folder or checkpoint.

    `template` is a file that replaces the chat template found there. Raises DataError if there is
    no tokenizer, and ConfigError if the template is missing or invalid.
    """
    files = find_tokenizer_files(path)
    if template is not None:
        if not storage.exists(template):
            raise ConfigError(
                f"template: {template}: no such file; name a file with a Jinja template"
            )
        text = storage.read(template).decode()
        files = replace(files, beside={**files.beside, TEMPLATE_FILE: text})
    found = ChatTokenizer(files, dict(variables or {}))
    found.build_renderer()  # Refuses an invalid template before any row is read.
    return found


def find_tokenizer_files(path: str) -> TokenizerFiles:
    """Read the tokenizer files at `path`: a tokenizer folder, run folder or checkpoint.

    Raises DataError if there are none.
    """
    if storage.exists(storage.join(path, TOKENIZER)):
        return TokenizerFiles.read(path)
    return checkpoint.read_tokenizer_files(checkpoint.resolve(path))
