"""A tiny model that answers prompts."""

import json
import runpy
from pathlib import Path

import pytest

globals().update(runpy.run_path(str(Path(__file__).parents[1] / "conftest.py")))


@pytest.fixture(scope="session")
def problems(tmp_path_factory):
    """Write prompts with answers, some of which are unusable."""
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    rows = [{"question": f"is {n} {'a ' * (n % 4)}", "answer": "e"} for n in range(9)]
    rows.insert(2, {"question": "no answer"})
    rows.insert(5, {"question": "long " * 50, "answer": "e"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
