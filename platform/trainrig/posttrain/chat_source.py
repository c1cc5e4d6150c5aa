"""Find the tokenizer and the chat template of the model at hand, wherever it lies."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.special_tokens import TEMPLATE, TOKENIZER, TokenizerFiles
from trainrig.train import checkpoint


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
