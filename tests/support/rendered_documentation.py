"""Pages of this project's documentation in several themes of Sphinx, with known main parts."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from support.extraction_pages import Labelled
from trainrig.corpus.read import RawPage

RENDERED: Final = "rendered documentation"
THEMES: Final = ("alabaster", "classic", "furo", "nature")
_ROOT: Final = Path(__file__).parents[2]
_PAGES: Final = "docs/*.html"
_EVERY: Final = 3  # a theme takes every third page, each another third as far as there are three
# Only the guide pages: tables of figures would make up most of the blocks.
_SETTINGS: Final = """
project = "trainrig"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = ["docs/*.md"]
highlight_language = "text"
smartquotes = False
"""


def render_pages(themes: Sequence[str] = THEMES) -> list[Labelled]:
    """Render a third of the guide pages in each theme."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, theme in enumerate(themes):
            out = Path(folder) / theme
            render(theme, out)
            for path in sorted(out.glob(_PAGES))[number % _EVERY :: _EVERY]:
                url = f"https://{theme}.example/{path.name}"
                page = RawPage(url, "text/html", path.read_bytes(), "", "utf-8")
                found.append(Labelled(page, RENDERED, theme, (), ()))
    return found


def render(theme: str, out: Path) -> None:
    """Render the guide pages with `theme` to the folder `out`."""
    out.mkdir()
    (out / "conf.py").write_text(_SETTINGS)
    subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "--quiet", "--conf-dir", str(out)),
            *("-D", f"html_theme={theme}", "--doctree-dir", str(out.parent / ".doctrees")),
            *(str(_ROOT), str(out)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
