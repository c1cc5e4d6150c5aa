"""Report pages, each a self-contained HTML file: the data of a stage and the stage's template.

A stage's template has the name of the module that collects its data and lies next to it
(`train/run_report/run_page.py`, `train/run_report/run_page.html.j2`). It extends
`report/page.html.j2` and uses the macros in `report/blocks.html.j2`. `render_page` is a pure
function of the data, so the same data give the same bytes.

The texts on a page are not trusted. All text is escaped, the whole page has its control characters
made visible, and its content security policy forbids scripts and requests.
"""

import functools
import re
from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trainrig.report import number_formats
from trainrig.report.plots import Drawable

# Colours by name. The series use the colours of Okabe and Ito, which the colour-blind distinguish.
# Their shades have a contrast of 3:1 on each paper (WCAG 2.2, criterion 1.4.11).
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
LONGEST = 1_200  # characters shown of a prompt or an answer


def render_page(module: str, /, **values: object) -> str:
    """Return the HTML that the template of `module` makes of `values`, to be written as UTF-8.

    `module` is the `__name__` of a module of this package. Raises ValueError for a page without
    four to six key figures, and for two sections of one name: links to sections use their names.
    """
    template = f"{module.removeprefix('trainrig.').replace('.', '/')}.html.j2"
    page = _make_environment().get_template(template).render(values)
    figures = page.count('<div class="figure">')
    if not 4 <= figures <= 6:
        raise ValueError(f"{template}: {figures} figures; a page shows four to six")
    names = re.findall(r'<section id="([^"]*)"', page)
    if len(set(names)) < len(names):
        raise ValueError(f"{template}: two sections have one name: {', '.join(names)}")
    return number_formats.escape_invisible(page)


@functools.cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trainrig", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "bytes": number_formats.format_bytes,
        "duration": number_formats.format_duration,
        "fmt": format,
        "number": number_formats.format_number,
        "percent": lambda part, whole=1.0: number_formats.format_percent(part, whole),
        "plural": number_formats.format_count,
        "short": number_formats.format_short,
        "shorten": shorten_middle,
        "visible": number_formats.escape_invisible,
    }
    environment.globals |= {"draw": _draw_markup, "policy": POLICY, "style": Markup(build_style())}
    blocks = environment.get_template("report/blocks.html.j2").module
    environment.globals |= {n: v for n, v in vars(blocks).items() if not n.startswith("_")}
    return environment


def _draw_markup(plot: Drawable) -> Markup:
    from trainrig.report.plot_drawing import draw  # matplotlib: pages without plots skip it

    return Markup(draw(plot))


def shorten_middle(text: str, longest: int = LONGEST) -> str:
    """Return `text`, without its middle if it is longer than `longest`."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} […] {text[-half:]}"


def build_style() -> str:
    """Return the style sheet of a page, with the colours of both themes."""
    css = (resources.files("trainrig.report") / "report.css").read_text(encoding="utf-8")
    return (
        f":root{{color-scheme:light dark;{_format_variables(LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{_format_variables(DARK)}}}}}\n"
        f"@media print{{:root{{color-scheme:light;{_format_variables(LIGHT)}}}}}\n{css}"
    )


def _format_variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
