"""The tables of docs/evidence hold what the committed result files hold."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "evidence"
PAGES = sorted(FOLDER.glob("*.md"))


def load_script() -> ModuleType:
    """Return the script that writes the tables, as a module."""
    spec = importlib.util.spec_from_file_location("evidence_tables", FOLDER / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_up_to_date_with_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert load_script().fill(text) == text, "run `make docs`"


def test_every_table_is_on_a_page_and_every_marker_names_a_table() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    marked = sorted(name for text in texts for name in re.findall(r"<!-- table (\S+) -->", text))
    assert marked == sorted(load_script().TABLES)
    ends = sum(text.count("<!-- end of table -->") for text in texts)
    assert ends == len(marked)


def test_the_index_of_the_folder_names_each_page() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    names = {page.name for page in PAGES} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == names
