"""Fields of rows that are ignored here although other tools train by them.

The stage counts them and reports each once. Most other columns of published rows are metadata
(identifiers, sources, scores), which are not reported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

# Columns, and keys of messages, that other tools read.
_COLUMNS = ("images", "image", "videos", "audios", "audio", "chat_template_kwargs", "margin")
# The entry that reports nulls in the objects of a Parquet row.
NULLS = "null keys of tools or arguments, which Parquet fills in (JSON in a text keeps its own)"
_KEYS = ("images", "image", "audio", "videos", "functions", "function_calls")
_PAYLOADS = ("arguments", "parameters")  # arguments of calls, parameters of schemas
_TURNS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected")


def find_unread(
    row: Mapping[str, Any], fields: Mapping[str, Any], columns: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the names of the columns and message keys of `row` that are ignored.

    `fields` are the values that are read, by field; `columns` maps fields to columns of the file.
    """
    taken = set(columns.values())
    found = [name for name in _COLUMNS if row.get(name) and name not in taken]
    if fields.get("history") and "instruction" not in fields:
        found.append("history")
    for name in _TURNS:
        for message in _list_messages(fields.get(name)):
            found += [f"{key} of a message" for key in _KEYS if message.get(key)]
            role = message.get("role") or message.get("from")
            if message.get("train") is True and role in ("user", "human", "system"):
                found.append(f"train = true of a turn of the {role}")
    return tuple(dict.fromkeys(found))


def contains_inner_nulls(value: Any, inside: bool = False) -> bool:
    """Return whether the arguments of calls or the parameters of schemas in `value` have a null."""
    if isinstance(value, Mapping):
        return any(
            contains_inner_nulls(held, inside or key in _PAYLOADS) for key, held in value.items()
        )
    if isinstance(value, list):
        return any(contains_inner_nulls(held, inside) for held in value)
    return inside and value is None


def _list_messages(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (message for message in value if isinstance(message, Mapping))
