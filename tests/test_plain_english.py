"""The prose of the code is plain English, without phrases that made strangers stumble.

ruff's pydocstyle rules hold docstrings to whole imperative sentences. They cannot see the words.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import compare_code

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "platform" / "trainrig"
EXTRAS = ROOT / "platform" / "trainrig_contrib"

# A summary or a comment that begins with one of these is a fragment.
FRAGMENT = re.compile(
    r"(What|Whether|Of|As|Those|Which|Whose|Who|By|In|Until|See|That|How|Where|Its|For|From|With|Only"
    r"|Not|Each|All)\b"
)
SCRAP = re.compile(
    r"(of|what|who|by|that|those|whose|as|in|which|whether|its|it|they|for|from|so|else|but)\b"
)
# Phrases that have plain words.
TURN = re.compile(
    r"\b(anew|whoever|lest|nobody|somebody|hangs on|gone past|sees to|as many as|so many"
    r"|(is|are|was|were|be) told|told apart|comes? to know|in numbers|is at it|what for|none of it"
    r"|each once|other than that|of its own|of their own|that of|those of|of whose|has to be"
    r"|who (asks|says|waits|comes|learns|begins|is asked)"
    r"|what (it|they|is|has|was|an?|the|comes|stays|goes|there)\b[^.?]{0,60}?"
    r"\b(is|are|was|has|goes|stays|comes))\b",
    re.I,
)
ODD_NAME = re.compile(
    r"_*(a|an|the|what|who|which|that|those|it|its|they|there|of|as|told|see|look|tell|knows?"
    r"|comes?|goes|has|is_there)_"
)


def find_sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *EXTRAS.rglob("*.py")])


def iterate_prose(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the kind and the words of each docstring's summary and each comment."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if docstring := ast.get_docstring(node):
            yield node.lineno, "summary", " ".join(docstring.split("\n\n")[0].split())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], "comment", token.string.lstrip("# ")


def find_stumbles(text: str) -> list[str]:
    """Return each sentence that a stranger would stumble over, with its line."""
    found = []
    for line, kind, words in iterate_prose(text):
        start = FRAGMENT if kind == "summary" else SCRAP
        if start.match(words):
            found.append(f"{line}: a fragment: {words}")
        elif turn := TURN.search(words):
            found.append(f"{line}: say `{turn[0]}` in plain words: {words}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id == "each":
            found.append(f"{node.lineno}: a variable named `each`: name the thing")
        if not isinstance(node, ast.FunctionDef):
            continue
        if ODD_NAME.match(node.name):
            found.append(f"{node.lineno}: `{node.name}` is no verb with its object")
    return found


@pytest.mark.parametrize("path", find_sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_sentence_of_the_code_makes_a_stranger_stumble(path: Path) -> None:
    assert not find_stumbles(path.read_text(encoding="utf-8"))


# Names in backquotes that belong to other libraries, programs, or patterns of column names.
FOREIGN = {
    *("Conv1D", "MODEL_FLOPS", "c4_utils.py", "getpass.getuser", "nohup", "placement_group_table"),
    *("ray_", "torch.nn.attention.varlen.varlen_attn"),
    *("NAME_answer", "NAME_label", "NAME_probabilities"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("chosen_NAME", "rejected_NAME", "step_NAMEs"),
}
REFERENCE = re.compile(r"`([A-Za-z_][\w.]*(?:/[\w.]+)*)(?:\(\))?`")


def collect_names(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a module defines or uses, and the words of its short strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value.partition("\n")[0])


def test_names_in_backquotes_exist() -> None:
    """A docstring or a comment that names what was renamed or removed misleads."""
    sources = [
        path for name in ("platform", "jobs", "tests") for path in (ROOT / name).rglob("*.py")
    ]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    known = {name for tree in trees.values() for name in collect_names(tree)}
    known |= {part for path in sources for part in path.relative_to(ROOT).with_suffix("").parts}
    stale = []
    for path in sources:
        if PACKAGE not in path.parents:
            continue
        text = path.read_text(encoding="utf-8")
        prose = [(line, words) for line, _, words in iterate_prose(text)]
        prose.append((1, ast.get_docstring(trees[path]) or ""))
        for line, words in prose:
            for name in REFERENCE.findall(words):
                if name in FOREIGN:
                    continue
                if name.endswith(".py"):
                    places = (PACKAGE / name, path.parent / name, ROOT / name)
                    exists = any(place.exists() for place in places)
                else:
                    exists = all(part in known for part in re.split(r"[./]", name) if part)
                if not exists:
                    stale.append(f"{path.relative_to(PACKAGE)}:{line}: {name}")
    assert not stale


@pytest.mark.parametrize(
    "source",
    [
        "def count():\n    '''Its rows.'''",
        "def end():\n    '''Return whether nobody is left.'''",
        "seconds = 1  # what it takes",
        "names = [each for each in rows]",
        "def _the_rule_holds():\n    pass",
    ],
)
def test_the_old_dialect_is_found(source: str) -> None:
    assert find_stumbles(source)


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        ("def f():\n  'Old.'\n  return 1  # old", "def f():\n  'New.'\n  return 1", True),
        ("def f():\n  return 1", "def f():\n  return 2", False),
        (
            "def f(xs):\n  return [e for e in xs if e]",
            "def f(xs):\n  return [x for x in xs if x]",
            True,
        ),
        (
            "def f():\n  a, b = 1, 2\n  return a - b",
            "def f():\n  c = 1\n  d = 2\n  return c - d",
            True,
        ),
        (
            "def f():\n  a, b = 1, 2\n  return a - b",
            "def f():\n  c = 1\n  d = 2\n  return d - c",
            False,
        ),
        ("def f(a, b):\n  a, b = b, a", "def f(a, b):\n  a = b\n  b = a", False),
        ("def f():\n  a = 1\n  b = 2\n  return a", "def f():\n  x = 1\n  x = 2\n  return x", False),
        ("def f(a):\n  return a", "def f(b):\n  return b", False),
        ("def told(x):\n  return x.told", "def is_known(x):\n  return x.is_known", True),
    ],
)
def test_a_rename_is_distinguished_from_a_change(old: str, new: str, equal: bool) -> None:
    found = compare_code.compare_sources(old, new, {"told": "is_known"}, local_names=True)
    assert (found is None) == equal
