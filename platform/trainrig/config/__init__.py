"""Run files: TOML, differences only, read into frozen pydantic models.

A model is the whole truth about its part: every default stands in it, beside its unit and its
source. A choice is a union whose members carry a `kind`; that union is the registry. The loader
adds what pydantic does not know: the file, the line, the path of the key, the nearest name.
"""

import copy
import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from trainrig import storage
from trainrig.config.field_marks import (
    CACHE,
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    Extendable,
    NotIdentity,
)
from trainrig.config.key_lines import Location, find_line, format_location
from trainrig.config.key_places import describe_places
from trainrig.config.overrides import set_key
from trainrig.config.resource_request import ResourceRequest
from trainrig.config.toml_text import format_toml_value, to_toml
from trainrig.errors import ConfigError
from trainrig.storage import utf8

ProgressUnit = Literal["steps", "splits", "trials", "none"]


class Settings(BaseModel):
    """One part of a run file: frozen, strict about types, closed to unknown keys.

    Annotate a field with `NOT_IDENTITY` (`workers: Annotated[int, NOT_IDENTITY] = 2`) when the
    result does not depend on it: paths, whose contents are fingerprinted instead, and numbers of
    workers. A path that is written is marked `OUTPUT` instead, or `CACHE`. With `EXTENDABLE` when
    it speaks of what is still to come: a run that is not finished may go on under another value, if
    its stage finds that nothing done so far depends on the change.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            for key in given:
                if key not in cls.model_fields:
                    hint = suggest_choice(str(key), cls.model_fields)
                    message = f"no key '{key}' in {cls.__name__}{hint}"
                    context = {"message": message, "key": str(key)}
                    raise PydanticCustomError("unknown_key", "{message}", context)
        return given


class RunFile(Settings):
    """A whole run file, and with it the contract of the verb that takes it: all that the command
    line, `check`, `submit` and the followers of a run know of the verb.

    `stage` names the verb, so `check` needs to be told nothing. Each run file has one `output`,
    marked OUTPUT; its other paths are inputs, outputs or caches by their marks.
    """

    stage: str  # the command that this file is for; another one refuses it
    if TYPE_CHECKING:  # each says in its own words what lies there
        output: str
    verb: ClassVar[str]
    resumes: ClassVar[bool] = False  # goes on with what a stopped one left; else it begins again
    trains: ClassVar[bool] = False  # its output is a run folder, with steps and checkpoints
    # Whether a finished output may be extended, by fields marked EXTENDABLE.
    extends_finished: ClassVar[bool] = False
    # What its function tells while it runs: steps are followed in the run folder, the others told
    # through its keyword `progress` (splits) or `show` (trials).
    progress: ClassVar[ProgressUnit] = "none"
    # MODULE:NAME of a function of the run and a DeviceChoice, for facts before it starts; empty:
    # none are known. It imports what it needs when it is called, and no torch.
    estimate: ClassVar[str] = ""
    estimates_cost: ClassVar[bool] = False  # those facts have what it takes, before inputs are read
    # Of what the verb writes: count up where the same run file and inputs give other bytes.
    output_format: ClassVar[int] = 1

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """What it needs of a cluster; here nothing: all is done beside its supervisor."""
        return ResourceRequest.on_cores(0)

    def total_steps(self) -> int | None:
        """Updates to make in all; None: it has no steps."""
        return None


Model = TypeVar("Model", bound=Settings)
Run = TypeVar("Run", bound=RunFile)


def suggest_choice(name: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """`; did you mean 'x'?` for the nearest of `choices`, or the choices when none is near."""
    names = list(choices)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(sorted(names))}" if names else ""


def load(model: type[Run], path: str, overrides: Sequence[str] = ()) -> Run:
    """The run that the TOML file at `path` describes, changed by `overrides` (`"a.b=value"`).

    Raises ConfigError, one line, for whatever cannot work.
    """
    text = read_text(path)
    data = parse(text, path)
    stage = data.get("stage")
    if stage != model.verb:
        found = "no `stage`" if stage is None else f'`stage = "{stage}"`'
        raise ConfigError(
            f"{path}: {found}, so this is no run file for `{model.verb}`; "
            + (f"use `trainrig {stage} {path}`" if stage else f'write `stage = "{model.verb}"`')
        )
    if not overrides:
        return build(model, data, path, text)
    try:
        return _validate(model, _apply_overrides(data, overrides))
    except ValidationError as error:
        raise ConfigError(_explain_changed(model, error, data, overrides, path, text)) from None


def _apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(data))
    for override in overrides:
        set_key(changed, override)
    return changed


def _explain_changed(
    model: type[Run],
    error: ValidationError,
    data: Mapping[str, Any],
    overrides: Sequence[str],
    path: str,
    text: str,
) -> str:
    """What is wrong in the end: with the last change that it came with, or with the file."""

    def first_fault(count: int) -> tuple[Any, str] | None:
        try:
            _validate(model, _apply_overrides(data, overrides[:count]))
        except ValidationError as found:
            return _find_fault(found)
        return None

    changed = _apply_overrides(data, overrides)
    for count in reversed(range(len(overrides))):
        if first_fault(count) != _find_fault(error):
            return _explain(model, error, changed, f"--set {overrides[count]}", "")
    return _explain(model, error, changed, path, text)


def _find_fault(error: ValidationError) -> tuple[Any, str]:
    """Where the first thing is that is wrong, and what it is."""
    first = error.errors()[0]
    return first["loc"], first["msg"]


def read_text(path: str, what: str = "run file") -> str:
    """The text of a run file, or of `what` else is TOML. Raises ConfigError if there is none."""
    try:
        return utf8.decode(storage.read(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such {what}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name the {what} in it") from None
    except utf8.NotUtf8 as error:
        raise ConfigError(f"{path}: {error}; a {what} is TOML") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def parse(text: str, path: str) -> dict[str, Any]:
    """The TOML tables of `text`. Raises ConfigError naming `path` and the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def build(model: type[Model], data: Mapping[str, Any], path: str, text: str = "") -> Model:
    """A `model` from TOML tables. Raises ConfigError for the first thing wrong with them."""
    try:
        return _validate(model, data)
    except ValidationError as error:
        raise ConfigError(_explain(model, error, data, path, text)) from None


def _validate(model: type[Model], data: Mapping[str, Any]) -> Model:
    return model.model_validate(_freeze(data))


def _freeze(value: Any) -> Any:
    """TOML's arrays as tuples: frozen models hold no lists, and strict ones take none for them."""
    if isinstance(value, Mapping):
        return {key: _freeze(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_freeze(item) for item in value)
    return value


# What pydantic calls by Python's names, in TOML's.
_IN_TOML = {
    "model_type": "should be a table",
    "model_attributes_type": "should be a table",
    "dict_type": "should be a table",
    "tuple_type": "should be an array",
}


def _explain(
    model: type[Settings], error: ValidationError, data: Mapping[str, Any], path: str, text: str
) -> str:
    first = error.errors()[0]
    location = _drop_tags(first["loc"], data)
    message = first["msg"]
    context = first.get("ctx", {})
    at_fault = {"unknown_key": context.get("key"), "union_tag_invalid": "kind"}.get(first["type"])
    line = find_line(text, (*location, at_fault) if at_fault else location)
    if first["type"] == "union_tag_invalid":
        choices = re.findall(r"'([^']+)'", str(context["expected_tags"]))
        message = f"no kind '{context['tag']}'{suggest_choice(str(context['tag']), choices)}"
    elif first["type"] == "union_tag_not_found":
        message = "no `kind` says which one this is"
    elif first["type"] == "missing":
        message = f"`{location[-1]}` is missing"
        location = location[:-1]
    elif first["type"] == "literal_error":
        choices = re.findall(r"'([^']+)'", str(context["expected"]))
        found = first["input"]
        message = f"{found!r} is none of {', '.join(choices)}{_suggest_near_choice(found, choices)}"
    elif first["type"] == "unknown_key":
        if elsewhere := describe_places(model, str(context["key"])):
            message = message.partition("; ")[0] + elsewhere
    elif first["type"] == "value_error":
        message = message.removeprefix("Value error, ")
    else:
        message = _IN_TOML.get(first["type"], f"{message[0].lower()}{message[1:]}")
        message += f", found {_shorten_value(first['input'])}"
    at = f"{path}:{line}" if line else path
    key = format_location(location)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{at}: {key}: {message}{more}" if key else f"{at}: {message}{more}"


def _suggest_near_choice(found: Any, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(found), choices, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def _shorten_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _drop_tags(location: Location, data: Any) -> Location:
    """pydantic puts a union's chosen `kind` into the path; a run file has no such key."""
    kept: list[str | int] = []
    for part in location:
        if isinstance(data, Mapping) and part not in data and data.get("kind") == part:
            continue
        kept.append(part)
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
    return tuple(kept)


def extract_identity(settings: Settings, extendable: bool = True) -> dict[str, Any]:
    """What of `settings` the result depends on: all but the fields marked NOT_IDENTITY (or
    OUTPUT, or CACHE), as plain JSON.

    Without `extendable`, also without those marked EXTENDABLE: what cannot change while a run goes
    on.
    """
    left_out = NotIdentity if extendable else (NotIdentity, Extendable)
    return {
        name: _extract_identity_of_value(getattr(settings, name), extendable)
        for name, field in type(settings).model_fields.items()
        if not any(isinstance(mark, left_out) for mark in field.metadata)
    }


def _extract_identity_of_value(value: Any, extendable: bool) -> Any:
    if isinstance(value, Settings):
        return extract_identity(value, extendable)
    if isinstance(value, list | tuple):
        return [_extract_identity_of_value(item, extendable) for item in value]
    if isinstance(value, Mapping):
        return {key: _extract_identity_of_value(item, extendable) for key, item in value.items()}
    return value


__all__ = [
    "CACHE",
    "EXTENDABLE",
    "NOT_IDENTITY",
    "OUTPUT",
    "Field",
    "ProgressUnit",
    "ResourceRequest",
    "RunFile",
    "Settings",
    "build",
    "extract_identity",
    "find_line",
    "format_location",
    "format_toml_value",
    "load",
    "parse",
    "read_text",
    "set_key",
    "suggest_choice",
    "to_toml",
]
