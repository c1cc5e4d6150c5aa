from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import tiny_runs

import trainrig
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards


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


def test_pandas_and_datasets_read_the_files(
    documents: trainrig.OpenedDocuments, tmp_path: Path
) -> None:
    texts = documents.kept(["text"])["text"].to_pylist()
    pandas = pytest.importorskip("pandas")
    frames = [pandas.read_parquet(path) for path in documents.list_files()]
    assert pandas.concat(frames)["text"].tolist() == texts
    datasets = pytest.importorskip("datasets")
    files = {"train": documents.list_files()}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    assert list(loaded["train"]["text"]) == texts


def test_duckdb_reads_the_files(documents: trainrig.OpenedDocuments) -> None:
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.read_parquet(documents.list_files()).fetchall()
    assert len(found) == documents.counts["kept"]


@pytest.mark.ray
@pytest.mark.slow
def test_ray_data_reads_the_files(documents: trainrig.OpenedDocuments) -> None:
    import ray.data

    from trainrig.ray_runtime.ray_session import connect

    connect(1, "workers")
    found = ray.data.read_parquet(documents.list_files())
    assert found.count() == documents.counts["kept"]
    assert {row["source"] for row in found.take_all()} == {"books", "web"}
