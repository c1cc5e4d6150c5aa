"""The guide of the library and its notebooks run as they are written, on small texts."""

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "library.md"
RAY_DATA = ROOT / "docs" / "ray-data.md"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def run_cells(cells: Sequence[str]) -> tuple[dict[str, Any], list[Any]]:
    """Run cells in one namespace, as a notebook does; return it and what each cell shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells:
        tree = ast.parse(cell)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return names, shown


@pytest.mark.slow
@pytest.mark.usefixtures("without_ray")
def test_the_guide_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    names, _ = run_cells(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    said = capsys.readouterr().out.splitlines()
    assert f"It prints `{said[-1]}`" in text
    assert names["documents"].counts["documents_kept"] == len(names["kept"]) > 100
    assert names["losses"]["step"].tolist()[-1] == 10
    assert names["batch"].num_rows == 8
    assert len(names["several"]) == 2
    assert names["parameters"] > 1e6


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_the_guide_of_ray_data_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prose = "The keeper of the old lighthouse writes that the lamp has to be mended. " * 6
    pages = [{"url": f"https://a.example/{n}", "html": f"<p>{prose}{n}</p>"} for n in range(3)]
    for name in ("rows.jsonl", "crawl/rows.jsonl"):
        Path(name).parent.mkdir(exist_ok=True)
        rows = [page | {"text": prose + page["url"]} for page in pages]
        Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = RAY_DATA.read_text(encoding="utf-8")
    names, _ = run_cells(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    printed = capsys.readouterr().out.splitlines()
    assert names["kept"] == 3
    assert "['en', 'de']" in printed
    (said,) = [line for line in printed if line.startswith("Extract: ")]
    assert f"It prints `{said}`" in text
    assert names["rows"].take(1)[0]["content_type"] == "text/html"


@pytest.mark.parametrize("guide", [GUIDE, RAY_DATA], ids=lambda guide: guide.stem)
def test_the_guide_is_short(guide: Path) -> None:
    assert len(guide.read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_holds_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert f"notebooks/{path.name}" in GUIDE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    _, shown = run_cells(code)
    tables = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) >= 4
    assert all(value._repr_html_() for value in tables)
