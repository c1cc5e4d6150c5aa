"""Pages of the installed packages, from their parsed source: nothing of theirs is imported.

A module becomes a page as a project's manual would have it: its docstring, then its public classes
and functions with signatures, tables of parameters and docstrings.
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

_SMALLEST, _LARGEST = 2_000, 200_000  # bytes of a source; the larger ones are mostly generated
_PARSED = 60_000  # bytes of its beginning, far more than a page holds; parsing is slow
_FEWEST_WORDS = 120  # of prose, for a page worth reading
_FEWEST_QUOTED = 160  # words in triple quotes; sources with fewer rarely have that much prose
_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
_PAGE_CHARACTERS = 14_000  # of blocks; further classes and functions are left out
_PARAMETERS = 3  # a function with at least so many gets a table of them

_TESTS = re.compile(r"^(?:tests?|testing|testdata|test_.*|.*_tests?|conftest)$")
_COPIES = frozenset(
    ["_vendor", "vendor", "vendored", "_vendored", "extern", "externals", "third_party"]
)


@dataclass(frozen=True)
class SourceFile:
    """A Python source, by the name it is imported by."""

    path: str
    module: str
    package: str  # the first part of the module's name; "python" for the standard library


@dataclass(frozen=True)
class Described:
    """A public function or class, as its own source describes it."""

    name: str  # qualified: "json.dumps"
    module: str
    signature: str  # "dumps(obj, *, indent=None)"; "" when it is long or not to be seen
    summary: str  # the first sentence of the docstring


@dataclass(frozen=True)
class SourceReading:
    """What a source gave. Exactly one of `article` and `refused` is None."""

    digest: str  # of its bytes: vendored copies have the same; unreadable ones have their path
    article: Article | None
    refused: str | None
    described: tuple[Described, ...]


def find_package_folders() -> list[str]:
    """The folders of `sys.path` that packages are installed in, in its order."""
    return [
        folder
        for folder in dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path if entry)
        if Path(folder).name in ("site-packages", "dist-packages") and Path(folder).is_dir()
    ]


def list_package_sources(folders: Sequence[str], seed: int) -> list[SourceFile]:
    """Sources worth reading below `folders`, packages by turns, in an order set by `seed`."""
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
    """Sources of the standard library, in an order set by `seed`."""
    found = [
        SourceFile(source.path, source.module, "python")
        for source in _find_sources(Path(sysconfig.get_path("stdlib")))
        if source.package in sys.stdlib_module_names
        and source.package not in ("idlelib", "turtledemo", "lib2to3", "pydoc_data")
    ]
    return sorted(found, key=lambda source: hash_with_seed(seed, source.module))


def hash_with_seed(seed: int, name: str) -> bytes:
    """A sorting key that shuffles names the same way at each run with `seed`."""
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
    """The page and the descriptions that a source gives, or why it gives no page."""
    try:
        data = Path(source.path).read_bytes()
    except OSError:
        return SourceReading(source.path, None, "unreadable", ())
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    beginning = _cut_beginning(data)
    if sum(len(text.split()) for text in _TRIPLE_QUOTED.findall(beginning)) < _FEWEST_QUOTED:
        return SourceReading(digest, None, "little_prose", ())
    try:
        tree = _parse_source(beginning)
    except (SyntaxError, ValueError, RecursionError) as error:
        return SourceReading(digest, None, f"unparsed_{type(error).__name__}", ())
    described = tuple(_describe_members(tree, source.module))
    article = _build_article(tree, source)
    if count_prose_words(article) < _FEWEST_WORDS:
        return SourceReading(digest, None, "little_prose", described)
    return SourceReading(digest, article, None, described)


def _cut_beginning(data: bytes) -> bytes:
    """`data` up to two blank lines, which PEP 8 puts between top-level definitions."""
    if len(data) <= _PARSED:
        return data
    return data[: data.rfind(b"\n\n\n", 0, _PARSED) + 1] or data


def _parse_source(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
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
    """The blocks up to the size of a page, and no heading left without anything below it."""
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
    """Name, type and default of each parameter that has a type or a default."""
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
                arguments.args = arguments.args[1:]  # without self
            return f"{member.name}({ast.unparse(arguments)})"
    return ""


def _extract_summary(docstring: str) -> str | None:
    """The first sentence, or None if the docstring does not begin with one in plain English."""
    first = re.split(r"\n\s*\n", docstring.strip(), maxsplit=1)[0]
    text = strip_marks(" ".join(first.split()))
    if _NOT_A_SENTENCE.search(text) or not text[:1].isupper() or not text.isascii():
        return None
    sentence = _SENTENCE.match(text)
    found = sentence.group(1) if sentence else text.rstrip(":;,") + "."
    shortest, longest = _SUMMARY_CHARACTERS
    return found if shortest <= len(found) <= longest and found.count(" ") >= 3 else None
