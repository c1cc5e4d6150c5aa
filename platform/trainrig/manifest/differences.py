"""Differences between two claims, or two tables of plain JSON, in words."""

from collections.abc import Mapping
from typing import Any

from trainrig.manifest.records import Claim


def describe_difference(there: Claim, here: Claim) -> str:
    """Describe the first differences between two claims."""
    if there.stage != here.stage:
        return f"by `{there.stage}`, not `{here.stage}`"
    inputs = [
        f"input `{role}` has other contents"
        for role in sorted({*there.inputs, *here.inputs})
        if there.inputs.get(role) != here.inputs.get(role)
    ]
    formats = (
        [f"output format {there.output_format} there, {here.output_format} here"]
        if there.output_format != here.output_format
        else []
    )
    return _join_few([*formats, *_list_differences(there.config, here.config), *inputs])


def describe_table_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Describe the first differences between two tables of plain JSON; empty if they are equal."""
    return _join_few(_list_differences(there, here))


def _list_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    old = _flatten(there)
    new = _flatten(here)
    return [
        f"{key}: {_format_value(old, key)} there, {_format_value(new, key)} here"
        for key in sorted({*old, *new})
        if _format_value(old, key) != _format_value(new, key)
    ]


def _join_few(differences: list[str]) -> str:
    return "; ".join(differences[:3]) + ("; …" if len(differences) > 3 else "")


def _format_value(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def _flatten(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        pairs = [(f"{key}.{name}" if key else name, inner) for name, inner in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        pairs = []
    if not pairs:  # a value, or an empty table or array
        return {key: value}
    return {path: leaf for name, inner in pairs for path, leaf in _flatten(inner, name).items()}
