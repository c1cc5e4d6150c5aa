import itertools
import os

import pytest

from trainrig import storage
from trainrig.tokens.document_set import JSONL, find_paths, name_files, open_documents


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Write `data/{a,b}/x.jsonl` into a folder and make it the working directory."""
    for name in "ab":
        storage.write(f"{tmp_path}/data/{name}/x.jsonl", f'{{"text": "of {name}"}}\n'.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_are_those_below_the_folder_that_holds_all(data):
    assert name_files([f"{data}/data/a/x.jsonl", f"{data}/data/b/x.jsonl"]) == [
        "a/x.jsonl",
        "b/x.jsonl",
    ]
    assert (
        name_files(["data/a/x.jsonl"])
        == name_files(["x.jsonl"])
        == name_files(["/x.jsonl"])
        == ["x.jsonl"]
    )
    assert name_files(["s3://b/a/x.jsonl", "s3://b/c.jsonl"]) == ["a/x.jsonl", "c.jsonl"]
    assert name_files(["s3://b/a.jsonl", "s3://c/a.jsonl"]) == ["b/a.jsonl", "c/a.jsonl"]
    assert name_files(["/x.jsonl", "/a/x.jsonl"]) == ["x.jsonl", "a/x.jsonl"]


def test_however_paths_are_written_the_same_files_have_the_same_names_in_the_same_order(data):
    spelled = {
        name: [
            f"data/{name}",
            f"./data/{name}/x.jsonl",
            f"{data}/data/{name}/*.jsonl",
            f"../{data.name}/data/{name}",
        ]
        for name in "ab"
    }
    for first, second in itertools.product(spelled["a"], spelled["b"]):
        paths = find_paths("JSONL", [second, first])
        assert name_files(paths) == ["a/x.jsonl", "b/x.jsonl"]
        assert [os.path.realpath(path) for path in paths] == [
            str(data / "data" / name / "x.jsonl") for name in "ab"
        ]


def test_a_file_that_is_named_twice_is_read_once(data):
    for again in ("data/a/x.jsonl", f"{data}/data/a/x.jsonl", f"../{data.name}/data/a"):
        assert len(find_paths("JSONL", ["data/a", again])) == 1


def test_files_on_disk_and_in_a_bucket_are_read_together(data, s3):
    storage.write(f"{s3}/far/x.jsonl", b'{"text": "from afar"}\n')
    table = JSONL(paths=(f"{s3}/far", f"{data}/data/a", "data/b"), source="s")
    documents = open_documents([table])
    rows = [row for split in documents.cut_splits() for row in documents.read_rows(split.task)]
    assert [(row["file"], row["text"]) for row in rows] == [
        ("disk/a/x.jsonl", "of a"),
        ("disk/b/x.jsonl", "of b"),
        ("s3/x.jsonl", "from afar"),
    ]
