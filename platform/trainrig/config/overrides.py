"""Changes of single run-file keys by `a.b=value`, the values of `--set`."""

import tomllib
from typing import Any

from trainrig.errors import ConfigError


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
    return (
        parsed["value"] if len(parsed) == 1 else raw
    )  # a second key means that `raw` had another line


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
