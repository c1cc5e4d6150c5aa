"""Remote calls between the tests and the program, which run in two processes, over two pipes.

Both ends are symmetric: while one end waits for the answer to a request, it answers requests of the
other, so tests can pass functions to the program. Objects that are not plain data stay in their
process, and the other end has a handle, whose methods, attributes, items and iteration are remote
requests.

A handle is equal only to itself, and an operator between a handle and a local value is never sent:
an object that equals or contains everything would let a program decide its own verdict.
"""

from __future__ import annotations

import _thread
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence

from values import Codec  # type: ignore[import-not-found]

TYPE_CHECKING = False  # `typing` would take a tenth of the start
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from values import Form

LARGEST = 2**26  # most bytes of a message
# Special methods that are sent as requests to the end that has the object.
ASKED = (
    *("__call__", "__len__", "__iter__", "__next__", "__reversed__", "__bool__"),
    *("__getitem__", "__setitem__", "__delitem__", "__enter__", "__exit__"),
    *("__str__", "__repr__", "__int__", "__float__", "__index__", "__complex__"),
    *("__abs__", "__neg__", "__pos__", "__invert__", "__round__"),
)
# Binary operators are sent only if both operands are objects of the other end.
OPERATORS = (
    *("__add__", "__sub__", "__mul__", "__matmul__", "__truediv__", "__floordiv__", "__mod__"),
    *("__pow__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
)
_READABLE = ("__name__", "__qualname__", "__doc__")
# If a call raised one of these, it would silently end a loop of the caller.
_ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)


class ConnectionLost(BaseException):
    """Loss of the other end: it has exited or broken the protocol, and is ignored from now on."""


class ClassHandle(type):
    """A class of the other end. `isinstance` holds for the handles of its objects."""

    __exchange: ObjectExchange

    @staticmethod
    def build(
        exchange: ObjectExchange, name: str, bases: list[type], methods: Sequence[str]
    ) -> type:
        """Build a class for handles of remote objects with the special methods `methods`."""
        asked = {method: _ask(method) for method in (*ASKED, *OPERATORS) if method in methods}
        made = ClassHandle(name, tuple(bases) or (Handle,), {"__slots__": (), **asked})
        made.__exchange = exchange
        return made

    def get_exchange(cls) -> ObjectExchange:
        """Return the exchange to which requests are sent."""
        return cls.__exchange

    def __call__(cls, *arguments: object, **named: object) -> Any:
        """Create an object of the class at the other end."""
        return cls.__exchange.request("call", cls, "", arguments, named)

    def __getattr__(cls, name: str) -> Any:
        """Read an attribute of the class at the other end."""
        return _read_attribute(cls.__exchange, cls, name)

    def __iter__(cls) -> Any:
        """Iterate over the class at the other end, such as an enumeration."""
        return iter(cls.__exchange.request("operate", cls, "__iter__"))


class Handle:
    """An object of the other end."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """Read an attribute of the object at the other end."""
        return _read_attribute(_get_exchange(self), self, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute of the object at the other end."""
        _get_exchange(self).request("set", self, name, (value,))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise TypeError, since an object of another process cannot be copied."""
        raise TypeError("an object of another process cannot be copied")


def _get_exchange(handle: Handle) -> ObjectExchange:
    kind: Any = type(handle)
    found: ObjectExchange = ClassHandle.get_exchange(kind)
    return found


def _read_attribute(exchange: ObjectExchange, handle: object, name: str) -> Any:
    if name.startswith("__") and name not in _READABLE:
        raise AttributeError(f"'{name}' of an object of another process cannot be read")
    return exchange.request("get", handle, name)


def _ask(name: str) -> Any:
    def method(self: Handle, *arguments: object, **named: object) -> Any:
        if name in OPERATORS and not isinstance(arguments[0], Handle):
            return NotImplemented
        return _get_exchange(self).request("operate", self, name, arguments, named)

    return method


class ObjectExchange:
    """One end of the two pipes, with `request` to call the other end and `answer` to serve it."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = open(reading, "rb")  # noqa: SIM115
        self._writing = writing
        self._here: list[object] = []  # local objects of which the other end has handles
        self._there: dict[int, Any] = {}  # handles by the number of their remote object
        self._numbers: dict[int, int] = {}  # numbers of local objects by their id()
        self._there_numbers: dict[int, int] = {}  # numbers of remote objects by id() of the handle
        self._lock = _thread.RLock()
        self.lost = ""  # reason why the other end is ignored; "" while it is not
        self.ended = False  # true if the reason is that the other end closed its pipes

    def request(
        self,
        operation: str,
        target: object = None,
        name: str = "",
        arguments: Sequence[object] = (),
        named: dict[str, object] | None = None,
    ) -> Any:
        """Send a request and return the result of the other end.

        Raises the exception that the operation raised there, or ConnectionLost.
        """
        codec = Codec(self)
        captured = sys.stdout is not sys.__stdout__
        forms = [codec.encode(part) for part in (target, name, tuple(arguments), named or {})]
        with self._lock:
            self._send(pack([operation, *forms, captured]))
            while (message := self._receive())[0] != "answer":
                self.answer(message)
        try:
            _, changes, form, raised, printed = message
            codec.decode_changes(changes)
            result = self._decode_error(codec, form) if raised else codec.decode(form)
            printed = "".join(printed)
        except Exception as error:
            self._lose(f"its answer cannot be decoded: {error!r}")
        if captured and printed:
            sys.stdout.write(printed)
        if not raised:
            return result
        if name != "__next__" and isinstance(result, _ENDS_OF_LOOPS):
            result = RuntimeError(f"the program raised {type(result).__name__}")
        raise result

    def answer(self, message: Sequence[Form]) -> None:
        """Perform the request `message` of the other end, and send its result or its exception."""
        codec = Codec(self)
        try:
            operation, *forms, captured = message
            target, name, arguments, named = map(codec.decode, forms)
        except Exception as error:
            self._lose(f"its request cannot be read: {error!r}")
        given = codec.count_met()
        printed = io.BytesIO()
        stream = io.TextIOWrapper(printed, "utf-8", "replace", write_through=True)
        try:
            with contextlib.redirect_stdout(stream) if captured else contextlib.nullcontext():
                result = self.perform(operation, target, name, arguments, named)
            reply = [codec.encode_changes(given), codec.encode(result), False]
            packed = pack(["answer", *reply, printed.getvalue().decode("utf-8", "replace")])
        except ConnectionLost:
            raise
        except BaseException as error:
            text = printed.getvalue().decode("utf-8", "replace")
            packed = pack(["answer", [], self._encode_error(error), True, text])
        self._send(packed)

    def perform(
        self, operation: str, target: Any, name: str, arguments: Sequence[Any], named: Any
    ) -> Any:
        """Perform an operation on a local object for the other end, and return its result."""
        match operation:
            case "call":
                return target(*arguments, **named)
            case "get":
                return getattr(target, name)
            case "set":
                return setattr(target, name, arguments[0])
            case "operate":
                result = getattr(type(target), name)(target, *arguments, **named)
                if result is not NotImplemented:
                    return result
        raise TypeError(f"{type(target).__name__} does not support {name or operation}")

    # --- objects

    def encode_object(self, value: object) -> Form:
        """Return a form that refers to `value`, an object that stays in its process."""
        if id(value) in self._there_numbers:
            return ["yours", self._there_numbers[id(value)]]
        if not isinstance(value, type):
            return ["object", self._number(value), self.encode_object(type(value))]
        present = {name for base in value.__mro__ if base is not object for name in vars(base)}
        methods = [name for name in (*ASKED, *OPERATORS) if name in present]
        bases = [
            ["builtin", base.__name__]
            if base.__module__ == "builtins"
            else self.encode_object(base)
            for base in value.__bases__
            if base.__module__ != "builtins" or issubclass(base, BaseException)
        ]
        return ["class", self._number(value), value.__name__, methods, bases]

    def _number(self, value: object) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._here)
            self._here.append(value)
        return self._numbers[id(value)]

    def decode_object(self, form: Sequence[Form]) -> Any:
        """Return the local object or the handle of `form`.

        Raises ValueError, TypeError or another exception if `form` is malformed.
        """
        match form:
            case ["yours", int(number)] if number >= 0:
                return self._here[number]
            case ["object" | "class", int(number), *_] if number in self._there:
                return self._there[number]
            case ["object", int(number), class_form]:
                kind = self.decode_object(class_form)
                if not isinstance(kind, ClassHandle):
                    kind = ClassHandle.build(self, kind.__name__, [], ())
                made: Any = object.__new__(kind)
            case ["class", int(number), str(name), list(methods), list(base_forms)]:
                bases = [Codec(self).decode(base) for base in base_forms]
                errors = [base for base in bases if issubclass(base, BaseException)]
                if errors:
                    made = type(name, tuple(errors), {})
                else:
                    made = ClassHandle.build(self, name, bases, methods)
            case _:
                raise ValueError("the form is not an object")
        self._there[number] = made
        self._there_numbers[id(made)] = number
        return made

    def _encode_error(self, error: BaseException) -> Form:
        codec = Codec(self)
        kind = codec.encode(type(error))
        try:
            form = [kind, codec.encode(error.args), codec.encode(vars(error))]
            pack(form)
        except Exception:
            return [kind, ["tuple"], ["dict"]]
        return form

    def _decode_error(self, codec: Codec, form: Form) -> BaseException:
        kind, arguments, attributes = map(codec.decode, form)
        if not issubclass(kind, BaseException):
            raise TypeError("the raised value is not an exception")
        try:
            error: BaseException = kind(*arguments)
        except Exception:
            error = RuntimeError(f"{kind.__name__}{arguments}")
        vars(error).update(attributes)
        return error

    # --- bytes

    def _send(self, packed: bytes) -> None:
        if self.lost:
            self._lose(self.lost)
        rest = memoryview(len(packed).to_bytes(8, "little") + packed)
        try:
            while rest:
                rest = rest[os.write(self._writing, rest) :]
        except OSError:
            self._lose_ended()

    def _receive(self) -> list[Form]:
        size = int.from_bytes(self._read(8), "little")
        if size > LARGEST:
            self._lose(f"its message is longer than {LARGEST:,} bytes")
        packed = self._read(size)
        try:
            message = json.loads(packed.decode("ascii"))
        except (ValueError, RecursionError, MemoryError):
            self._lose("its message is not JSON")
        if type(message) is not list or not message:
            self._lose("its message is not a list")
        return message

    def _read(self, size: int) -> bytes:
        found = self._reading.read(size)
        if len(found) < size:
            self._lose_ended()
        return found

    def _lose_ended(self) -> NoReturn:
        self.ended = not self.lost
        self._lose("it has ended")

    def _lose(self, reason: str) -> NoReturn:
        self.lost = self.lost or reason
        raise ConnectionLost(self.lost)


def pack(message: Form) -> bytes:
    """Encode a message. Raises ValueError if it is too large, RecursionError if too deep."""
    packed = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(packed) > LARGEST:
        raise ValueError(f"a value takes more than {LARGEST:,} bytes")
    return packed
