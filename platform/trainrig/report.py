"""Report pages, each a self-contained HTML file that needs no other explanation.

Every page has the same order: a verdict of one sentence with its warnings, four to six key figures,
sections with a finding, a chart and details, the next commands, and the provenance. A `ReportPage`
is plain data in that order. `render_html()` is a pure function of the data, so the same page gives
the same bytes.

The texts on a page are not trusted. All text is escaped and its control characters are made
visible, and the page's content security policy forbids scripts and requests.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

# Colours by name. The series use the colours of Okabe and Ito, which the colour-blind distinguish.
# Their shades have a contrast of 3:1 on each paper (WCAG 2.2, criterion 1.4.11; test_report.py).
LIGHT = {
    "paper": "#ffffff",
    "panel": "#f5f7f9",
    "ink": "#1b2026",
    "muted": "#59636e",
    "grid": "#d5dbe1",
    "c1": "#0072b2",
    "c2": "#d55e00",
    "c3": "#009e73",
    "c4": "#cc79a7",
}
DARK = {
    "paper": "#111418",
    "panel": "#1a1f25",
    "ink": "#e7ebef",
    "muted": "#9ba6b2",
    "grid": "#343c45",
    "c1": "#56b4e9",
    "c2": "#e69f00",
    "c3": "#009e73",
    "c4": "#cc79a7",
}

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Cell = str | int | float | None

# Characters that would break the markup or reverse the reading order: C0 and C1 controls, marks and
# overrides of writing direction, lone surrogates, and two characters that XML forbids.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufffe\uffff]"
)


def escape_invisible(text: str) -> str:
    """Spell out control characters, direction marks and lone surrogates, such as ⟨U+202E⟩."""
    text = text.replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


def escape(text: str) -> str:
    """Escape untrusted `text` for use as HTML text or attribute value."""
    return html.escape(escape_invisible(text), quote=True)


def format_number(value: int | float) -> str:
    """Format an integer in full (`1,234`), a float with four significant digits (`0.8123`)."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


_SIZES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_short(value: float) -> str:
    """Format `value` in full below 10,000, else with three significant digits, as `52.1 k`."""
    if abs(value) < 9_999.5:
        return format_number(value)
    # 999,500 rounds to 1 M, not to 1000 k.
    size, letter = next((size, letter) for size, letter in _SIZES if abs(value) >= 0.9995 * size)
    return f"{value / size:.3g}\u00a0{letter}"


def format_percent(part: float, whole: float) -> str:
    """Format the share of `part` in `whole` as `37.6 %`, or as `–` if `whole` is 0."""
    return f"{100 * part / whole:.1f}\u00a0%" if whole else "–"


def format_duration(seconds: float) -> str:
    """Format a duration as `0.4 s`, `12 s`, `4 min 10 s` or `2 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
    return f"{minutes // 60}\u00a0h {minutes % 60}\u00a0min"


@dataclass(frozen=True)
class Verdict:
    """The result in one sentence, with the warnings that a reader must know."""

    sentence: str
    state: Literal["done", "warning", "failed"] = "done"
    warnings: tuple[str, ...] = ()

    def render_html(self) -> str:
        """Render the block below the page's title."""
        warnings = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return (
            f'<div class="verdict {self.state}"><p><span class="state">{self.state}</span> '
            f"{escape(self.sentence)}</p>{f'<ul>{warnings}</ul>' if warnings else ''}</div>"
        )


@dataclass(frozen=True)
class KeyFigure:
    """One number of the top row; `comparison` names the value to compare it with."""

    name: str
    value: str
    unit: str
    comparison: str

    def render_html(self) -> str:
        """Render one cell of the top row."""
        return (
            f'<div class="figure"><dt>{escape(self.name)}</dt><dd><b>{escape(self.value)}</b> '
            f"{escape(self.unit)}<small>{escape(self.comparison)}</small></dd></div>"
        )


@dataclass(frozen=True)
class Step:
    """One stage in the strip from input to result, which links to the section of its name."""

    name: str
    value: str
    unit: str
    seconds: float

    def render_html(self, sections: set[str]) -> str:
        """Render one cell of the strip, with a link if its name is in `sections`."""
        name = escape(self.name)
        title = f'<a href="#{name}">{name}</a>' if self.name in sections else name
        return (
            f'<li><span class="name">{title}</span><b>{escape(self.value)}</b> {escape(self.unit)}'
            f"<small>{format_duration(self.seconds)}</small></li>"
        )


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def render_html(self) -> str:
        """Render the paragraph."""
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class ReportTable:
    """A table; `caption` describes the rows, and names the rows that were left out."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def render_html(self) -> str:
        """Render the table in a box that scrolls sideways on a narrow screen."""
        # A column is right-aligned if its first value is a number.
        right = [not isinstance(cell, str) for cell in self.rows[0]] if self.rows else []
        right += [False] * (len(self.columns) - len(right))
        head = "".join(
            f'<th scope="col"{" class=n" if is_right else ""}>{escape(column)}</th>'
            for column, is_right in zip(self.columns, right, strict=True)
        )
        body = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in self.rows)
        caption = escape(self.caption)
        return (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}"><table>'
            f"<caption>{caption}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )


def _render_cell(value: Cell) -> str:
    if isinstance(value, str):
        return f'<td dir="auto">{escape(value)}</td>'
    return f"<td class=n>{'–' if value is None else format_number(value)}</td>"


@dataclass(frozen=True)
class Chart:
    """A finding and the drawing that shows it.

    `svg` is markup, as `trainrig.figures.draw` returns it. `label` describes the drawing for screen
    readers. `caption` names the sample size and the smoothing. `table` holds the drawn numbers.
    """

    title: str
    svg: str
    label: str
    caption: str
    table: ReportTable

    def render_html(self) -> str:
        """Render title, drawing, caption, and a folded table of the numbers."""
        return (
            f'<figure><h3>{escape(self.title)}</h3><div class="drawing" role="img" '
            f'aria-label="{escape(self.label)}">{self.svg}</div>'
            f"<figcaption>{escape(self.caption)}</figcaption>"
            f"{Details('Numbers of this chart', (self.table,)).render_html()}</figure>"
        )


@dataclass(frozen=True)
class TextSample:
    """A verbatim text under the heading `label`; `note` says what happened to the text.

    `marks` are spans of the text to highlight, in order and without overlap.
    """

    label: str
    text: str
    note: str = ""
    marks: tuple[tuple[int, int], ...] = ()

    def render_html(self) -> str:
        """Render the text in a box, with its line breaks and an automatic writing direction."""
        note = f"<small>{escape(self.note)}</small>" if self.note else ""
        return (
            f'<div class="sample"><span class="name">{escape(self.label)}</span>{note}'
            f'<blockquote dir="auto">{self._mark_text()}</blockquote></div>'
        )

    def _mark_text(self) -> str:
        pieces = []
        at = 0
        for start, end in self.marks:
            between = self.text[at:start]
            marked = self.text[start:end]
            pieces.append(f"{escape(between)}<mark>{escape(marked)}</mark>")
            at = end
        return "".join([*pieces, escape(self.text[at:])])


@dataclass(frozen=True)
class SampleGroup:
    """Samples to compare with each other, shown side by side where the width allows."""

    samples: tuple[TextSample, ...]
    headed: bool = False  # True: the other samples refer to the first, which is above them

    def render_html(self) -> str:
        """Render the samples in one row, or in several rows if the width requires it."""
        kind = "group headed" if self.headed else "group"
        return (
            f'<div class="{kind}">{"".join(sample.render_html() for sample in self.samples)}</div>'
        )


@dataclass(frozen=True)
class Details:
    """Details that are folded under one line."""

    summary: str
    blocks: "tuple[Block, ...]"

    def render_html(self) -> str:
        """Render the foldable block."""
        inside = "".join(block.render_html() for block in self.blocks)
        return f"<details><summary>{escape(self.summary)}</summary>{inside}</details>"


Block = Text | ReportTable | Chart | TextSample | SampleGroup | Details


@dataclass(frozen=True)
class Section:
    """A part of the page; `name` is its anchor, of lower-case letters and dashes."""

    name: str
    title: str
    blocks: tuple[Block, ...]

    def render_html(self) -> str:
        """Render the heading and the blocks."""
        inside = "".join(block.render_html() for block in self.blocks)
        return f'<section id="{escape(self.name)}"><h2>{escape(self.title)}</h2>{inside}</section>'


@dataclass(frozen=True)
class PageCommand:
    """A command for the reader to run, and its purpose."""

    line: str
    purpose: str

    def render_html(self) -> str:
        """Render the purpose, and the command, which one click selects."""
        return f"<li>{escape(self.purpose)}<pre><code>{escape(self.line)}</code></pre></li>"


@dataclass(frozen=True)
class ReportPage:
    """A whole report; `provenance` maps headings to names and values (inputs, versions, hashes)."""

    title: str
    verdict: Verdict
    figures: tuple[KeyFigure, ...]
    sections: tuple[Section, ...]
    commands: tuple[PageCommand, ...]
    provenance: Mapping[str, Mapping[str, str]]
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if not 4 <= len(self.figures) <= 6:
            raise ValueError(f"{len(self.figures)} figures: a page shows four to six")
        names = [section.name for section in self.sections]
        if len(set(names)) < len(names):
            raise ValueError(f"two sections have one name: {', '.join(names)}")

    def render_html(self) -> str:
        """Render the page as the text of an HTML file, to be written as UTF-8."""
        title = escape(self.title)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<title>{title}</title>\n<link rel="icon" href="data:,">\n'
            f"<style>\n{_build_style()}</style>\n</head>\n<body>\n<main>\n"
            f"<header>\n<h1>{title}</h1>\n{self.verdict.render_html()}\n{self._render_figures()}\n"
            f"{self._render_strip()}\n</header>\n"
            f"{chr(10).join(section.render_html() for section in self.sections)}\n"
            f"{self._render_commands()}\n{self._render_provenance()}\n</main>\n</body>\n</html>\n"
        )

    def _render_figures(self) -> str:
        return (
            f'<dl class="figures">{"".join(figure.render_html() for figure in self.figures)}</dl>'
        )

    def _render_strip(self) -> str:
        names = {section.name for section in self.sections}
        steps = "".join(step.render_html(names) for step in self.steps)
        return f'<nav aria-label="Stages"><ol class="strip">{steps}</ol></nav>' if steps else ""

    def _render_commands(self) -> str:
        commands = "".join(command.render_html() for command in self.commands)
        return f'<section id="next"><h2>What to do next</h2><ol>{commands}</ol></section>'

    def _render_provenance(self) -> str:
        parts = "".join(
            f"<h3>{escape(heading)}</h3><dl>"
            + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in values.items())
            + "</dl>"
            for heading, values in self.provenance.items()
        )
        return f'<section id="provenance"><h2>Where this comes from</h2>{parts}</section>'


def _build_style() -> str:
    css = (resources.files("trainrig") / "report.css").read_text(encoding="utf-8")
    return (
        f":root{{color-scheme:light dark;{_format_variables(LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{_format_variables(DARK)}}}}}\n"
        f"@media print{{:root{{color-scheme:light;{_format_variables(LIGHT)}}}}}\n{css}"
    )


def _format_variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
