"""Comparison of cluster files to JSON schemas.

Schemas are checked by jsonschema, which Ray depends on and uses for its own cluster files. Each
difference gets a message and the nearest choice.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema

from trainrig.config import suggest_choice
from trainrig.config.run_file_text import Location
from trainrig.launch.clusters.cluster_yaml import Found

MOST_CHOICES = 12  # names in one message at most


def suggest_nearest(name: str, choices: "list[str] | dict[str, Any]") -> str:
    """Return `; did you mean 'x'?`, or a list of the choices if there are few, or ""."""
    hint = suggest_choice(name, list(choices))
    return hint if len(choices) <= MOST_CHOICES or hint.startswith("; did you") else ""


Schema = Mapping[str, Any]

IN_YAML = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}
LONGEST = 60  # characters of a value to show


def find_differences(data: Any, schema: Schema, location: Location = ()) -> list[Found]:
    """Return all differences of `data`, found at `location`, from `schema`."""
    validator = jsonschema.Draft7Validator(schema)
    return list(_explain_errors(validator.iter_errors(data), location))


def _explain_errors(
    errors: Iterable[jsonschema.ValidationError], location: Location
) -> Iterator[Found]:
    for error in errors:
        yield from _explain(error, (*location, *error.absolute_path))


def _explain(error: jsonschema.ValidationError, at: Location) -> Iterator[Found]:
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    value = error.instance
    wanted = error.validator_value
    match error.validator:
        case "additionalProperties":
            names = list(schema.get("properties", {}))
            for key in value:
                if key not in names:
                    yield (*at, key), f"unknown key '{key}'{suggest_nearest(str(key), names)}"
        case "required":
            missing = [key for key in wanted if key not in value]
            # jsonschema gives one error per key, and names the key only in its message.
            name = next((key for key in missing if error.message.startswith(repr(key))), missing[0])
            yield at, f"`{name}` is missing"
        case "type":
            yield at, f"should be {_format_types(wanted)}, found {_format_value(value)}"
        case "enum":
            found = f"{_format_value(value)} is not one of the choices"
            yield at, found + suggest_nearest(str(value), [str(choice) for choice in wanted])
        case "minimum":
            yield at, f"{_format_value(value)} is less than {wanted}"
        case "pattern":
            yield at, f"{_format_value(value)} does not match the pattern {wanted}"
        case "anyOf":
            inner = [cause for cause in error.context or () if cause.validator != "type"]
            if inner:
                yield from _explain(inner[0], (*at, *inner[0].relative_path))
            else:
                yield at, f"{_format_value(value)} is not of an allowed type"
        case _:
            yield at, error.message.splitlines()[0]


def _format_types(wanted: str | list[str]) -> str:
    names = [wanted] if isinstance(wanted, str) else wanted
    return " or ".join(IN_YAML.get(name, name) for name in names)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
