"""Lines near the head and the foot of a page, and which of them may be removed as boilerplate.

A line that many pages of a site have is not always boilerplate: headings, code and the last lines
of examples recur as well. The rules here are structural, so they hold in any language:

- The more lines of the page's own stand between a line and the edge of the page, the larger the
  share of the site's pages that must have it.
- A line that stands before text of the page's own may be its heading, so it stays, unless it ends a
  sentence, or no line of the page's own stands before it (such as a menu above the title).
- Lines that look like code, Markdown headings and fenced code always stay.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainrig.corpus.removed_spans import RemovedSpan


class PageLine(NamedTuple):
    """A line of a page that is not blank."""

    start: int  # position in characters of the page's text
    text: str  # without the newline


def list_head_lines(text: str, most: int) -> list[PageLine]:
    """Return the first `most` lines of `text` that are not blank, in order."""
    found: list[PageLine] = []
    place = 0
    while place < len(text) and len(found) < most:
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        if text[place:end].strip():
            found.append(PageLine(place, text[place:end]))
        place = end + 1
    return found


def list_foot_lines(text: str, most: int) -> list[PageLine]:
    """Return the last `most` lines of `text` that are not blank, in order."""
    found: list[PageLine] = []
    end = len(text)
    while end > 0 and len(found) < most:
        place = text.rfind("\n", 0, end) + 1
        if text[place:end].strip():
            found.append(PageLine(place, text[place:end]))
        end = place - 1
    return found[::-1]


_FENCE = re.compile(r"\s*(?:```|~~~)")
_MARKDOWN_HEADING = re.compile(r"#{1,6}\s")
# Indented text, prompts, comments and brackets; ends of statements; calls, operators and types.
_CODE = re.compile(
    r"(?: {4}|\t|>>>|\.\.\. |\$ |[#@}\])]|//|/\*)"
    r"|.*[;{}=\[(,\\]\s*$|.*\w\([^()]*\)\s*$|.*(?:\w::\w|\)\s*->|=>| = |\w<\w)",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r".*[.!?…。！？।؟][\"'”’»)\]]*\s*$", re.DOTALL)
_SEPARATOR = re.compile(r"[\W_]+$")  # such as "|" and "---"

Edge = Literal["head", "foot", "page"]
"""Where lines are from: near the head or the foot of a page, or all of the page."""


def choose_removed_lines(
    lines: Sequence[PageLine], shares: Sequence[float], min_share: float, edge: Edge
) -> list[int]:
    """Return the indexes of the lines to remove, of `lines` in the order of the page.

    `shares` are the shares of the site's pages that have each line. A line is removed if its share
    is `min_share` or more, and near an edge, if it is that times one more than the number of other
    lines that stay between the line and the edge. Lines of punctuation alone count for nothing;
    those between removed lines are removed as well.
    """
    fenced = _find_fenced_lines(lines) if edge == "page" else set()
    solid = [nth for nth, line in enumerate(lines) if not _is_separator(line) or _is_code(line)]
    removed = set[int]()  # indexes in `solid`
    passed = 0  # lines that stay between here and the edge
    for nth in reversed(range(len(solid))) if edge == "foot" else range(len(solid)):
        line = lines[solid[nth]]
        needed = round(min_share * (1 + passed if edge != "page" else 1), 9)
        if edge != "page" and (needed > 1 or _FENCE.match(line.text)):
            break
        if round(shares[solid[nth]], 9) < needed or _is_code(line) or solid[nth] in fenced:
            passed += 1
        else:
            removed.add(nth)
    removed -= _find_headings([lines[nth].text for nth in solid], removed, edge)
    return _add_separators(removed, solid, len(lines), edge)


def _find_fenced_lines(lines: Sequence[PageLine]) -> set[int]:
    """Return the indexes of the lines within Markdown code fences."""
    found = set[int]()
    within = False
    for nth, line in enumerate(lines):
        if _FENCE.match(line.text):
            within = not within
        elif within:
            found.add(nth)
    return found


def _find_headings(texts: Sequence[str], removed: set[int], edge: Edge) -> set[int]:
    """Return the indexes in `removed` of lines that may be headings of lines that stay.

    In each run of removed lines before one that stays, this is the last that does not end a
    sentence. More lines of the page follow those at its head, which may begin with a menu.
    """
    first_own = next((nth for nth in range(len(texts)) if nth not in removed), len(texts))
    found = set[int]()
    leads = edge == "head"  # true if lines that stay follow, without a heading yet
    for nth in reversed(range(len(texts))):
        if nth not in removed:
            leads = True
        elif leads and (edge == "foot" or nth > first_own) and not _SENTENCE_END.match(texts[nth]):
            found.add(nth)
            leads = False
    return found


def _is_code(line: PageLine) -> bool:
    """Return whether a line looks like code, or is a Markdown heading or code fence."""
    return any(pattern.match(line.text) for pattern in (_CODE, _MARKDOWN_HEADING, _FENCE))


def _is_separator(line: PageLine) -> bool:
    return bool(_SEPARATOR.match(line.text))


def _add_separators(removed: set[int], solid: Sequence[int], lines: int, edge: Edge) -> list[int]:
    """Return the removed lines of `solid`, with the separators between them and at the edge."""
    found = [solid[nth] for nth in removed]
    gone = removed | {-1 if edge == "head" else len(solid)}
    places = [-1, *solid, lines]
    for nth in range(-1, len(solid)):
        if nth in gone and nth + 1 in gone:
            found += range(places[nth + 1] + 1, places[nth + 2])
    return sorted(found)


def build_removed_spans(text: str, starts: Sequence[int], by: str) -> list[RemovedSpan]:
    """Return the spans that remove the lines at `starts`, each with the blank lines after it.

    At the end of the text, the blank lines before are removed in place of those after.
    """
    spans: list[RemovedSpan] = []
    for start in sorted(set(starts)):
        end = text.find("\n", start)
        end = len(text) if end < 0 else _skip_blank_lines(text, end + 1)
        if spans and spans[-1].end == start:
            spans[-1] = RemovedSpan(spans[-1].start, end, by)
        else:
            spans.append(RemovedSpan(start, end, by))
    if spans and spans[-1].end == len(text):
        before = text[: spans[-1].start].rstrip()
        last_line_end = text.find("\n", len(before))
        spans[-1] = RemovedSpan(last_line_end if before else 0, len(text), by)
    return spans


def _skip_blank_lines(text: str, place: int) -> int:
    """Return the start of the first line from `place` on that is not blank, or the text's end."""
    while place < len(text):
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        if text[place:end].strip():
            return place
        place = end + 1
    return len(text)
