"""Tiny tokens and runs, shared with the tests of training."""

import json

import pytest


@pytest.fixture(scope="session")
def riddles(tmp_path_factory) -> str:
    """Return the file of a task of twelve rows with two choices each."""
    folder = tmp_path_factory.mktemp("riddles")
    words = ["sea", "grey", "mirror", "stone", "because"]
    rows = [
        {"query": f"The {words[n % 5]} is", "choices": [words[n % 4], words[-1]], "gold": n % 2}
        for n in range(12)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = f"""
name = "riddles"
rows = "{folder}/rows.jsonl"
prompt = "{{{{ query }}}}"
[scoring]
kind = "MultipleChoice"
choices = "choices"
gold = "gold"
"""
    (folder / "riddles.toml").write_text(task)
    return str(folder / "riddles.toml")
