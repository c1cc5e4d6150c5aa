"""Collector of the messages that users of trainrig read, in modules and in page templates."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ERROR, LOG, PRINT, HELP, PAGE, TEXT = "error", "log", "print", "help", "page", "text"
LOGGING = {"critical", "debug", "error", "exception", "info", "log", "warn", "warning"}
PRINTING = {"echo", "print", "print_table", "say", "secho", "show_training", "show_trials", "stage"}
HELPING = {"Argument", "Option", "Typer"}
PAGES = {
    *("Bar", "Chart", "Details", "KeyFigure", "Line", "Mark", "PageCommand", "ReportPage"),
    *("ReportTable", "SampleGroup", "Section", "Step", "Text", "TextSample", "Verdict"),
    *("add_column", "annotate", "set_title", "set_xlabel", "set_ylabel"),
}
PAGE_KEYWORDS = {"caption", "label", "sentence", "title", "x_label", "xlabel", "y_label", "ylabel"}
# The strings of these calls are patterns, programs, or names of types: nobody reads them.
UNREAD = {"compile", "fullmatch", "findall", "finditer", "match", "split", "sub", "TypeVar", "cast"}
PROSE = re.compile(r"[A-Za-z]{2,}[^\w\s]*\s+[^\w\s]*\w*[A-Za-z]{2,}")
WORD = re.compile(r"[A-Za-z]{2,}")


@dataclass(frozen=True)
class Message:
    """A string that a user may read; the fields of an f-string are shown as `{name}`."""

    line: int
    kind: str
    text: str

    def blank_fields(self) -> str:
        """Return the words alone: each field as `{}`."""
        return re.sub(r"\{[^{}]*\}", "{}", self.text)


def collect_messages(path: Path) -> list[Message]:
    """Return the messages of a module, or of a page's template, in the order of their lines."""
    if path.suffix == ".j2":
        return sorted(set(_collect_template(path)), key=lambda found: found.line)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return sorted(set(_collect(tree, TEXT, direct=False)), key=lambda found: found.line)


def _collect_template(path: Path) -> Iterator[Message]:
    """Yield the text of a template line by line, and the strings in its expressions."""

    def blank(tag: re.Match[str]) -> str:
        """Replace a tag, so that the text keeps its lines."""
        field = "{}" if tag.group().startswith("{{") else ""
        return field + "\n" * tag.group().count("\n")

    source = re.sub(r"{#.*?#}", blank, path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for tag in re.finditer(r"{{.*?}}|{%.*?%}", source, re.DOTALL):
        line = source.count("\n", 0, tag.start()) + 1
        for literal in re.findall(r'"([^"]*)"', tag.group()):
            if PROSE.search(literal):
                yield Message(line, PAGE, literal)
    text = re.sub(r"{{.*?}}|{%.*?%}", blank, source, flags=re.DOTALL)
    for line, words in enumerate(re.sub(r"<[^>]*>", " ", text).splitlines(), 1):
        if WORD.search(words):
            yield Message(line, PAGE, words.strip())


def _collect(node: ast.AST, kind: str, direct: bool) -> Iterator[Message]:
    """Yield the strings below `node`; `direct` holds if a user reads `node` itself."""
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        text = _show(node)
        words = re.sub(r"\{[^{}]*\}", "xx", text)
        if PROSE.search(words) or (direct and WORD.search(words)):
            yield Message(node.lineno, kind, text)
    for child, is_argument in _iterate_children(node):
        if isinstance(node, ast.Raise) and isinstance(child, ast.Call):
            yield from _collect_call(child, ERROR)
        elif isinstance(child, ast.Call):
            yield from _collect_call(child, kind)
        elif isinstance(child, ast.keyword) and child.arg == "help":
            yield from _collect(child.value, HELP, direct=True)
        elif isinstance(child, ast.keyword) and child.arg in PAGE_KEYWORDS:
            yield from _collect(child.value, PAGE, direct=True)
        else:
            is_kept = is_argument or isinstance(node, ast.IfExp | ast.BinOp | ast.keyword)
            yield from _collect(child, kind, direct and is_kept)


def _collect_call(call: ast.Call, kind: str) -> Iterator[Message]:
    match call.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            pass
        case _:
            name = ""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if name in UNREAD and isinstance(owner, ast.Name) and owner.id in ("re", "regex"):
        return
    own = kind
    direct = kind == ERROR and name[:1].isupper()
    for names, its_kind in ((PRINTING, PRINT), (HELPING, HELP), (PAGES, PAGE)):
        if name in names:
            own, direct = its_kind, True
    is_logger = isinstance(owner, ast.Name) and re.search("log|warnings", owner.id, re.I)
    if name in LOGGING and is_logger:
        own, direct = LOG, True
    yield from _collect(call.func, kind, direct=False)
    for argument in [*call.args, *call.keywords]:
        if isinstance(argument, ast.Call):
            yield from _collect_call(argument, own)
        else:
            wrapper = ast.Expression(body=argument)  # type: ignore[arg-type]
            yield from _collect(wrapper, own, direct)


def _iterate_children(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each child that may hold a message, and whether it stands for the node itself."""
    skipped: list[ast.AST] = []
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        skipped = [
            statement
            for statement in node.body
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ]
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
        return
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield part.value, False
        return
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield child, isinstance(node, ast.Expression)


def _show(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            parts.append("{" + re.sub(r"[{}]", "|", ast.unparse(part.value)) + "}")
        elif isinstance(part, ast.Constant):
            parts.append(str(part.value))
    return "".join(parts)
