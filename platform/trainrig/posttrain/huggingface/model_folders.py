"""Conversion of checkpoints to Hugging Face folders and back, including their other files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from trainrig import storage
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.models.added_tokens import add_special_tokens
from trainrig.models.architecture.decoder_config import count_parameters
from trainrig.models.encoder import read_generator_tensor
from trainrig.models.families.mapping import find_dropouts
from trainrig.models.huggingface import HubFolder, HubModel, open_folder, write_folder
from trainrig.storage.schemes import find_backend
from trainrig.storage.writable import check_folder
from trainrig.tokens.chat import TEMPLATE
from trainrig.tokens.special_tokens import MODEL_CONFIG, find_special_tokens
from trainrig.train import checkpoint
from trainrig.train.checkpoint.model_parents import (
    PARENTS,
    find_exported_parents,
    record_parents,
)

# Files of an import, and hidden ones that are being written.
_IMPORTED = re.compile(
    rf"attempts/\.?\d+[^/]*|checkpoints/step_\d+/attempt-\d+/.+|\.?{re.escape(PARENTS)}[^/]*"
)


def export_checkpoint(
    path: str, out: str, settings: HubFolder, generator: bool = False, keep: bool = False
) -> dict[str, Any]:
    """Write the newest checkpoint at `path` as the Hugging Face folder `out`; return facts.

    `generator` exports the generator that was trained with a replaced-token detector instead of the
    detector. Raises ConfigError if the model has none. `keep` leaves a folder unchanged that holds
    exactly this model already; without it, such a folder is refused as any other.

    Weights, README.md and changed keys of config.json are written anew. Every other file is the one
    that the model was imported with.
    """
    check_folder(out)
    stored = checkpoint.StoredModel(path)
    config = stored.config.without_generator
    read = stored.read
    if generator:
        if (beside := stored.config.generator_model) is None:
            raise ConfigError(
                f"export --generator: {stored.path} is {config.description} without a "
                "generator; leave --generator out, or name a run with objective "
                "ReplacedTokenDetection"
            )
        config = beside
        read = partial(read_generator_tensor, stored.read)
    family = write_folder(out, config, read, stored.files, settings, TEMPLATE, keep)
    record_parents(out, "export", {"checkpoint": stored.path})
    return {
        "output": out,
        "checkpoint": stored.path,
        "step": stored.step,
        "family": family.model_type,
    }


def import_checkpoint(
    folder: str,
    out: str,
    roles: Mapping[str, str] | None = None,
    added: Sequence[str] = (),
    keep: bool = False,
) -> dict[str, Any]:
    """Write the Hugging Face folder `folder` as step 0 of the run folder `out`.

    `roles` maps roles to special tokens where the folder's files do not define them; `added` are
    special tokens to add to the model. Nothing is written unless the whole import succeeds. With
    `keep`, a folder that holds exactly this import is left unchanged, and an import that was killed
    is started over; without it, a folder that is not empty is refused.
    """
    check_folder(out)
    taken = storage.find_first(out) is not None
    if taken and not keep:
        raise OutputTaken(f"{out}: not empty; name a new folder")
    model = add_special_tokens(open_folder(folder), added)
    if roles:
        model = replace(model, files=model.files.with_roles(roles))
    special = find_special_tokens(model.files)
    files = model.files
    config = model.config
    path = _find_import(out, model) if taken else None
    if path is None:
        try:
            record_parents(out, "import", {}, find_exported_parents(folder))
            path = checkpoint.write_model(out, config, files.tokenizer, model.tensors, files.beside)
        # Also after an interrupt: a partial folder would be refused as not empty.
        except BaseException:
            storage.delete_folder(out)
            raise
    return {
        "output": out,
        "checkpoint": path,
        "parameters": count_parameters(config).total,
        "vocabulary": config.shape.vocabulary,
        "special_tokens": {
            role: None if token is None else token.text
            for role, token in (
                ("begin", special.begin),
                ("end", special.end),
                ("pad", special.pad),
                ("end_of_turn", special.end_of_turn),
            )
        },
        "dropouts_left_out": find_dropouts(files.parse_json(MODEL_CONFIG) or {}),
    }


def _find_import(out: str, model: HubModel) -> str | None:
    """Return the checkpoint in `out` if it is an import of `model`.

    Returns None, with `out` deleted, if the folder holds nothing but an import that was killed.
    Raises OutputTaken for anything else.
    """
    try:
        stored = checkpoint.StoredModel(out)
    except DataError:
        there = storage.resolve(out).rstrip("/") + "/"
        found = find_backend(out).list_files(there)  # hidden ones too: all are deleted
        if all(_IMPORTED.fullmatch(path.removeprefix(there)) for path in found):
            storage.delete_folder(out)
            return None
        raise OutputTaken(f"{out}: not empty; name a new folder") from None
    files = stored.files
    same_files = (files.tokenizer, files.beside) == (model.files.tokenizer, model.files.beside)
    same = stored.step == 0 and stored.config == model.config and same_files
    if not same or not all(
        torch.equal(stored.read(name), tensor.read().float())
        for name, tensor in model.tensors.items()
    ):
        raise OutputTaken(f"{out}: already holds another model; name a new folder")
    return stored.path
