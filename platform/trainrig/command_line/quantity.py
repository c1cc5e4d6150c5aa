"""Parsing of quantities such as `1e9`, `1.3B`, `300M` or `2T`."""

import math
import re
from collections.abc import Callable

from trainrig.errors import ConfigError

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_WRITTEN = re.compile(r"([-+]?[\d_,.]+(?:e[-+]?\d+)?)\s*([kmbgt]?)", re.IGNORECASE)


def parse_quantity(text: str) -> float:
    """Parse a number such as `1e9` or `1.3B`. Raises ConfigError if it is invalid or infinite."""
    found = _WRITTEN.fullmatch(str(text).strip())
    try:
        value = float(re.sub("[,_]", "", found[1])) * _SCALES[found[2].lower()] if found else None
    except ValueError:
        value = None
    if value is None or not math.isfinite(value):
        raise ConfigError(f"'{text}' is not a number; write it as 1e9, 1.3B, 300M or 2T")
    return value


def make_quantity_parser(option: str) -> Callable[[str], float]:
    """Return a parser for the values of `option`, whose errors name the option."""

    def number(text: str) -> float:
        try:
            return parse_quantity(text)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from None

    return number
