"""Rows are recognised by their columns, and what is not recognised is refused."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig.errors import ConfigError
from trainrig.projects.found_data import SAMPLE_BYTES, find_data
from trainrig.projects.row_roles import find_roles

TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"text": "a"}, {"documents": {"text": "text"}}),
        ({"content": "a", "url": "b"}, {"documents": {"text": "content"}}),
        ({"messages": TURNS}, {"chats": {}}),
        ({"conversation": TURNS}, {"chats": {"messages": "conversation"}}),
        (
            {"prompt": "a", "response": "b"},
            {"chats": {"prompt": "prompt", "completion": "response"}},
        ),
        ({"instruction": "a", "output": "b"}, {"chats": {}}),
        (
            {"question": "a", "answer": "4"},
            {
                "chats": {"prompt": "question", "completion": "answer"},
                "problems": {"prompt": "question", "answer": "answer"},
            },
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, {"pairs": {}}),
        ({"question": "a", "chosen": "b", "rejected": "c"}, {"pairs": {"prompt": "question"}}),
        ({"html": "<p>a</p>"}, {"pages": {"html": "html"}}),
        ({"messages": TURNS, "text": "a"}, {"chats": {}, "documents": {"text": "text"}}),
        ({"id": 1, "label": "b"}, {}),
    ],
    ids=lambda value: "-".join(value),
)
def test_roles_follow_from_the_columns(
    row: dict[str, object], roles: dict[str, dict[str, str]]
) -> None:
    assert find_roles([row] * 3, parquet=False) == roles


def test_parquet_and_compressed_lines_are_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}\n{"id": 4}\n'))
    first, second = find_data([str(tmp_path / "a.parquet"), str(tmp_path / "b.jsonl.gz")])
    assert (first.format, second.format) == ("Parquet", "JSONL")
    assert (first.measure("documents").rows, first.measure("documents").bytes) == (2, 6)
    assert (second.measure("documents").rows, second.measure("documents").bytes) == (1, 5)


def test_a_folder_is_divided_by_what_its_files_hold(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": TURNS}) + "\n")
    (tmp_path / "c.jsonl").write_text('{"text": "two"}\n')
    documents, chats = find_data([str(tmp_path)])
    assert documents.paths == (str(tmp_path / "a.jsonl"), str(tmp_path / "c.jsonl"))
    assert chats.roles == {"chats": {}}
    (tmp_path / "b.jsonl").unlink()
    (alone,) = find_data([str(tmp_path)])
    assert alone.paths == (str(tmp_path),)


def test_notes_beside_rows_and_unknown_files_are_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "README.md").write_text("About the data.")
    (tmp_path / "b.csv").write_text("text\ntwo\n")
    (found,) = find_data([str(tmp_path)])
    assert (found.format, found.files) == ("JSONL", (str(tmp_path / "a.jsonl"),))
    assert "2 files are left out, such as README.md" in caplog.text
    (tmp_path / "a.jsonl").unlink()
    (alone,) = find_data([str(tmp_path)])
    assert (alone.format, alone.files) == ("pages", (str(tmp_path / "README.md"),))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty: is empty; looked in"):
        find_data([str(tmp_path / "empty")])


def test_lines_that_rl_would_refuse_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n' * 20 + "{broken\n")
    (found,) = find_data([str(tmp_path / "a.jsonl")])
    with pytest.raises(ConfigError, match=r"a\.jsonl: 1 lines are no JSON objects"):
        found.measure("problems")


def test_the_amount_of_a_large_file_is_estimated_from_its_beginning(tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 1_000}) + "\n"
    rows = 5 * SAMPLE_BYTES // 1_000
    (tmp_path / "a.jsonl").write_text(line * rows)
    (found,) = find_data([str(tmp_path / "a.jsonl")])
    amount = found.measure("documents")
    assert not amount.whole
    assert abs(amount.rows / rows - 1) < 0.05
    assert sum(map(len, amount.texts)) < 1.1 * SAMPLE_BYTES


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.jsonl", '{"id": 1, "label": "b"}\n', "rows have the columns `id`, `label`, which hold"),
        ("a.json", "[\n1\n]\n", "JSONL with `not_json` in its first line; write one JSON object"),
        ("a.jsonl", "", "JSONL with no row"),
        ("a.csv", "a,b\n", "the ending of its name is unknown; use .jsonl"),
        ("folder/a.csv", "a,b\n", "holds no file of a known format"),
        (None, "", "does not exist; looked in "),
    ],
)
def test_what_is_not_recognised_is_refused(
    tmp_path: Path, name: str | None, text: str, problem: str
) -> None:
    path = tmp_path / (name or "none.jsonl")
    if name is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    given = path.parent if name == "folder/a.csv" else path
    with pytest.raises(ConfigError) as refused:
        find_data([str(given)])
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
