"""Encoding of values for two processes that exchange them as JSON.

The data comes from an untrusted process. It is decoded to exact built-in types, or to handles of an
`ObjectExchange`, and never to an object whose methods the other process defines. Subclasses of
built-in types are encoded as their base type. Only `json` parses the bytes: no code is executed.
"""

from __future__ import annotations

import builtins
import collections
import sys
from collections.abc import Callable, Sequence

TYPE_CHECKING = False  # `typing` would take a tenth of the start
if TYPE_CHECKING:
    from typing import Any, Protocol

    # A value that `json` writes: None, bool, int, float, str, or a list of a tag and forms.
    Form = Any

    class Handles(Protocol):
        """Encoding and decoding of objects that are not plain data."""

        def encode_object(self, value: object) -> Form:
            """Return a form that refers to `value`, an object that stays in its process."""
            ...

        def decode_object(self, form: Sequence[Form]) -> object:
            """Return the object or the handle of `form`. Raises if `form` is malformed."""
            ...


# Types that JSON represents directly, with the function that turns a subclass into the base type.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__pos__,
    str: str.__str__,
}
_MAPPINGS: dict[str, type] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": collections.Counter,
}
_SEQUENCES: dict[str, type] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}
_OCTETS: dict[str, type] = {"bytes": bytes, "bytearray": bytearray}
# Standard library types, with the constructor arguments (numbers or a text) of a value.
_REMADE: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("builtins", "range"): lambda value: (value.start, value.stop, value.step),
    ("decimal", "Decimal"): lambda value: (str(value),),
    ("fractions", "Fraction"): lambda value: (value.numerator, value.denominator),
    ("datetime", "date"): lambda value: (value.year, value.month, value.day),
    ("datetime", "timedelta"): lambda value: (value.days, value.seconds, value.microseconds),
    ("datetime", "datetime"): lambda value: (
        *(value.year, value.month, value.day),
        *(value.hour, value.minute, value.second, value.microsecond),
    ),
}
_MUTABLE = (list, dict, set, bytearray, collections.deque)
_LARGE = (
    2**63
)  # integers from here on are written in hexadecimal, since Python limits decimal digits


class Codec:
    """Encoder and decoder of the values of one call and its answer.

    Both processes number mutable containers in the order in which they occur. So the answer can
    refer to a container of the call, and `encode_changes` returns the changes that the call made to
    its arguments.
    """

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._met: list[Any] = []
        self._numbers: dict[int, int] = {}

    def encode(self, value: Any) -> Form:
        """Return the form of `value`. Raises RecursionError if it is nested too deeply."""
        kind = type(value)
        if kind in (type(None), bool, float, str):
            return value
        if kind is int:
            return value if -_LARGE < value < _LARGE else ["int", hex(value)]
        if id(value) in self._numbers:
            return ["met", self._numbers[id(value)]]
        parts = _REMADE.get((kind.__module__, kind.__name__))
        if parts and getattr(value, "tzinfo", None) is None:
            return ["remade", kind.__module__, kind.__name__, *parts(value)]
        for base in kind.__mro__:
            if base in _PLAIN:
                return self.encode(_PLAIN[base](value))
            if base is complex:
                return ["complex", value.real, value.imag]
            if base in _CONTAINERS:
                return self._encode_container(value, base)
        name = getattr(value, "__name__", None) if isinstance(value, type) else None
        if type(name) is str and vars(builtins).get(name) is value:
            return ["builtin", name]
        return self._handles.encode_object(value)

    def _encode_container(self, value: Any, base: type) -> Form:
        if base in _MUTABLE_KINDS:
            self._meet(value)
        return [base.__name__, *self._encode_content(value, base)]

    def _encode_content(self, value: Any, base: type) -> list[Form]:
        if base in _OCTETS.values():
            return [bytes(value).decode("latin-1")]
        if base in _MAPPINGS.values():
            return [self.encode(part) for item in dict.items(value) for part in item]
        items = [self.encode(item) for item in base.__iter__(value)]  # type: ignore[attr-defined]
        return [value.maxlen, *items] if base is collections.deque else items

    def _meet(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._met)
        self._met.append(value)

    def decode(self, form: Form) -> Any:
        """Return the value of `form`.

        Raises ValueError, TypeError, LookupError or another exception if `form` is malformed.
        """
        if form is None or type(form) in (bool, int, float, str):
            return form
        tag, *rest = form
        if tag in _SEQUENCES or tag in _MAPPINGS or tag in _OCTETS:
            return self._decode_container(tag, rest)
        match tag, rest:
            case "int", [str(digits)]:
                return int(digits, 16)
            case "complex", [float(real), float(imaginary)]:
                return complex(real, imaginary)
            case "met", [int(number)] if number >= 0:
                return self._met[number]
            case "builtin", [str(name)] if isinstance(found := vars(builtins)[name], type):
                return found
            case "remade", [str(module), str(name), *parts] if (module, name) in _REMADE:
                if not all(type(part) in (int, str) for part in parts):
                    raise ValueError(f"{name} must be made of numbers and text")
                __import__(module)
                return getattr(sys.modules[module], name)(*parts)
        return self._handles.decode_object(form)

    def _decode_container(self, tag: str, rest: list[Form]) -> Any:
        if tag in ("tuple", "frozenset"):
            return _SEQUENCES[tag](self.decode(item) for item in rest)
        if tag == "bytes":
            return rest[0].encode("latin-1")
        made: Any = (_SEQUENCES | _MAPPINGS | _OCTETS)[tag]()
        if tag == "deque":
            made = collections.deque(maxlen=rest[0])
        self._meet(made)
        self._fill(made, rest)
        return made

    def _fill(self, made: Any, rest: list[Form]) -> None:
        """Replace the content of the container `made` by the content in `rest`."""
        if isinstance(made, bytearray):
            made[:] = rest[0].encode("latin-1")
            return
        items = [self.decode(item) for item in (rest[1:] if _is_deque(made) else rest)]
        made.clear()
        if isinstance(made, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                dict.__setitem__(made, key, value)
        elif isinstance(made, set):
            made.update(items)
        else:
            made.extend(items)

    def count_met(self) -> int:
        """Return the number of mutable containers so far: those that a request passes in."""
        return len(self._met)

    def encode_changes(self, count: int) -> list[Form]:
        """Return the current content of the first `count` containers."""
        return [self._encode_content(value, _find_container(value)) for value in self._met[:count]]

    def decode_changes(self, changes: Sequence[list[Form]]) -> None:
        """Apply `changes`, new contents of the first containers."""
        for value, content in zip(self._met[: len(changes)], changes, strict=True):
            self._fill(value, content)


def _is_deque(value: object) -> bool:
    return isinstance(value, collections.deque)


def _find_container(value: object) -> type:
    return next(base for base in type(value).__mro__ if base in _CONTAINERS)


_CONTAINERS = {*_SEQUENCES.values(), *_MAPPINGS.values(), *_OCTETS.values()}
_MUTABLE_KINDS = {kind for kind in _CONTAINERS if issubclass(kind, _MUTABLE)}
