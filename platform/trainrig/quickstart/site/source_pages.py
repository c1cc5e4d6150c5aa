"""Pages of installed packages, built from their parsed source without importing them.

A module becomes a page as in a project's manual: its docstring, then its public classes and
functions with signatures, tables of parameters and docstrings.
"""

import ast
import copy
import hashlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from trainrig.quickstart.site.article import (
    Article,
    ArticleTable,
    Block,
    Code,
    Heading,
    Paragraph,
    count_prose_words,
    read_docstring,
    strip_marks,
)

# Limits of a source's size in bytes; larger sources are mostly generated.
_SMALLEST = 2_000
_LARGEST = 200_000
# Bytes to parse from the start of a source, far more than a page holds; parsing is slow.
_PARSED = 60_000
_FEWEST_WORDS = 120  # Minimum words of prose in a page.
_FEWEST_QUOTED = 160  # Minimum words in triple quotes; sources with fewer rarely have enough prose.
_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
# Characters of blocks in a page; further classes and functions are left out.
_PAGE_CHARACTERS = 14_000
_PARAMETERS = 3  # Smallest number of parameters for which a function gets a table of parameters.

_TESTS = re.compile(r"^(?:tests?|testing|testdata|test_.*|.*_tests?|conftest)$")
_COPIES = frozenset(
    ["_vendor", "vendor", "vendored", "_vendored", "extern", "externals", "third_party"]
)


@dataclass(frozen=True)
class SourceFile:
    """A Python source file with its module name."""

    path: str
    module: str
    package: str  # First part of the module's name; "python" for the standard library.


@dataclass(frozen=True)
class Described:
    """A public function or class, as its docstring describes it."""

    name: str  # Qualified name, such as "json.dumps".
    module: str
    signature: str  # Such as "dumps(obj, *, indent=None)"; empty if it is too long or unknown.
    summary: str  # First sentence of the docstring.


@dataclass(frozen=True)
class SourceReading:
    """The page of one source, or None if it has too little prose, and its descriptions."""

    digest: str  # Hash of the file, equal for vendored copies; the path if the file is unreadable.
    article: Article | None
    described: tuple[Described, ...]


def find_package_folders() -> list[str]:
    """Return the folders of `sys.path` that hold installed packages, in its order."""
    return [
        folder
        for folder in dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path if entry)
        if Path(folder).name in ("site-packages", "dist-packages") and Path(folder).is_dir()
    ]


def list_package_sources(folders: Sequence[str], seed: int) -> list[SourceFile]:
    """Return the sources below `folders`, alternating between packages, ordered by `seed`."""
    packages: dict[str, list[SourceFile]] = {}
    for folder in folders:
        for source in _find_sources(Path(folder)):
            packages.setdefault(source.package, []).append(source)
    for sources in packages.values():
        sources.sort(key=lambda source: hash_with_seed(seed, source.module))
    by_name = sorted(packages.items(), key=lambda item: hash_with_seed(seed, item[0]))
    turns = zip_longest(*(sources for _, sources in by_name))
    return [source for turn in turns for source in turn if source is not None]


def list_standard_sources(seed: int) -> list[SourceFile]:
    """Return the sources of the standard library, in an order set by `seed`."""
    found = [
        SourceFile(source.path, source.module, "python")
        for source in _find_sources(Path(sysconfig.get_path("stdlib")))
        if source.package in sys.stdlib_module_names
        and source.package not in ("idlelib", "turtledemo", "lib2to3", "pydoc_data")
    ]
    return sorted(found, key=lambda source: hash_with_seed(seed, source.module))


def hash_with_seed(seed: int, name: str) -> bytes:
    """Return a sorting key that shuffles names reproducibly by `seed`."""
    return hashlib.blake2b(f"{seed}\n{name}".encode(), digest_size=16).digest()


def _find_sources(root: Path) -> Iterator[SourceFile]:
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not parts or not all(map(_is_public, parts)):
            continue
        if file.is_file() and _SMALLEST <= file.stat().st_size <= _LARGEST:
            yield SourceFile(str(file), ".".join(parts), parts[0])


def _is_public(part: str) -> bool:
    if part.startswith("_") or not part.isidentifier() or part.endswith("_pb2"):
        return False
    return part not in _COPIES and not _TESTS.match(part) and not part.startswith("thirdparty")


def read_source(source: SourceFile) -> SourceReading:
    """Read the page and the descriptions of a source, which may be unreadable or no Python."""
    try:
        data = Path(source.path).read_bytes()
    except OSError:
        return SourceReading(source.path, None, ())
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    beginning = _cut_beginning(data)
    if sum(len(text.split()) for text in _TRIPLE_QUOTED.findall(beginning)) < _FEWEST_QUOTED:
        return SourceReading(digest, None, ())
    try:
        tree = _parse_source(beginning)
    except (SyntaxError, ValueError, RecursionError):
        return SourceReading(digest, None, ())
    described = tuple(_describe_members(tree, source.module))
    article = _build_article(tree, source)
    has_prose = count_prose_words(article) >= _FEWEST_WORDS
    return SourceReading(digest, article if has_prose else None, described)


def _cut_beginning(data: bytes) -> bytes:
    """Return the start of `data` up to a gap of two blank lines between definitions (PEP 8)."""
    if len(data) <= _PARSED:
        return data
    return data[: data.rfind(b"\n\n\n", 0, _PARSED) + 1] or data


def _parse_source(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Other people's strings may have invalid escapes.
        return ast.parse(source)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _build_article(tree: ast.Module, source: SourceFile) -> Article:
    docstring = ast.get_docstring(tree)
    blocks: list[Block] = list(read_docstring(docstring)) if docstring else []
    for member in _iterate_public_members(tree):
        if sum(map(_count_characters, blocks)) > _PAGE_CHARACTERS:
            break
        if isinstance(member, ast.ClassDef):
            blocks += _build_class_blocks(member)
        else:
            blocks += _build_function_blocks(member, level=2)
    path = "/".join(source.module.split(".")) + ".html"
    return Article(path, f"The module {source.module}", source.package, _trim_blocks(blocks))


def _trim_blocks(blocks: list[Block]) -> tuple[Block, ...]:
    """Return the blocks that fit a page, without headings at its end."""
    kept: list[Block] = []
    size = 0
    for block in blocks:
        size += _count_characters(block)
        if size > _PAGE_CHARACTERS and kept:
            break
        kept.append(block)
    while kept and isinstance(kept[-1], Heading):
        kept.pop()
    return tuple(kept)


def _count_characters(block: Block) -> int:
    match block:
        case Paragraph(text) | Heading(_, text) | Code(text):
            return len(text)
        case _:
            return len(repr(block))


def _iterate_public_members(node: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | _Function]:
    for member in node.body:
        if isinstance(member, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            public = not member.name.startswith("_")
            if public and ast.get_docstring(member) is not None:
                yield member


def _build_class_blocks(node: ast.ClassDef) -> list[Block]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    blocks: list[Block] = [Heading(2, f"class {node.name}")]
    if bases:
        blocks.append(Code(f"class {node.name}({bases})"))
    blocks += read_docstring(ast.get_docstring(node) or "")
    for member in _iterate_public_members(node):
        if isinstance(member, ast.ClassDef):
            continue
        blocks += _build_function_blocks(member, level=3)
    return blocks


def _build_function_blocks(node: _Function, level: int) -> list[Block]:
    blocks: list[Block] = [Heading(level, node.name), Code(_format_signature(node))]
    blocks += read_docstring(ast.get_docstring(node) or "")
    rows = tuple(_iterate_parameters(node.args))
    if len(rows) >= _PARAMETERS:
        blocks.append(ArticleTable(("Parameter", "Type", "Default"), rows))
    return blocks


def _iterate_parameters(arguments: ast.arguments) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and default of each parameter that has a type or a default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [
        *zip(positional, missing + list(arguments.defaults), strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        if argument.annotation or default:
            kind = ast.unparse(argument.annotation) if argument.annotation else "any"
            value = ast.unparse(default) if default else "required"
            yield argument.arg, kind, value


def _format_signature(node: _Function) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


_SENTENCE = re.compile(r"(.+?[.!?])(?:\s|$)")
_SUMMARY_CHARACTERS = (25, 300)
_SIGNATURE_CHARACTERS = 200
_NOT_A_SENTENCE = re.compile(r"[{}<>|\\]|>>>|:param|\.\.|::|==")


def _describe_members(tree: ast.Module, module: str) -> Iterator[Described]:
    for member in _iterate_public_members(tree):
        summary = _extract_summary(ast.get_docstring(member) or "")
        if summary is None:
            continue
        signature = _format_call(member)
        if len(signature) > _SIGNATURE_CHARACTERS:
            signature = ""
        yield Described(f"{module}.{member.name}", module, signature, summary)


def _format_call(member: ast.ClassDef | _Function) -> str:
    if not isinstance(member, ast.ClassDef):
        return _format_signature(member)
    for item in member.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = copy.copy(item.args)
            if arguments.posonlyargs:
                arguments.posonlyargs = arguments.posonlyargs[1:]
            else:
                arguments.args = arguments.args[1:]  # Omits self.
            return f"{member.name}({ast.unparse(arguments)})"
    return ""


def _extract_summary(docstring: str) -> str | None:
    """Return the first sentence, or None if the docstring does not start with plain English."""
    first = re.split(r"\n\s*\n", docstring.strip(), maxsplit=1)[0]
    text = strip_marks(" ".join(first.split()))
    if _NOT_A_SENTENCE.search(text) or not text[:1].isupper() or not text.isascii():
        return None
    sentence = _SENTENCE.match(text)
    found = sentence.group(1) if sentence else text.rstrip(":;,") + "."
    shortest, longest = _SUMMARY_CHARACTERS
    return found if shortest <= len(found) <= longest and found.count(" ") >= 3 else None
