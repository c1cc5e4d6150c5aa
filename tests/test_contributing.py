"""CONTRIBUTING.md names only what exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w.-]+(?:/[\w.-]*)*)`", PAGE)
TREE = re.findall(r"\S+/\S+\.py", "".join(PAGE.split("```")[1::2]))
PATHS = sorted({path for path in NAMED if "/" in path or path.endswith((".py", ".toml"))} | {*TREE})


def test_the_guide_names_paths() -> None:
    assert len(TREE) > 5
    assert len(PATHS) > 50


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_it_names_is_there(path: str) -> None:
    assert (ROOT / path).exists() or (ROOT / "platform" / "trainrig" / path).exists()


def test_a_command_that_it_names_is_a_target_of_make() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(re.findall(r"`make (\w+)`", PAGE)) <= set(targets)


@pytest.mark.parametrize(
    ("name", "path"),
    re.findall(r"`(\w+)`(?: and `\w+`)? in `([\w/.]+\.py)`", PAGE),
)
def test_a_name_is_defined_where_it_says(name: str, path: str) -> None:
    source = (ROOT / "platform" / "trainrig" / path).read_text(encoding="utf-8")
    assert re.search(rf"^(def )?{name}\b", source, re.M)


def test_the_readme_links_it() -> None:
    assert "](CONTRIBUTING.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
