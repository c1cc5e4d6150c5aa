"""Settings of the documentation site, which `make site` builds with Sphinx.

Sphinx with MyST was chosen over MkDocs Material after trying both. docs/evidence/documentation.md
has the comparison. The source folder is the root of the repository, so the links of README.md,
CONTRIBUTING.md and the recipes work as they are written.
"""

import shutil
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

project = "trainrig"
author = "the trainrig authors"
html_title = "trainrig"

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/site/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/*/*.md",
    "jobs/recipes/*.md",
    "jobs/recipes/*/*.md",
]
exclude_patterns = [".*", "platform", "tests", "cluster", "runs", "quickstart", "site"]

myst_heading_anchors = 4  # links to headings, with the anchors that GitHub gives them
# Pages say `[[sources]]` for tables of TOML and `$PWD` for variables, so no extension of MyST that
# reads mathematics, and no smart quotes, which would change options such as `--json`.
myst_enable_extensions = []
smartquotes = False

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]  # index.html leads to the first page
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = "$ "
# Files without a lexer of their own, such as drawings of folders, are plain text.
highlight_language = "text"


def copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Copy the pictures of README.md, which names them in HTML that Sphinx does not read."""
    if error is None:
        for picture in (ROOT / "docs").glob("quickstart-loss-*.svg"):
            shutil.copy(picture, Path(app.outdir) / "docs")


def setup(app: Sphinx) -> None:
    """Register the copying of pictures."""
    app.connect("build-finished", copy_pictures)
