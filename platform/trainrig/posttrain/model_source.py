"""Search for a starting model, or for a tokenizer and its chat template, at any kind of path."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.special_tokens import TEMPLATE_FILE, TOKENIZER, TokenizerFiles
from trainrig.train import checkpoint

# Suffix of the folder beside the run folder that holds an imported Hugging Face model.
IMPORTED = ".start"


def is_hub_folder(path: str) -> bool:
    """Return whether `path` is a model in the Hugging Face format."""
    return storage.exists(storage.join(path, "config.json"))


def open_initial_model(path: str, output: str) -> str:
    """Return the newest checkpoint at `path`: a run, a checkpoint or a Hugging Face folder.

    A Hugging Face folder is imported once, into a folder beside the run folder `output`, because a
    run folder must be empty before its first claim. Raises DataError if `path` is none of the
    three.
    """
    if not is_hub_folder(path):
        return checkpoint.resolve(path)
    imported = output.rstrip("/") + IMPORTED
    try:
        return checkpoint.resolve(imported)
    except DataError:  # not imported yet, or only in part
        # Imported here, so that a start from a checkpoint does not wait for torch.
        from trainrig.posttrain.huggingface.model_folders import import_checkpoint

        import_checkpoint(path, imported, keep=True)
    return checkpoint.resolve(imported)


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
