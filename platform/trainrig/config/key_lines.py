"""Search for the line of a run file that holds a key."""

import re

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
