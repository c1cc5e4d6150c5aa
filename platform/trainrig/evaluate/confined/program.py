"""The program's process, which runs the program and serves the requests of the tests.

A program can reach nothing outside of this process. The tests, the expected values and the verdict
are in the process of `judge`, at the other end of two pipes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from exchange import ObjectExchange, pack  # type: ignore[import-not-found]

TYPE_CHECKING = False  # `typing` would take a tenth of the start
if TYPE_CHECKING:
    from typing import Any, NoReturn


class ProgramEnd(ObjectExchange):  # type: ignore[misc]
    """The end of the exchange with the program."""

    def __init__(self, reading: int, writing: int) -> None:
        super().__init__(reading, writing)
        self._names: dict[str, Any] = {"__name__": "program"}
        self._source = ""

    def report_start(self, refusal: str) -> None:
        """Report that requests are served, or with `refusal` why they are not."""
        self._send(pack(["start", refusal]))

    def serve(self) -> None:
        """Answer requests until the other end exits."""
        while True:
            self.answer(self._receive())

    def perform(
        self, operation: str, target: Any, name: str, arguments: Sequence[Any], named: Any
    ) -> Any:
        """Perform a request on the program or on one of its objects, and return the result."""
        match operation:
            case "give":
                self._source = name
                return None
            case "load":
                return exec(compile(self._source, "program.py", "exec"), self._names)
            case "run":
                return self._run(name)
            case "find":
                return self._find(name)
            case "defined":
                return [argument for argument in arguments if argument in self._names]
        return super().perform(operation, target, name, arguments, named)

    def _run(self, given: str) -> str:
        """Run the program as a script with `given` as standard input, and return its output."""
        printed = io.BytesIO()
        code = compile(self._source, "program.py", "exec")
        before = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode("utf-8", "surrogatepass")), "utf-8")
        stream = io.TextIOWrapper(printed, "utf-8", "replace", write_through=True)
        try:
            with contextlib.redirect_stdout(stream):
                exec(code, {"__name__": "__main__"})
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:
            sys.stdin = before
        return printed.getvalue().decode("utf-8", "replace")

    def _find(self, name: str) -> tuple[str, Any]:
        """Return the origin of the global `name`, and its value if the program defines it.

        The origin is "program", "missing", "module NAME" for a module, or "member NAME" for a
        member of a module.
        """
        if name not in self._names:
            return "missing", None
        value = self._names[name]
        if type(value) is type(sys):
            return f"module {value.__name__}", None
        module = getattr(value, "__module__", None)
        known = sys.modules.get(module) if type(module) is str else None
        if known and vars(known).get(name) is value:
            return f"member {module}", None
        return "program", value


def serve(reading: int, writing: int, confine: Callable[[], None]) -> NoReturn:
    """Confine this process, report whether this succeeded, and serve until the judge exits."""
    end = ProgramEnd(reading, writing)
    try:
        confine()
    except Exception as error:
        end.report_start(str(error) or repr(error))
        os._exit(1)
    try:
        end.report_start("")
        end.serve()
    finally:
        os._exit(0)
