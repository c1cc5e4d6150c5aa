"""Compare two versions of Python sources, to prove that a rewrite changed no code.

    python tests/support/compare_code.py BASE               all but docstrings and comments is equal
    python tests/support/compare_code.py BASE --locals      local variables may have other names
    python tests/support/compare_code.py BASE --names FILE  identifiers too, `old new` a line

BASE is a git commit. The working tree's `platform/`, `jobs/` and `tests/` are compared with it,
file by file. Exits 1 and prints the first difference of each file that differs.

`--locals` allows `a, b = x, y` as two lines, where no value reads an earlier target, and another
name for a variable of a function, as long as each read of it finds the value that was last written
before it in the text.
"""

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("platform", "jobs", "tests")


@dataclass
class Comparison:
    """Comparison of two syntax trees, an old one and a new one."""

    renames: Mapping[str, str]  # identifiers that the new tree has in place of old ones
    locals: bool  # whether local variables may have other names
    _to_new: dict[str, str] = field(default_factory=dict)  # local variables by their old name
    _depth: int = 0  # functions around the current node

    def find_difference(self, old: ast.AST, new: ast.AST) -> str | None:
        """Return where the trees differ first, or None where they are equal."""
        if type(old) is not type(new):
            return _describe(old, new, f"{type(old).__name__} became {type(new).__name__}")
        if isinstance(old, ast.Name) and isinstance(new, ast.Name):
            return self._compare_variables(old, new)
        inside = isinstance(old, ast.FunctionDef | ast.AsyncFunctionDef)
        before = dict(self._to_new)
        self._depth += inside
        try:
            for name, value in _iterate_fields(old):
                if found := self._compare_values(name, value, getattr(new, name), old, new):
                    return found
        finally:
            self._depth -= inside
            if inside and not self._depth:
                self._to_new = before
        return None

    def _compare_values(
        self, name: str, old: object, new: object, parent: ast.AST, twin: ast.AST
    ) -> str | None:
        if isinstance(old, list) and isinstance(new, list):
            olds = self._normalise(old)
            news = self._normalise(new)
            if len(olds) != len(news):
                return _describe(parent, twin, f"`{name}` has {len(news)} parts, had {len(olds)}")
            pairs = zip(olds, news, strict=True)
            found = (self._compare_values(name, a, b, parent, twin) for a, b in pairs)
            return next((difference for difference in found if difference), None)
        if isinstance(old, ast.AST) and isinstance(new, ast.AST):
            return self.find_difference(old, new)
        if isinstance(old, str) and name in {"name", "attr", "arg", "id", "asname", "module"}:
            if isinstance(parent, ast.ExceptHandler) and self.locals:
                self._to_new[old] = str(new)
                return None
            old = ".".join(self.renames.get(part, part) for part in old.split("."))
        if old != new:
            return _describe(parent, twin, f"`{name}` was {old!r}, is {new!r}")
        return None

    def _normalise(self, values: list[object]) -> list[object]:
        """Return the statements or expressions without docstrings, packed assignments split."""
        kept = [v for v in values if not _is_docstring(v)]
        if not self.locals:
            return kept
        return [part for value in kept for part in _split_assignment(value)]

    def _compare_variables(self, old: ast.Name, new: ast.Name) -> str | None:
        expected = self.renames.get(old.id, old.id)
        if not (self.locals and self._depth):
            return None if new.id == expected else _describe(old, new, f"{old.id} → {new.id}")
        if isinstance(old.ctx, ast.Store):
            # A name that is written again no longer means what another old variable wrote into it.
            self._to_new = {a: b for a, b in self._to_new.items() if b != new.id or a == old.id}
            self._to_new[old.id] = new.id
            return None
        if new.id == self._to_new.get(old.id, expected):
            return None
        return _describe(old, new, f"reads {new.id}, where {old.id} was read")


def _iterate_fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield a node's fields in order of execution: a loop's source, its target, then its body."""
    order = {"generators": 0, "value": 1, "iter": 2, "context_expr": 3, "target": 4, "targets": 4}
    fields = list(ast.iter_fields(node))
    if isinstance(node, ast.NamedExpr | ast.Assign | ast.For | ast.comprehension) or hasattr(
        node, "generators"
    ):
        fields.sort(key=lambda item: order.get(item[0], 5))
    yield from fields


def _is_docstring(value: object) -> bool:
    return (
        isinstance(value, ast.Expr)
        and isinstance(value.value, ast.Constant)
        and isinstance(value.value.value, str)
    )


def _split_assignment(value: object) -> list[object]:
    """Return `a, b = x, y` as two assignments where the effect is the same."""
    if not (isinstance(value, ast.Assign) and len(value.targets) == 1):
        return [value]
    target = value.targets[0]
    source = value.value
    if not (isinstance(target, ast.Tuple) and isinstance(source, ast.Tuple)):
        return [value]
    targets = target.elts
    sources = source.elts
    if len(targets) != len(sources) or any(
        isinstance(t, ast.Starred) for t in (*targets, *sources)
    ):
        return [value]
    for number, written in enumerate(targets):
        name = written.id if isinstance(written, ast.Name) else ast.dump(written)
        for later in sources[number + 1 :]:
            if any(_reads(node, name) for node in ast.walk(later)):
                return [value]
    pairs = zip(targets, sources, strict=True)
    return [ast.copy_location(ast.Assign([t], s), value) for t, s in pairs]


def _reads(node: ast.AST, name: str) -> bool:
    return (node.id if isinstance(node, ast.Name) else ast.dump(node)) == name


def _describe(old: ast.AST, new: ast.AST, what: str) -> str:
    places = [getattr(node, "lineno", "?") for node in (old, new)]
    return f"line {places[0]} → {places[1]}: {what}"


def compare_sources(
    old: str, new: str, renames: Mapping[str, str] | None = None, local_names: bool = False
) -> str | None:
    """Return where two sources differ first in more than prose, or None."""
    return Comparison(renames or {}, local_names).find_difference(ast.parse(old), ast.parse(new))


def read_base(base: str) -> dict[str, str]:
    """Return the sources of commit `base`, by path, that differ in the working tree."""
    changed = _run_git("diff", "--name-only", "--no-renames", base, "--", *FOLDERS).splitlines()
    paths = [path for path in changed if path.endswith(".py")]
    listed = set(_run_git("ls-tree", "-r", "--name-only", base, "--", *FOLDERS).splitlines())
    return {path: _run_git("show", f"{base}:{path}") if path in listed else "" for path in paths}


def _run_git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def main() -> int:
    """Compare the working tree with a commit, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base")
    parser.add_argument("--locals", action="store_true")
    parser.add_argument("--names", type=Path)
    given = parser.parse_args()
    lines = given.names.read_text(encoding="utf-8").splitlines() if given.names else []
    renames = dict(line.split() for line in lines if line.strip())
    differences = 0
    for path, old in read_base(given.base).items():
        there = (ROOT / path).exists()
        new = (ROOT / path).read_text(encoding="utf-8") if there else ""
        if found := compare_sources(old, new, renames, given.locals or bool(renames)):
            print(f"{path}: {found}")
            differences += 1
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
