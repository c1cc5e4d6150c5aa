"""Code in strings, which tests start as processes, names modules and attributes that exist.

Neither mypy nor an import sees such code, so a renamed name would show only where it runs.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent
ROOTS = {"trainrig", "trainrig_contrib", "support"}
# Strings of the first two are modules for a copy of the package, in which other modules exist.
LEFT_OUT = {"new_members.py", "corpus/test_compiled.py", "test_code_strings.py"}


def find_code(source: str) -> Iterator[str]:
    """Yield the strings of a module that are code and import from this repository.

    Other code of the module follows the first such string, whose names it may use.
    """
    strings = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value
    ]
    heads = [text for text in strings if "import" in text and any(name in text for name in ROOTS)]
    for text in strings:
        if text in heads:
            yield text
        elif heads:
            yield f"{heads[0]}\n{text}"


def list_unknown_names(code: str) -> list[str]:
    """Return the names that code takes from modules of this repository and that do not exist."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []  # it is no code
    unknown = []
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.partition(".")[0] not in ROOTS:
            continue
        module = importlib.import_module(node.module)
        for alias in node.names:
            found = getattr(module, alias.name, None)
            if found is None and alias.name != "*":
                try:
                    found = importlib.import_module(f"{node.module}.{alias.name}")
                except ImportError:
                    unknown.append(f"{node.module}.{alias.name}")
            if isinstance(found, ModuleType):
                modules[alias.asname or alias.name] = found
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = modules.get(node.value.id)
            if used is not None and not hasattr(used, node.attr):
                unknown.append(f"{used.__name__}.{node.attr}")
    return unknown


def test_names_in_code_that_tests_start_exist() -> None:
    unknown = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).as_posix() not in LEFT_OUT
        for code in find_code(path.read_text(encoding="utf-8"))
        for name in list_unknown_names(code)
    ]
    assert unknown == []


def test_a_renamed_attribute_is_found() -> None:
    head = "from trainrig import storage\nfrom trainrig.launch import gone\n"
    assert list_unknown_names(f"{head}storage.written_of('a')\nstorage.read('a')\n") == [
        "trainrig.launch.gone",
        "trainrig.storage.written_of",
    ]
