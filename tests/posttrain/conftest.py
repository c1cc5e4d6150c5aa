"""Tiny models and conversations, prompts, and sums to learn."""

import json

import pytest
from support.tuning_fixtures import bench, encode_rows, encoder, fresh

__all__ = ["bench", "encode_rows", "encoder", "fresh"]


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write prompts with answers, some of which are unusable."""
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    rows = [{"question": f"is {n} {'a ' * (n % 4)}", "answer": "e"} for n in range(9)]
    rows.insert(2, {"question": "no answer"})
    rows.insert(5, {"question": "long " * 50, "answer": "e"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
