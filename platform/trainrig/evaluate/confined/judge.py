"""The judge's process, which runs the tests of a row and decides the verdict.

Names that the tests use but do not define are looked up in this order: Python's built-ins, modules
of the standard library that the program imported under that name, and the program. So a program
that defines `abs` or `isinstance` cannot change a test.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from exchange import ASKED, ClassHandle, ConnectionLost, Handle, ObjectExchange  # type: ignore[import-not-found]

TYPE_CHECKING = False  # `typing` would take a tenth of the start
if TYPE_CHECKING:
    from typing import Any

# Modules that tests may use because the program imported them. None of them decides a test.
_COMMON = frozenset(
    [
        "bisect",
        "collections",
        "copy",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "random",
        "re",
        "statistics",
        "string",
        "typing",
    ]
)
# Built-in functions with which tests decide. A program's function with such a name is taken for the
# tested function only if the tests use no other name.
_DECIDING = frozenset(
    [
        *("abs", "all", "any", "bool", "callable", "isinstance", "issubclass", "len", "list"),
        *("repr", "round", "set", "sorted", "str", "tuple", "type"),
    ]
)
RUN = "run_program"  # name of the function with which tests run the program as a script


class JudgeEnd(ObjectExchange):  # type: ignore[misc]
    """The end of the exchange with the tests, whose objects the program may hardly use."""

    def await_start(self) -> str:
        """Wait for the other end; return "" or the reason why it cannot be confined."""
        try:
            _, refusal = self._receive()
        except ConnectionLost:
            return str(self.lost)
        return str(refusal)

    def perform(
        self, operation: str, target: Any, name: str, arguments: Sequence[Any], named: Any
    ) -> Any:
        """Perform an operation on an object that the tests passed to the program.

        The program may call functions and classes of the tests, read and set attributes of objects
        whose classes the tests define, and iterate over iterators. Everything else would give
        access to the tests themselves, and raises TypeError. Built-in classes may not be called:
        `type` could create a class here whose `__eq__` is always true.
        """
        called = operation == "call" or (operation == "operate" and name == "__call__")
        own = not isinstance(target, type) or target.__module__ == "tests"
        if called and own and not isinstance(target, Handle | ClassHandle):
            return super().perform(operation, target, name, arguments, named)
        steps = operation == "operate" and name in ("__iter__", "__next__")
        if steps and hasattr(type(target), "__next__") and not isinstance(target, Handle):
            return super().perform(operation, target, name, arguments, named)
        kind = type(target)
        if all(base is object or base.__module__ == "tests" for base in kind.__mro__):
            public = not name.startswith("_")
            fixed = operation == "set" and callable(getattr(kind, name, None))
            if public and operation in ("get", "set") and not fixed:
                return super().perform(operation, target, name, arguments, named)
            if operation == "operate" and name in ASKED:
                return super().perform(operation, target, name, arguments, named)
        raise TypeError(f"{kind.__name__} of the tests does not allow '{operation} {name}'")


class _Names(dict):  # type: ignore[type-arg]
    """The global names of the tests; names that they do not define are looked up on use."""

    def __init__(self, end: JudgeEnd, tests: str) -> None:
        super().__init__(__name__="tests")
        self._end = end
        self._tests = tests
        self._tested: str | None = None  # name of the tested function if it hides a built-in
        self._hidden_sought = False

    def __missing__(self, name: str) -> Any:
        if name in vars(builtins) and name != self._find_tested_builtin():
            raise KeyError(name)
        origin, value = self._end.request("find", None, name)
        where, _, module = str(origin).partition(" ")
        if name in _COMMON and where != "missing" and f"{name}." in self._tests:
            return __import__(name)  # the real module, which the program may have replaced
        if where == "program":
            return value
        if where in ("module", "member") and module in _COMMON:
            found = __import__(module)
            return found if where == "module" else getattr(found, name)
        raise KeyError(name)

    def _find_tested_builtin(self) -> str | None:
        """Return the name of the tested function, if the tests use only names of built-ins.

        For example, `assert sum(10, 15) == 6` tests a function `sum` of the program.
        """
        if not self._hidden_sought:
            self._hidden_sought = True
            hidden = self._end.request("defined", None, "", sorted(vars(builtins)))
            free = _find_free_names(self._tests) if hidden else set()
            named = [name for name in hidden if name in free]
            alone = free == set(named) or not _DECIDING.intersection(named)
            if len(named) == 1 and alone and free <= set(vars(builtins)):
                self._tested = named[0]
        return self._tested


def judge(end: JudgeEnd, program: str, tests: str) -> str:
    """Run `tests` on `program`; return "" if it passes, or the reason why it does not."""
    try:
        code = compile(tests, "tests.py", "exec")
        end.request("give", None, program)
        if RUN not in tests:
            end.request("load")
        names = _Names(end, tests)
        names[RUN] = lambda given="": end.request("run", None, str(given))
        exec(code, names)
    except ConnectionLost:
        pass
    except BaseException as error:
        import traceback  # imported only here: it takes a tenth of the start-up time

        return "".join(traceback.format_exception(error))
    # Tests that catch every exception must not pass a program that has exited.
    return f"the program was stopped: {end.lost}" if end.lost else ""


def _find_free_names(tests: str) -> set[str]:
    """Return the names that `tests` read but never bind."""
    import ast

    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
    return read - bound
