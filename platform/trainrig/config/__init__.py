"""Loading of run files: TOML that is validated by frozen pydantic models.

A run file holds only the keys that differ from their defaults. Each model documents its table:
every default is written there, with its unit and source. A choice is a union whose members have a
`kind` field; the union is the registry. The loader adds to pydantic's errors the file, the line,
the path of the key and the nearest valid name.

`with_absolute_paths` converts a run file's paths to absolute ones, which mean the same in any
directory.
"""

import copy
import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from trainrig import storage
from trainrig.config.field_marks import (
    ADDED_LATER,
    CACHE,
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    Extendable,
    NotIdentity,
)
from trainrig.config.resource_request import ResourceRequest
from trainrig.config.run_file_text import (
    Location,
    describe_places,
    equals_default,
    find_line,
    format_location,
    format_toml_value,
    set_key,
    to_toml,
)
from trainrig.errors import ConfigError
from trainrig.storage.missing_folders import describe_origin

__all__ = [
    "CACHE",
    "EXTENDABLE",
    "NOT_IDENTITY",
    "OUTPUT",
    "Field",
    "Model",
    "ProgressUnit",
    "ResourceRequest",
    "Run",
    "RunFile",
    "Settings",
    "SomeSettings",
    "build",
    "extract_identity",
    "find_line",
    "find_path_fields",
    "format_location",
    "format_toml_value",
    "list_fields",
    "load",
    "parse",
    "read_text",
    "set_key",
    "suggest_choice",
    "to_toml",
    "with_absolute_paths",
]


ProgressUnit = Literal["steps", "splits", "trials", "none"]


class Settings(BaseModel):
    """Base model of a run file's tables: frozen, strict about types, closed to unknown keys.

    Annotate a field with `NOT_IDENTITY` (`workers: Annotated[int, NOT_IDENTITY] = 2`) if the result
    does not depend on its value. Such fields are paths, whose contents are fingerprinted instead,
    and numbers of workers. Mark a path that the run writes as `OUTPUT` or `CACHE` instead. Annotate
    a field with `EXTENDABLE` if an unfinished run may resume with another value, provided that its
    stage finds that nothing done so far depends on the change. Annotate a field that a released
    version lacks with `ADDED_LATER` (in `field_marks`), with a default that computes the same as
    that version.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _resolve_local_urls(cls, given: Any) -> Any:
        """Replace `file://` locations by paths, so that both name the same run."""
        if not isinstance(given, Mapping):
            return given
        paths = find_path_fields(cls)
        return {k: _map_paths(v, _resolve) if k in paths else v for k, v in given.items()}

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
    """Base model of a whole run file, and description of the verb that takes the file.

    The class variables are all that the command line, `check`, `submit` and the monitors of a run
    know about the verb. `stage` names the verb, so `check` needs no further argument. Each run file
    has one `output`, marked OUTPUT. The marks on its other paths say whether they are inputs,
    outputs or caches.
    """

    stage: str  # the command that this file is for; any other command refuses the file
    if TYPE_CHECKING:  # each subclass declares and documents its `output`
        output: str
    verb: ClassVar[str]
    resumes: ClassVar[bool] = False  # True if the verb resumes a stopped run; False: it starts over
    trains: ClassVar[bool] = False  # True if the output is a run folder with steps and checkpoints
    # True if a finished output may be extended by fields marked EXTENDABLE.
    extends_finished: ClassVar[bool] = False
    # Unit in which the verb reports progress. Steps are read from the run folder, splits are
    # reported through the verb's keyword `progress`, trials through its keyword `show`.
    progress: ClassVar[ProgressUnit] = "none"
    # MODULE:NAME of a function that takes the run and a DeviceChoice, and returns facts known
    # before the start. Empty if there is none. The function imports lazily, and never torch.
    estimate: ClassVar[str] = ""
    # True if the facts include the cost of the run, computed without reading inputs.
    estimates_cost: ClassVar[bool] = False
    # Version of the verb's output: increase it when the same run file and inputs give other bytes.
    output_format: ClassVar[int] = 1

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return the cluster resources of the run: none by default, all work runs in the driver."""
        return ResourceRequest.on_cores(0)

    def total_steps(self) -> int | None:
        """Return the total number of optimizer steps, or None if the verb has no steps."""
        return None


Model = TypeVar("Model", bound=Settings)
Run = TypeVar("Run", bound=RunFile)


def suggest_choice(name: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """Return `; did you mean 'x'?` for the nearest of `choices`, or list them if none is near."""
    names = list(choices)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(sorted(names))}" if names else ""


def load(model: type[Run], path: str, overrides: Sequence[str] = ()) -> Run:
    """Load the run file at `path`, and apply `overrides` of the form `"a.b=value"` in order.

    Raises ConfigError with a message of one line if the file or an override is invalid.
    """
    text = read_text(path)
    data = parse(text, path)
    stage = data.get("stage")
    if stage != model.verb:
        found = "no `stage`" if stage is None else f'`stage = "{stage}"`'
        raise ConfigError(
            f"{path}: {found}, so this is not a run file for `{model.verb}`; "
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
    """Describe the error after all overrides, blaming the override that caused it, or the file."""

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
    """Return the location and the message of the first validation error."""
    first = error.errors()[0]
    return first["loc"], first["msg"]


def read_text(path: str, what: str = "run file") -> str:
    """Read the text of a TOML file, which messages call `what`. Raises ConfigError."""
    try:
        return storage.decode_utf8(storage.read(path))
    except FileNotFoundError:
        origin = describe_origin(path)
        raise ConfigError(f"{path}: no such {what}{origin}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name the {what} in it") from None
    except storage.NotUtf8 as error:
        raise ConfigError(f"{path}: {error}; a {what} is TOML") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def parse(text: str, path: str) -> dict[str, Any]:
    """Parse `text` as TOML. Raises ConfigError that names `path` and the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if path.endswith((".yaml", ".yml", ".json")):
            raise ConfigError(
                f"{path}: run files are TOML; `trainrig init` writes some for your data, and "
                "`trainrig schema COMMAND` lists the keys"
            ) from None
        raise ConfigError(f"{path}: not TOML: {error}") from None


def build(model: type[Model], data: Mapping[str, Any], path: str, text: str = "") -> Model:
    """Build a `model` from TOML tables. Raises ConfigError for the first invalid key."""
    try:
        return _validate(model, data)
    except ValidationError as error:
        raise ConfigError(_explain(model, error, data, path, text)) from None


def _validate(model: type[Model], data: Mapping[str, Any]) -> Model:
    return model.model_validate(_freeze(data))


def _freeze(value: Any) -> Any:
    """Convert TOML arrays to tuples, because strict models accept no list for a tuple field."""
    if isinstance(value, Mapping):
        return {key: _freeze(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_freeze(item) for item in value)
    return value


# Messages in TOML's terms for pydantic errors that speak of Python types.
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
        message = "`kind` is missing; it selects the table's keys"
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
    """Drop the `kind` of a union, which pydantic adds to the location, but no run file has."""
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
    """Return the fields of `settings` that the result depends on, as plain JSON.

    These are all fields that are not marked NOT_IDENTITY, OUTPUT, CACHE or SHIPPED. If `extendable`
    is false, fields marked EXTENDABLE are left out too, and only fields remain that must not change
    before the run is finished. Fields marked ADDED_LATER are left out while they have their
    default.
    """
    left_out = NotIdentity if extendable else (NotIdentity, Extendable)
    return {
        name: _extract_identity_of_value(getattr(settings, name), extendable)
        for name, field in type(settings).model_fields.items()
        if not any(isinstance(mark, left_out) for mark in field.metadata)
        if ADDED_LATER not in field.metadata or not equals_default(settings, name)
    }


def _extract_identity_of_value(value: Any, extendable: bool) -> Any:
    if isinstance(value, Settings):
        return extract_identity(value, extendable)
    if isinstance(value, list | tuple):
        return [_extract_identity_of_value(item, extendable) for item in value]
    if isinstance(value, Mapping):
        return {key: _extract_identity_of_value(item, extendable) for key, item in value.items()}
    return value


SomeSettings = TypeVar("SomeSettings", bound=Settings)


def with_absolute_paths(run: SomeSettings) -> SomeSettings:
    """Return a copy of `run` with all paths absolute, in its inner tables too."""
    changed: dict[str, Any] = {}
    for name, value in list_fields(run):
        if name in find_path_fields(type(run)):
            new = _map_paths(value, lambda v: storage.make_absolute(v) if isinstance(v, str) else v)
        else:
            new = _map_paths(
                value, lambda v: with_absolute_paths(v) if isinstance(v, Settings) else v
            )
        if new != value:
            changed[name] = new
    return run.model_copy(update=changed) if changed else run


def list_fields(settings: Settings) -> list[tuple[str, Any]]:
    """Return the name and value of each field of `settings`."""
    return [(name, getattr(settings, name)) for name in type(settings).model_fields]


@functools.cache
def find_path_fields(model: type[Settings]) -> frozenset[str]:
    """Return the names of the fields of `model` that hold paths."""
    return frozenset(
        name
        for name, field in model.model_fields.items()
        if any(isinstance(mark, NotIdentity) for mark in field.metadata)
        if _holds_text(field.annotation)
    )


def _holds_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return False
    return annotation is str or any(map(_holds_text, get_args(annotation)))


def _resolve(value: Any) -> Any:
    return storage.resolve(value) if isinstance(value, str) else value


def _map_paths(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_map_paths(item, change) for item in value)
    if isinstance(value, Mapping):
        return {key: _map_paths(item, change) for key, item in value.items()}
    return change(value)
