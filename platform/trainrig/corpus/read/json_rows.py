"""Rows of JSON: an object on each line, an array of objects, or objects over several lines.

An array is read value by value, so that a file of any size takes the memory of its longest row.
Fields may be nested: `meta.url` is the value of `url` in the object `meta`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

_BLOCK = 2**18  # bytes read at a time
_MISSING = object()
# What matters outside a string, and the rest of a string up to its end or the end of the block.
_SIGN = re.compile(rb'["\[\]{},]')
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SPACE = b" \t\r\n"
_OPENS = frozenset(b"[{")
_CLOSES = frozenset(b"]}")
_QUOTE, _COMMA = b'",'
_OPENS_ARRAY = ord("[")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ARRAY_OF_OBJECTS = re.compile(rb"\[\s*(?:\{\s*(?:\"|\})|\]\s*\Z)")


class JSONValue(NamedTuple):
    """A value of a file; `text` is None if it is longer than the limit."""

    start: int  # byte offset
    text: bytes | None


def find_value(row: Mapping[str, Any], name: str) -> Any:
    """Return the row's value of `name`, such as "text" or "meta.url"; None if it is missing."""
    found = _find_or_missing(row, name)
    return None if found is _MISSING else found


def contains_value(row: Mapping[str, Any], name: str) -> bool:
    """Return whether the row has `name`, such as "meta.url", even with the value null."""
    return _find_or_missing(row, name) is not _MISSING


def _find_or_missing(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    below = row.get(outer) if dot else None
    return _find_or_missing(below, inner) if isinstance(below, Mapping) else _MISSING


def find_text(row: Mapping[str, Any], names: str | tuple[str, ...], join: str) -> str | None:
    """Return the text of the row: the values of all `names`, strings or lists of strings, joined.

    Missing and empty values are left out. The result is None if all are missing. Raises TypeError
    for a value of another kind.
    """
    single = isinstance(names, str)
    values = [find_value(row, name) for name in ((names,) if isinstance(names, str) else names)]
    parts: list[str] = []
    for value in values:
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, list) and all(
            part is None or isinstance(part, str) for part in value
        ):
            parts += [part for part in value if part]
        elif value is not None:
            raise TypeError(f"{type(value).__name__} is not a string")
    if single and parts == values:
        return parts[0]
    return join.join(filter(None, parts)) if parts else None


def parse_object(data: bytes) -> dict[str, Any] | str:
    """Return the object in `data`, or the reason why there is none."""
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError:
        return "not_utf8"
    except (ValueError, RecursionError):  # nested thousands deep, or numbers of thousands of digits
        return "bad_json"
    return value if isinstance(value, dict) else "not_an_object"


def is_array(head: bytes) -> bool:
    """Return whether a file that begins with `head` is an array of objects."""
    return _ARRAY_OF_OBJECTS.match(head.removeprefix(_BYTE_ORDER_MARK).lstrip()) is not None


def begins_spread_object(head: bytes) -> bool:
    """Return whether the first object of a file that begins with `head` continues on a new line."""
    line, end, _ = head.removeprefix(_BYTE_ORDER_MARK).lstrip().partition(b"\n")
    if not end or not line.startswith(b"{"):
        return False
    try:
        json.loads(line.decode("utf-8", "replace"))
    except json.JSONDecodeError as error:
        return error.pos >= len(line.decode("utf-8", "replace").rstrip())
    except RecursionError:
        pass
    return False


class _Values:
    """Splitter of a stream of bytes into JSON values, block by block."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._depth = 0
        self._base = 0  # depth at which values begin: 1 in an array
        self._in_string = False
        self._escaped = False  # True if the last byte of the block was the "\\" of a string
        self._parts: list[bytes] = []
        self._length = 0
        self._start = 0
        self._began = False

    def finish(self, end: int) -> Iterator[JSONValue]:
        """Yield the rest of a torn stream as a value: the beginning of one, or an open array."""
        if not self._length and self._depth == 0:
            return
        if not self._length:
            self._add(b"[", end)  # the array has no end: count it as a value that is not valid
        yield from self._end_value(b"", end)

    def split(self, block: bytes, offset: int) -> Iterator[JSONValue]:
        """Yield the values that end in `block`, which begins at byte `offset` of the stream."""
        at = taken = 0
        if self._escaped and block:
            self._escaped = False
            at = 1
        while at < len(block):
            if self._in_string:
                at = self._skip_string(block, at)
                continue
            found = _SIGN.search(block, at)
            if found is None:
                break
            at = found.end()
            sign = block[found.start()]
            if sign == _QUOTE:
                self._in_string = True
            elif sign in _OPENS:
                if not self._began:
                    self._began = True
                    if sign == _OPENS_ARRAY:
                        self._base = 1
                        taken = at
                self._depth += 1
            elif sign in _CLOSES:
                self._depth -= 1
                if self._depth == 0 and self._base == 0:
                    yield from self._end_value(block[taken:at], offset + taken)
                    taken = at
                elif self._depth < self._base:
                    yield from self._end_value(block[taken : found.start()], offset + taken)
                    taken = at
                    self._base = self._depth = 0
            elif sign == _COMMA and self._depth == self._base == 1:
                yield from self._end_value(block[taken : found.start()], offset + taken)
                taken = at
        self._add(block[taken:], offset + taken)

    def _skip_string(self, block: bytes, at: int) -> int:
        """Return the position after the string, or the end of the block if it goes on."""
        rest = _STRING_REST.match(block, at)
        end = rest.end() if rest else at
        if end == len(block):
            return end
        if block[end] == _QUOTE:
            self._in_string = False
        else:  # a backslash that is the last byte of the block
            self._escaped = True
        return end + 1

    def _add(self, data: bytes, start: int) -> None:
        if not self._length:
            stripped = data.lstrip(_SPACE)
            self._start = start + len(data) - len(stripped)
            data = stripped
        self._length += len(data)
        if self._length > self._longest:
            self._parts.clear()
        elif data:
            self._parts.append(data)

    def _end_value(self, data: bytes, start: int) -> Iterator[JSONValue]:
        self._add(data, start)
        if self._length > self._longest:
            yield JSONValue(self._start, None)
        elif self._length:
            yield JSONValue(self._start, b"".join(self._parts).rstrip(_SPACE))
        self._parts.clear()
        self._length = 0


def iterate_values(stream: BinaryIO, longest: int) -> Iterator[JSONValue]:
    """Yield the values of an array, or of objects that follow one another, from an open file.

    Values longer than `longest` bytes are yielded without their text. What ends inside a value is
    yielded as its beginning, which is not valid JSON.
    """
    values = _Values(longest)
    offset = 0
    while block := stream.read(_BLOCK):
        if offset == 0 and block.startswith(_BYTE_ORDER_MARK):
            block = b"   " + block[len(_BYTE_ORDER_MARK) :]
        yield from values.split(block, offset)
        offset += len(block)
    yield from values.finish(offset)
