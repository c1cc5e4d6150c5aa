"""Checkpoints to Hugging Face folders and back, with all that they were brought with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from trainrig import storage
from trainrig.errors import ConfigError, OutputTaken
from trainrig.models.added_tokens import add_special_tokens
from trainrig.models.decoder_config import count_parameters
from trainrig.models.encoder.model import read_generator_tensor
from trainrig.models.families.mapping import find_dropouts
from trainrig.models.huggingface import HubFolder, open_folder, write_folder
from trainrig.storage.writable import check_folder
from trainrig.tokens.chat import TEMPLATE
from trainrig.tokens.special_tokens import MODEL_CONFIG, find_special_tokens
from trainrig.train import checkpoint


def export_checkpoint(
    path: str, out: str, settings: HubFolder, generator: bool = False
) -> dict[str, Any]:
    """Write the newest checkpoint at `path` as the Hugging Face folder `out`; what was written.

    `generator`: of a model that finds replaced tokens, what was trained with it to replace them.
    Raises ConfigError if it has none.

    All but weights, README.md and what changed of config.json is what the model was brought with.
    """
    check_folder(out)
    stored = checkpoint.StoredModel(path)
    config, read = stored.config.without_generator, stored.read
    if generator:
        if (beside := stored.config.generator_model) is None:
            raise ConfigError(
                f"export --generator: {stored.path} is {config.description} without a generator; "
                "leave it out, or name a run with objective ReplacedTokenDetection"
            )
        config, read = beside, partial(read_generator_tensor, stored.read)
    family = write_folder(out, config, read, stored.files, settings, TEMPLATE)
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
) -> dict[str, Any]:
    """Write the Hugging Face folder `folder` as step 0 of the run folder `out`.

    `roles` says which token plays which role, where the folder's files do not; `added` are special
    tokens that the model gets. Nothing is written unless all of it can be.
    """
    check_folder(out)
    if storage.list_files(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    model = add_special_tokens(open_folder(folder), added)
    if roles:
        model = replace(model, files=model.files.with_roles(roles))
    special = find_special_tokens(model.files)
    files, config = model.files, model.config
    try:
        path = checkpoint.write_model(out, config, files.tokenizer, model.tensors, files.beside)
    except BaseException:  # also when it is stopped: what is left would be refused as not empty
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
