import json
from collections.abc import Callable
from pathlib import Path

import datasets
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import tiny_runs

import trainrig
from trainrig.tokens.document_set import JSONL, Arrow, Column, Files, Parquet, open_documents
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards

COLUMNS = {"source": Column(column="source"), "id": "id", "url": "url", "language": "language"}
READ = ["id", "url", "source", "language", "text"]
CHAT = [
    {"role": "user", "content": "Which animal is 猫?"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "And the sea?"},
    {"role": "assistant", "content": "Grey, mostly."},
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> trainrig.OpenedDocuments:
    base = tmp_path_factory.mktemp("library")
    return trainrig.open_documents(tiny_runs.write_curated(str(base / "curated")))


def test_documents_are_tables(documents: trainrig.OpenedDocuments) -> None:
    kept = documents.kept(["url", "text"])
    assert kept.column_names == ["url", "text"]
    assert kept.num_rows == documents.counts["kept"] == 80
    assert documents.dropped().num_rows == 0
    assert [table.num_rows for table in documents.iterate()] == [40, 40]
    assert documents.kept().equals(pq.read_table(f"{documents.path}/kept"))
    assert ">80<" in documents._repr_html_()


def test_mistakes_name_what_there_is(documents: trainrig.OpenedDocuments, tokens: str) -> None:
    with pytest.raises(trainrig.ConfigError, match="no column 'txt'; did you mean 'text'"):
        documents.kept(["txt"])
    with pytest.raises(trainrig.ConfigError, match=r"no part 'keep' .* did you mean 'kept'"):
        documents.list_files("keep")
    with pytest.raises(trainrig.DataError, match="is the output of `tokenize`, not of `curate`"):
        trainrig.open_documents(tokens)
    opened = trainrig.open_tokens(tokens)
    with pytest.raises(trainrig.ConfigError, match="no split 'held'; did you mean 'held_out'"):
        opened.list_sources("held")
    with pytest.raises(trainrig.ConfigError, match="no source 'wb' in train; did you mean 'web'"):
        next(opened.documents("wb"))


def test_tokens_are_read_by_split_source_and_document(tokens: str) -> None:
    opened = trainrig.open_tokens(Path(tokens))
    assert opened.splits == (TRAIN, "held_out")
    assert opened.list_sources() == ("books", "web")
    shards = TokenShards.open(f"{tokens}/{TRAIN}")
    for source in opened.list_sources():
        found = list(opened.documents(source))
        together = np.concatenate([document["ids"] for document in found])
        whole = opened.read(source, 0, shards.tokens(source))
        assert np.array_equal(together, whole)
        assert len(found) == opened.count()[TRAIN][source].documents
        assert found[0]["text"] == opened.tokenizer.decode(found[0]["ids"].tolist())
        assert found[0]["url"].startswith(f"https://{source}.example/")
    assert "train · web" in opened._repr_html_()


def read_pandas(paths: list[str], cache: str) -> list[str]:
    return list(pd.concat([pd.read_parquet(path) for path in paths])["text"])


def read_datasets(paths: list[str], cache: str) -> list[str]:
    read = datasets.load_dataset("parquet", data_files={"train": paths}, cache_dir=cache)
    return list(read["train"]["text"])


def read_duckdb(paths: list[str], cache: str) -> list[str]:
    return [text for (text,) in duckdb.read_parquet(paths).select("text").fetchall()]


@pytest.mark.parametrize("read", [read_pandas, read_datasets, read_duckdb])
def test_other_libraries_read_the_files(
    documents: trainrig.OpenedDocuments, tmp_path: Path, read: Callable[[list[str], str], list[str]]
) -> None:
    texts = documents.kept(["text"])["text"].to_pylist()
    assert read(documents.list_files(), str(tmp_path)) == texts


def write_pandas(rows: pa.Table, folder: Path) -> Files:
    rows.to_pandas().to_parquet(folder / "rows.parquet")
    return Parquet(paths=(f"{folder}/*.parquet",), **COLUMNS)


def write_duckdb(rows: pa.Table, folder: Path) -> Files:
    duckdb.from_arrow(rows).to_parquet(f"{folder}/rows.parquet", compression="zstd")
    return Parquet(paths=(str(folder),), **COLUMNS)


def write_duckdb_json(rows: pa.Table, folder: Path) -> Files:
    duckdb.sql(f"COPY rows TO '{folder}/rows.jsonl.gz' (FORMAT json, COMPRESSION gzip)")
    return JSONL(paths=(f"{folder}/rows.jsonl.gz",), **COLUMNS)


def write_datasets(rows: pa.Table, folder: Path) -> Files:
    datasets.Dataset(rows).to_parquet(folder / "rows.parquet")
    return Parquet(paths=(str(folder),), **COLUMNS)


def write_datasets_json(rows: pa.Table, folder: Path) -> Files:
    datasets.Dataset(rows).to_json(folder / "rows.jsonl")
    return JSONL(paths=(str(folder),), **COLUMNS)


def write_datasets_arrow(rows: pa.Table, folder: Path) -> Files:
    datasets.Dataset(rows).save_to_disk(folder, num_shards=2)
    return Arrow(paths=(str(folder),), **COLUMNS)


def write_ray_data(rows: pa.Table, folder: Path) -> Files:
    import ray.data

    from trainrig.ray_runtime.ray_session import connect

    connect(1, "workers")
    ray.data.from_arrow(rows).write_parquet(str(folder))
    return Parquet(paths=(str(folder),), **COLUMNS)


@pytest.mark.parametrize(
    "write",
    [
        *(write_pandas, write_duckdb, write_duckdb_json),
        *(write_datasets, write_datasets_json, write_datasets_arrow),
        pytest.param(write_ray_data, marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_documents_may_be_what_other_libraries_write(
    documents: trainrig.OpenedDocuments,
    tmp_path: Path,
    write: Callable[[pa.Table, Path], Files],
) -> None:
    rows = documents.kept()
    found = open_documents([write(rows, tmp_path)])
    read = [row for split in found.cut_splits() for row in found.read_rows(split.task)]
    assert [{name: row[name] for name in READ} for row in read] == rows.select(READ).to_pylist()


def test_conversations_may_be_what_other_libraries_write(tokens: str, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"messages": CHAT}, {"messages": CHAT[:2]}] * 10)
    (tmp_path / "json.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows.to_pylist())
    )
    datasets.Dataset(rows).to_parquet(tmp_path / "datasets.parquet")
    duckdb.from_arrow(rows).to_parquet(f"{tmp_path}/duckdb.parquet")
    rows.to_pandas().to_parquet(tmp_path / "pandas.parquet")
    found = []
    for name in ("json.jsonl", "datasets.parquet", "duckdb.parquet", "pandas.parquet"):
        kind = "JSONL" if name == "json.jsonl" else "Parquet"
        made = trainrig.encode_conversations(
            sources=[{"kind": kind, "source": "chats", "paths": [tmp_path / name]}],
            tokenizer=Path(tokens),
            output=tmp_path / f"from-{name}",
            sequence_length=256,
            held_out=0,
            workers=0,
        )
        (shard,) = made.list_files("train/rows-00000.bin")
        found.append(Path(shard).read_bytes())
    assert all(ids == found[0] for ids in found)


@pytest.mark.ray
@pytest.mark.slow
def test_ray_data_reads_the_files(documents: trainrig.OpenedDocuments) -> None:
    import ray.data

    from trainrig.ray_runtime.ray_session import connect

    connect(1, "workers")
    found = ray.data.read_parquet(documents.list_files())
    assert found.count() == documents.counts["kept"]
    assert {row["source"] for row in found.take_all()} == {"books", "web"}
