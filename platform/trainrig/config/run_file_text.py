"""The TOML text of run files: lines and places of keys, changes of keys by `--set`, and writing.

A misplaced key is reported with its line, and with the tables that it belongs to.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from trainrig.errors import ConfigError

Location = tuple[str | int, ...]

_TABLE = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\-\"']+)\s*=")


def find_line(text: str, location: Location) -> int | None:
    """Find the line of `text`, counted from 1, that holds the key at `location`.

    Returns the line of the innermost table that contains the key if the key itself is not written,
    and None if no such table is written either.
    """
    wanted = _convert_to_names(location)
    counts: dict[str, int] = {}
    table: list[str] = []
    best: tuple[int, int] | None = None  # (parts matched, line)
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _parse_header(header, counts)
            here = table
        elif key := _KEY.match(line):
            here = [*table, *(name.strip("\"'") for name in key.group(1).split("."))]
        else:
            continue
        matched = min(len(here), len(wanted))
        if here[:matched] == wanted[:matched] and matched > (best[0] if best else 0):
            best = (matched, number)
    return best[1] if best else None


def _convert_to_names(location: Location) -> list[str]:
    return [str(part) for part in location]


def _parse_header(header: re.Match[str], counts: dict[str, int]) -> list[str]:
    path: list[str] = []
    names = [name.strip().strip("\"'") for name in header.group(2).split(".")]
    for depth, name in enumerate(names):
        path.append(name)
        key = ".".join(path)
        if depth == len(names) - 1 and header.group(1) == "[[":
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            path.append(str(counts[key]))
    return path


def format_location(location: Location) -> str:
    """Format the location `("filters", 0, "min_words")` as `filters[0].min_words`."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location).lstrip(".")


NAMED = 3  # maximum number of places that a message names


def describe_places(model: type[BaseModel], key: str) -> str:
    """Return `; it belongs under [a.b]`, naming the tables of `model` that have `key`.

    At most NAMED tables are named, and the others are counted. The text is empty if no table has
    the key.
    """
    found = sorted(
        set(_find_places(model, key, "", ())), key=lambda place: (place.count("."), place)
    )
    if not found:
        return ""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"; it belongs {' or '.join(found[:NAMED])}{more}"


def _find_places(
    model: type[BaseModel], key: str, at: str, above: tuple[type[BaseModel], ...]
) -> Iterator[str]:
    """Yield the places of `key` in `model` and its inner models.

    `above` are the enclosing models, so that a model that contains itself is visited only once.
    """
    if key in model.model_fields:
        yield f"under {at}" if at else "at the top level"
    for name, field in model.model_fields.items():
        for inner, form in _iterate_models(field.annotation):
            if inner not in (*above, model):
                table = form.format(f"{at.strip('[]')}.{name}".lstrip("."))
                yield from _find_places(inner, key, table, (*above, model))


def _iterate_models(annotation: Any, form: str = "[{}]") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield each model in a field's type, with the TOML form of its table's header."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, form
        return
    form = {tuple: "[[{}]]", dict: "[{}.NAME]"}.get(get_origin(annotation), form)
    for argument in get_args(annotation):
        yield from _iterate_models(argument, form)


def set_key(data: dict[str, Any], override: str) -> None:
    """Apply one `a.b=value` to TOML tables in place. Raises ConfigError.

    A value that is not valid TOML, such as a bare word, is taken as a string.
    """
    dotted, equals, raw = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: write it as --set a.b=value")
    table: Any = data
    for depth, key in enumerate(keys[:-1]):
        table = _step_into(table, key, f"--set {override}: {'.'.join(keys[: depth + 1])}")
    if isinstance(table, list):
        index = _index(table, keys[-1], f"--set {override}")
        table[index] = _parse_toml_or_word(raw.strip())
    else:
        table[keys[-1]] = _parse_toml_or_word(raw.strip())


def _parse_toml_or_word(raw: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    # A second key means that `raw` had another line.
    return parsed["value"] if len(parsed) == 1 else raw


def _step_into(table: Any, key: str, where: str) -> Any:
    if isinstance(table, list):
        inner = table[_index(table, key, where)]
    else:
        inner = table.setdefault(key, {})
    if not isinstance(inner, dict | list):
        raise ConfigError(
            f"{where} is a value ({inner!r}), not a table; set the whole value, or another key"
        )
    return inner


def _index(items: list[Any], key: str, where: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise ConfigError(f"{where}: '{key}' is no index of its {len(items)} entries (0, 1, …)")
    return int(key)


def to_toml(settings: BaseModel, changed: bool = False) -> str:
    """Convert `settings` to TOML with every default written out and marked `# default`.

    With `changed`, only keys whose values are not the default are written. `load` of either text
    gives an equal model. A key whose value is None is left out.
    """
    lines = _format_table_lines(settings, (), False, changed)
    return "\n".join(lines).lstrip("\n") + "\n"


def _format_table_lines(
    table: BaseModel | Mapping[str, Any], path: tuple[str, ...], default: bool, changed: bool
) -> list[str]:
    """Return the lines below the header of `table`, of its `changed` keys only or of all.

    `default` says that the enclosing table was not set, so that all values here are defaults.
    """
    if isinstance(table, BaseModel):
        items = {name: getattr(table, name) for name in type(table).model_fields}
        defaults = set(items) - (set() if default else table.model_fields_set)
    else:
        items = dict(table)
        defaults = set(items) if default else set()
    lines, below = [], []
    for name, value in items.items():
        if value is None or (changed and equals_default(table, name)):
            continue
        inner = (*path, _format_key(name))
        unset = name in defaults
        if isinstance(value, BaseModel | Mapping):
            below += [
                "",
                f"[{'.'.join(inner)}]",
                *_format_table_lines(value, inner, unset, changed),
            ]
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel | Mapping):
            for item in value:
                below += [
                    "",
                    f"[[{'.'.join(inner)}]]",
                    *_format_table_lines(item, inner, unset, changed),
                ]
        else:
            note = "  # default" if unset and not changed else ""
            lines.append(f"{_format_key(name)} = {format_toml_value(value)}{note}")
    return lines + below


def equals_default(table: BaseModel | Mapping[str, Any], name: str) -> bool:
    """Return whether the key `name` of `table` has its default; `kind` chooses and never has."""
    if not isinstance(table, BaseModel) or name in ("kind", "stage"):
        return False
    field = type(table).model_fields[name]
    return not field.is_required() and bool(
        getattr(table, name) == field.get_default(call_default_factory=True, validated_data={})
    )


def _format_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _format_string(name)


def format_toml_value(value: Any) -> str:
    """Format one value in TOML's syntax. Raises TypeError for a type that TOML lacks."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _format_string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_toml_value(item) for item in value)}]"
    raise TypeError(f"no TOML for {value!r}")


def _format_string(text: str) -> str:
    # JSON and TOML use the same escapes, except that TOML also escapes DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
