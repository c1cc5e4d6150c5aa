"""Content of a page without its frame: a title and a list of blocks.

Docstrings are parsed into blocks here. The parser aims at pages that look like a project's manual
and covers only part of reStructuredText: a docstring that it does not understand becomes plain
paragraphs, never an error.
"""

import html
import inspect
import itertools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of prose; the only block that faults are injected into."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading; `level` 2 is a section of the page, 6 the deepest level."""

    level: int
    text: str


@dataclass(frozen=True)
class Code:
    """Preformatted lines."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """An unordered list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class ArticleTable:
    """A table; every row has as many cells as the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Markup:
    """Ready-made HTML, as pydoc writes it."""

    html: str


Block = Paragraph | Heading | Code | Bullets | ArticleTable | Markup


@dataclass(frozen=True)
class Article:
    """The content of a page.

    `path` is the path of its URL without the first slash; `section` is its package or chapter.
    """

    path: str
    title: str
    section: str
    blocks: tuple[Block, ...]


def build_main_text(article: Article) -> str:
    """Return the lines of text that a perfect extractor would find, except Markup."""
    return "\n".join([article.title, *(line for b in article.blocks for line in _list_lines(b))])


def count_prose_words(article: Article) -> int:
    """Return the number of words in the paragraphs of `article`."""
    return sum(len(block.text.split()) for block in article.blocks if isinstance(block, Paragraph))


def _list_lines(block: Block) -> list[str]:
    match block:
        case Paragraph(text) | Heading(_, text):
            return [text]
        case Code(text):
            return text.splitlines()
        case Bullets(items):
            return list(items)
        case ArticleTable(header, rows):
            return [" ".join(row) for row in (header, *rows)]
        case Markup(_):
            return []


def render_body(article: Article) -> str:
    """Render the blocks as HTML; everything but Markup is escaped."""
    return "\n".join(_render_block(block) for block in article.blocks)


def _render_block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Code(text):
            return f"<pre><code>{html.escape(text)}</code></pre>"
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in items)}</ul>"
        case ArticleTable(header, rows):
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
            body = "".join(
                f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
                for row in rows
            )
            return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        case Markup(markup):
            return markup


_UNDERLINE = re.compile(r"^([=\-~^*+#\"'.])\1{2,}$")
_BULLET = re.compile(r"^(?:[*+\-•]|\d{1,2}[.)])\s+")
_FIELD = re.compile(r"^:(\w+(?: [^:]*)?):\s*")
_FIELD_WORDS = re.compile(r"^(?:param(?:eter)?|arg(?:ument)?|type|raises?|ivar|cvar|var)\s+")
_ROLE = re.compile(r":[a-z]+(?::[a-z]+)?:`~?!?\.?([^`<]+?)(?:\s*<[^`]*>)?`")
_QUOTED = re.compile(r"(?<![\w*`])(`{1,2}|\*\*)([^\s*`](?:.*?[^\s*`])?)\1_{0,2}(?![\w*`])")


def read_docstring(docstring: str) -> tuple[Block, ...]:
    """Parse a docstring into blocks, in order.

    The docstring must already be dedented, as by `inspect.cleandoc`.
    """
    blocks: list[Block] = []
    for group in re.split(r"\n\s*\n", docstring.strip("\n")):
        lines = [line.rstrip() for line in group.strip("\n").splitlines()]
        blocks += _read_group([line for line in lines if line])
    return tuple(blocks)


def _read_group(lines: list[str]) -> list[Block]:
    if lines and lines[0].startswith(".. "):
        lines = inspect.cleandoc("\n".join(["", *lines[1:]])).splitlines()
    if not lines:
        return []
    if len(lines) > 2 and _UNDERLINE.match(lines[0].strip()):
        lines = lines[1:]  # Skips the line above a heading.
    if len(lines) > 1 and _UNDERLINE.match(lines[1].strip()):
        return [Heading(4, strip_marks(lines[0].strip())), *_read_group(_dedent_lines(lines[2:]))]
    if lines[0].lstrip().startswith(">>>") or all(line.startswith("    ") for line in lines):
        return [Code("\n".join(_dedent_lines(lines)))]
    if _BULLET.match(lines[0]) or _FIELD.match(lines[0]):
        return [Bullets(tuple(_format_bullet(item) for item in _group_hanging(lines)))]
    if len(lines) > 1 and not lines[0][0].isspace() and all(x[0].isspace() for x in lines[1:]):
        term = lines[0].strip()
        if term.endswith(":") and " " not in term:
            items = _group_hanging(_dedent_lines(lines[1:]))
            return [
                Heading(4, term.rstrip(":")),
                Bullets(tuple(_format_bullet(item) for item in items)),
            ]
    if any(line[0].isspace() for line in lines):
        return _read_indented(lines)
    if all(_UNDERLINE.match(line.strip()) for line in lines):
        return []
    return [Paragraph(strip_marks(" ".join(line.strip() for line in lines)))]


def _read_indented(lines: list[str]) -> list[Block]:
    """Parse terms with indented definitions, or prose that alternates with indented text."""
    items = _group_hanging(lines)
    if all(len(item) > 1 and not _BULLET.match(item[1]) for item in items):
        return [Bullets(tuple(map(_format_bullet, items)))]
    blocks: list[Block] = []
    for indented, run in itertools.groupby(lines, key=lambda line: line[0].isspace()):
        together = list(run)
        blocks += _read_group(_dedent_lines(together) if indented else together)
    return blocks


def _dedent_lines(lines: list[str]) -> list[str]:
    return inspect.cleandoc("\n".join(["", *lines])).splitlines()


def _group_hanging(lines: list[str]) -> list[list[str]]:
    """Group each unindented line with the indented lines that follow it."""
    items: list[list[str]] = []
    for line in lines:
        if items and line[0].isspace():
            items[-1].append(line.strip())
        else:
            items.append([line.strip()])
    return items


def _format_bullet(item: list[str]) -> str:
    first = _BULLET.sub("", item[0])
    if field := _FIELD.match(first):
        name = _FIELD_WORDS.sub("", field.group(1))
        first = f"{name}: {first[field.end() :]}"
    elif len(item) > 1 and not _BULLET.match(item[0]) and " : " in first:
        first += ":"  # NumPy style: "name : type", with the description on the next line.
    return strip_marks(" ".join([first, *item[1:]]).strip())


def strip_marks(text: str) -> str:
    """Remove reStructuredText markup: ``:func:`~os.walk` `` becomes `os.walk`."""
    unmarked = _QUOTED.sub(r"\2", _ROLE.sub(r"\1", text)).strip()
    return unmarked[:-1] if unmarked.endswith("::") else unmarked
