"""Conversion of pydantic models to TOML text."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def to_toml(settings: BaseModel) -> str:
    """Convert `settings` to TOML with every default written out and marked `# default`.

    `load` of the result gives an equal model. A key whose value is None is left out.
    """
    return "\n".join(_format_table_lines(settings, (), False)).lstrip("\n") + "\n"


def _format_table_lines(
    table: BaseModel | Mapping[str, Any], path: tuple[str, ...], default: bool
) -> list[str]:
    """Return the lines below the header of `table`.

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
        if value is None:
            continue
        inner = (*path, _format_key(name))
        unset = name in defaults
        if isinstance(value, BaseModel | Mapping):
            below += ["", f"[{'.'.join(inner)}]", *_format_table_lines(value, inner, unset)]
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel | Mapping):
            for item in value:
                below += ["", f"[[{'.'.join(inner)}]]", *_format_table_lines(item, inner, unset)]
        else:
            note = "  # default" if unset else ""
            lines.append(f"{_format_key(name)} = {format_toml_value(value)}{note}")
    return lines + below


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
