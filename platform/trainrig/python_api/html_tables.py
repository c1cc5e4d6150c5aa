"""Tables in HTML that notebooks show for the objects of the library."""

import html
from collections.abc import Mapping
from typing import Any

from trainrig.report.number_formats import format_number


def render_html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a table of two columns, names and values, below a title in bold.

    Tables and lists among the values are shown as `name value` pairs. All text is escaped.
    """
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(format_value(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<b>{html.escape(title)}</b><table>{cells}</table>"


def format_value(value: Any) -> str:
    """Return `value` as text for one cell; an empty table or list is `none`."""
    if isinstance(value, bool) or not isinstance(value, int | float | Mapping | list | tuple):
        return str(value)
    if not isinstance(value, int | float) and not value:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return format_number(value)
