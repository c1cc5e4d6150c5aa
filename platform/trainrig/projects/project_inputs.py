"""The data and the model of a new project, matched with what its kind needs."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig import config, storage
from trainrig.errors import ConfigError, DataError
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.projects.found_data import FoundData, TextAmount, find_data, name_source
from trainrig.projects.project_kinds import KIND_FOR, KINDS, NEEDED, ROLES, WITH_MODEL, Kind, Role
from trainrig.projects.row_roles import EXAMPLES, NOUNS, Columns


@dataclass(frozen=True)
class Source:
    """Files with one role in the project, their amount of text, and a name for their rows."""

    name: str
    role: Role
    found: FoundData
    amount: TextAmount

    @property
    def columns(self) -> Columns:
        """The columns of the role's fields."""
        return self.found.roles[self.role]

    def describe(self) -> str:
        """Return one line on what the files hold."""
        return self.found.describe(self.role, self.amount)


@dataclass(frozen=True)
class GivenModel:
    """A Hugging Face folder to start from."""

    folder: str  # absolute
    config: DecoderConfig

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return count_parameters(self.config).total


@dataclass(frozen=True)
class Inputs:
    """Everything that decides the files of a project."""

    kind: Kind
    sources: tuple[Source, ...]
    model: GivenModel | None
    gpus: int

    def select(self, *roles: Role) -> tuple[Source, ...]:
        """Return the sources with one of `roles`."""
        return tuple(source for source in self.sources if source.role in roles)


def gather(kind: str, data: Sequence[str], model: str | None, gpus: int | None) -> Inputs:
    """Inspect the data and the model, and match them with what `kind` needs.

    Raises ConfigError, in one line, for anything that does not fit.
    """
    wanted = next((known for known in KINDS if known == kind), None)
    if wanted is None:
        raise ConfigError(f"init: no kind '{kind}'{config.suggest_choice(kind, KINDS)}")
    if model is not None and wanted not in WITH_MODEL:
        raise ConfigError(f"init {wanted}: starts from data alone; leave out --model")
    if not data:
        example = EXAMPLES[NEEDED[wanted]]
        raise ConfigError(
            f"init {wanted}: needs --data PATH with {NOUNS[NEEDED[wanted]]}: {example}"
        )
    given = open_given_model(model, wanted) if model else None
    found = find_data(data)
    chosen = [(held, _choose_role(wanted, held, given is not None)) for held in found]
    _check_needs(wanted, chosen, given is not None)
    taken: set[str] = set()
    sources = tuple(
        Source(name_source(held, taken), role, held, held.measure(role)) for held, role in chosen
    )
    for source in sources:
        if not source.amount.rows or not source.amount.bytes:
            raise ConfigError(f"--data {source.found.name}: holds no text; give rows with text")
    return Inputs(wanted, sources, given, count_gpus() if gpus is None else gpus)


def _choose_role(kind: Kind, found: FoundData, with_model: bool) -> Role:
    wanted = WITH_MODEL[kind] if with_model else ROLES[kind]
    role = next((role for role in wanted if role in found.roles), None)
    if role is not None:
        return role
    has = next(iter(found.roles))
    if with_model and has in ROLES[kind]:
        raise ConfigError(
            f"--data {found.name}: holds {NOUNS[has]}, which `init {kind}` uses only to train a "
            "new model; leave it out, or leave out --model"
        )
    raise ConfigError(
        f"--data {found.name}: holds {NOUNS[has]}, which `init {kind}` has no use for; use "
        f"`trainrig init {KIND_FOR[has]}`, or give {NOUNS[NEEDED[kind]]}: {EXAMPLES[NEEDED[kind]]}"
    )


def _check_needs(kind: Kind, chosen: Sequence[tuple[FoundData, Role]], with_model: bool) -> None:
    roles = {role for _, role in chosen}
    there = ", ".join(f"{found.name} ({NOUNS[role]})" for found, role in chosen)
    need = NEEDED[kind]
    texts: set[Role] = {"documents", "pages"}
    if need not in roles and not (need in texts and roles & texts):
        raise ConfigError(
            f"init {kind}: found {there}, but no {NOUNS[need]}; add --data PATH with rows such as "
            f"{EXAMPLES[need]}"
        )
    if not with_model and not roles & texts:
        raise ConfigError(
            f"init {kind}: found {there}, but no documents to train a new model on; add --data "
            "PATH with documents, or --model HF_DIR with a model to start from"
        )


def open_given_model(folder: str, kind: Kind) -> GivenModel:
    """Return the model in a Hugging Face folder, of which only config.json is read.

    Raises ConfigError if there is none, or if it does not suit `kind`.
    """
    from trainrig.models.families import read_config
    from trainrig.tokens.special_tokens import MODEL_CONFIG

    place = storage.make_absolute(folder)
    path = storage.join(place, MODEL_CONFIG)
    if not storage.exists(path):
        name = folder.rstrip("/")
        download = f"`hf download {name} --local-dir {name.rpartition('/')[2]}`"
        known = bool(storage.list_files(place))
        raise ConfigError(
            f"--model {folder}: "
            + (
                f"no {MODEL_CONFIG} there; name a folder of Transformers' save_pretrained, or one "
                "that `trainrig export` wrote"
                if known
                else f"no such folder in {Path.cwd()}; to download a model, run {download}"
            )
        )
    try:
        _, model = read_config(_read_object(path), path)
    except DataError as error:
        raise ConfigError(f"--model {error}") from None
    encodes = model.bidirectional and not isinstance(model, EncoderDecoderConfig)
    if isinstance(model, EncoderDecoderConfig) or encodes != (kind == "encoder"):
        wanted = "an encoder, such as ModernBERT" if kind == "encoder" else "a decoder, as Llama is"
        raise ConfigError(f"--model {folder}: `init {kind}` needs {wanted}")
    return GivenModel(place, model)


def _read_object(path: str) -> dict[str, Any]:
    """Return the JSON object at `path`. Raises ConfigError if it is not one."""
    try:
        value = json.loads(storage.read(path))
    except ValueError as error:
        raise ConfigError(f"--model {path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"--model {path}: not a JSON object; download the model again")
    return value


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine, by the driver's list."""
    listed = Path("/proc/driver/nvidia/gpus")
    return len(list(listed.iterdir())) if listed.is_dir() else 0


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
