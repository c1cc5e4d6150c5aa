"""The documentation site has each page once in its navigation, and loads nothing from elsewhere."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
NAVIGATION = (SITE / "index.md").read_text(encoding="utf-8")
PAGES = {"README", "CONTRIBUTING", "CHANGELOG", "SECURITY"} | {
    path.relative_to(ROOT).with_suffix("").as_posix()
    for folder in ("docs", "jobs/recipes")
    for path in (ROOT / folder).rglob("*.md")
    if path.parent != SITE
}
KINDS = ("Tutorials", "How-to guides", "Reference", "Explanation")
# An attribute or a rule of CSS by which a browser loads something, unlike a link to click on.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*?\bsrc(?:set)?=[\"']?(?:https?:)?//[^\"' >]+"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?(?:https?:)?//[^\"' >]+"
    r"|url\([\"']?(?:https?:)?//[^)]+|@import[^;]+//[^;]+"
)


def list_entries(text: str) -> list[str]:
    """Return the pages of all trees of contents, in order, without their titles."""
    lines = [
        line
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    return [re.sub(r".*<(.*)>", r"\1", line).removeprefix("/") for line in lines]


def test_each_page_is_in_the_navigation_exactly_once() -> None:
    counts = Counter(list_entries(NAVIGATION))
    assert {page: count for page, count in counts.items() if count != 1} == {}
    assert sorted(counts) == sorted(PAGES)


def test_the_navigation_has_the_four_kinds_of_pages() -> None:
    captions = re.findall(r"^:caption: (.*)$", NAVIGATION, re.MULTILINE)
    firsts = list(dict.fromkeys(caption.partition(":")[0] for caption in captions))
    assert [caption for caption in firsts if caption in KINDS] == list(KINDS)


def test_make_site_ends_at_a_broken_link() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target = makefile.partition("\nsite: .venv/site")[2].partition("\n\n")[0]
    assert "--fail-on-warning" in target
    assert "suppress_warnings" not in (SITE / "conf.py").read_text(encoding="utf-8")
    assert "\nmake site\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def build_site(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", SITE]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, source, out],
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_another_host(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    built = build_site(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "index.html").exists()
    assert {page for page in PAGES if not (tmp_path / f"{page}.html").exists()} == set()
    loaded = {
        f"{path.relative_to(tmp_path)}: {found}"
        for pattern in ("*.html", "*.css")
        for path in tmp_path.rglob(pattern)
        for found in LOADED.findall(path.read_text(encoding="utf-8"))
    }
    assert loaded == set()
    assert "decontamin" in (tmp_path / "searchindex.js").read_text(encoding="utf-8")
    readme = (tmp_path / "README.html").read_text(encoding="utf-8")
    for picture in re.findall(r'(?:src|srcset)="(docs/[^"]+)"', readme):
        assert (tmp_path / picture).exists(), picture


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    (tmp_path / "docs" / "site").mkdir(parents=True)
    page = "# A page\n\n[A broken link](none.md)\n"
    (tmp_path / "docs" / "site" / "index.md").write_text(page, encoding="utf-8")
    built = build_site(tmp_path, tmp_path / "out")
    assert built.returncode != 0
    assert "none.md" in built.stderr


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://unpkg.com/a.js">', True),
        ("@import url(//fonts.example/a.css)", True),
        ('<link rel="stylesheet" href="https://fonts.example/a.css">', True),
        ('<a href="https://example.org">', False),
        ('<script src="_static/a.js">', False),
    ],
)
def test_what_a_browser_would_load_is_found(text: str, found: bool) -> None:
    assert bool(LOADED.search(text)) == found
