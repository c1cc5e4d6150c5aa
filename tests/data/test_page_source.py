"""Pipelines of a stranger on Ray Data: columns equal those of a curation, at any worker count."""

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from trainrig import data
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation_settings import CurationSource
from trainrig.corpus.read import ReadSettings
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.errors import ConfigError, DataError, OutputTaken

WORDS = (
    *("the", "keeper", "of", "the", "lighthouse", "writes", "to", "a", "harbor", "master"),
    *("that", "one", "lamp", "is", "broken"),
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write texts that give six splits, and return the folder."""
    folder = tmp_path_factory.mktemp("pages")
    for file in range(6):
        lines = []
        for number in range(40):
            words = [WORDS[(number * step + file) % len(WORDS)] for step in range(1, 80)]
            text = " ".join(words) + f" Write to a{number}@example.com."
            lines.append(json.dumps({"url": f"http://{file}.example/{number}", "text": text}))
        lines.insert(7, json.dumps({"url": "http://none.example/"}))
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


READING = {"piece_bytes": 17_000}  # a split for each of these small files
ARROW: dict[str, Any] = {"batch_format": "pyarrow"}


def read_documents(paths: str, workers: int, actors: bool = False, **reading: Any) -> Any:
    """Return the dataset of measured documents."""
    found = data.read_pages(paths, source="web", reading=reading, concurrency=workers)
    extract = data.Extract if actors else data.Extract()
    documents = found.map_batches(extract, concurrency=workers, **ARROW)
    for operator in (data.MaskPersonalData(), data.Language(), data.Measure()):
        documents = documents.map_batches(operator, concurrency=workers, **ARROW)
    return documents


def curate_into(folder: Path, paths: str, **reading: Any) -> pa.Table:
    """Curate the pages and return all documents, in order of split and row."""
    settings = ReadSettings(**reading)
    source = CurationSource(name="web", paths=(paths,), reading=settings, filters=())
    run = Curation(output=str(folder), sources=(source,), workers=0)
    curate(run)
    tables = []
    for path in [*(folder / "kept").iterdir(), *(folder / "dropped").iterdir()]:
        table = pq.read_table(path)
        splits = pa.array([path.stem] * len(table), pa.string())
        tables.append(table.append_column("split", splits))
    names = ["split", *build_pool_schema(run).names]
    return sort_rows(pa.concat_tables(tables).select(names))


def sort_rows(table: pa.Table) -> pa.Table:
    return table.sort_by([("split", "ascending"), ("row", "ascending")]).combine_chunks()


def hash_folder(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_equal_columns(folder: Path, wanted: pa.Table) -> None:
    tables = [pq.read_table(path) for path in sorted((folder / "rows").iterdir())]
    found = sort_rows(pa.concat_tables(tables).select(wanted.column_names))
    for name in wanted.column_names:
        assert found[name] == wanted[name], name


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_columns_and_files_are_equal_at_any_number_of_workers(pages: str, tmp_path: Path) -> None:
    wanted = curate_into(tmp_path / "curated", pages, **READING)
    assert len(wanted) == 240
    for name, workers, actors in (("one", 1, False), ("two", 2, False), ("actors", 1, True)):
        documents = read_documents(pages, workers, actors, **READING)
        documents.write_datasink(data.SplitSink(tmp_path / name))
        assert_equal_columns(tmp_path / name, wanted)
        assert hash_folder(tmp_path / name) == hash_folder(tmp_path / "one")
    listed = pq.read_table(tmp_path / "one" / "splits.parquet").to_pylist()
    assert [row["split"] for row in listed] == [f"web-{n:05d}" for n in range(6)]
    for row in listed:
        assert hash_folder(tmp_path / "one")[row["file"]] == row["sha256"]
        assert row["rows"] == 40
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["rows", "splits.parquet"]
    with pytest.raises(OutputTaken, match="holds a finished output"):
        data.SplitSink(tmp_path / "one")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_operators_have_their_names_and_records_their_reasons(pages: str) -> None:
    found = data.read_pages(pages, source="web", reading=READING)
    extracted = found.map_batches(data.Extract(), **ARROW).materialize()
    assert "ReadPages->MapBatches(Extract)" in extracted.stats()
    assert extracted.num_blocks() == 6
    reasons = found.to_pandas()["reason"]
    assert reasons.value_counts().to_dict() == {"no_text": 6}


@pytest.mark.ray
@pytest.mark.chaos
@pytest.mark.usefixtures("local_ray")
def test_a_killed_worker_changes_no_byte_of_the_files(pages: str, tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def kill_once(rows: pa.Table) -> pa.Table:
        """Kill the process in the middle of the third split, the first time."""
        if rows["split"][0].as_py() == "web-00002" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    for name in ("whole", "killed-once"):
        if name == "whole":
            marker.touch()
        else:
            marker.unlink()
        documents = read_documents(pages, 2, **READING).map_batches(kill_once, **ARROW)
        documents.write_datasink(data.SplitSink(tmp_path / name))
        assert marker.exists()
    assert hash_folder(tmp_path / "killed-once") == hash_folder(tmp_path / "whole")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_file_does_not_depend_on_blocks(tmp_path: Path) -> None:
    import ray.data

    numbers = [(n * 7) % 600 for n in range(600)]
    rows = pa.table(
        {
            "split": [f"s-{n % 3}" for n in numbers],
            "row": numbers,
            "text": [f"{n}" for n in numbers],
            "list": [[n] for n in numbers],
        }
    )
    for name, blocks in (("one", 1), ("many", 9)):
        dataset = ray.data.from_arrow(rows).repartition(blocks)
        dataset.write_datasink(data.SplitSink(tmp_path / name))
    assert hash_folder(tmp_path / "one") == hash_folder(tmp_path / "many")
    first = pq.read_table(tmp_path / "one" / "rows" / "s-0.parquet")
    assert first["row"].to_pylist() == sorted(n for n in numbers if n % 3 == 0)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("local_ray")
def test_columns_of_real_pages_are_equal_at_any_number_of_workers(
    test_data: Path, tmp_path: Path
) -> None:
    paths = f"{test_data}/crawl/0000.warc.gz"
    reading = {"piece_bytes": 1_000_000}
    wanted = curate_into(tmp_path / "curated", paths, **reading)
    assert len(wanted) > 300
    assert len(pc.unique(wanted["split"])) > 2
    for name, workers in (("one", 1), ("two", 2)):
        documents = read_documents(paths, workers, **reading)
        documents.write_datasink(data.SplitSink(tmp_path / name))
        assert_equal_columns(tmp_path / name, wanted)
    assert hash_folder(tmp_path / "one") == hash_folder(tmp_path / "two")


def test_a_mistake_is_one_line_before_ray_starts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match=r"^read_pages: source: "):
        data.read_pages(tmp_path, source="my pages")
    with pytest.raises(ConfigError, match=r"^read_pages: reading: no key 'field' in ReadSettings"):
        data.read_pages(tmp_path, reading={"field": {}})
    with pytest.raises(ConfigError, match=r"no option 'concurency'; did you mean 'concurrency'\?"):
        data.read_pages(tmp_path, concurency=2)
    with pytest.raises(DataError, match="matches no file"):
        data.read_pages(tmp_path / "*.warc")


def test_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    """A sink deletes the `rows` of an unfinished output, so these have to be its own."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "mine.parquet").touch()
    with pytest.raises(OutputTaken, match=r"holds other files \(mine\.parquet, …\)"):
        data.SplitSink(tmp_path)
    (tmp_path / "fragments").mkdir()
    (tmp_path / "fragments" / "a.parquet").touch()
    data.SplitSink(tmp_path)
