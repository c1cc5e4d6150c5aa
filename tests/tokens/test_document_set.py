import gzip
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config, storage
from trainrig.config import RunFile, extract_identity
from trainrig.corpus.documents import compute_document_id
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.document_set import (
    JSONL,
    Arrow,
    Column,
    Curated,
    Documents,
    Files,
    Parquet,
    RefusedRow,
    open_documents,
)

WORDS = ["the", "sea", "is", "a", "grey", "mirror", "é", "猫", "line\nbreak", '"quoted"', "\u2028"]


def row(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    return {
        "text": " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 60))),
        "id": f"d{number}",
        "url": f"https://a.example/{number}",
        "lang": "en" if number % 2 else None,
        "meta": {"domain": f"source-{number % 3}", "score": 0.5},
    }


ROWS = [row(number) for number in range(100)]
COLUMNS = {"id": "id", "url": "url", "language": "lang"}
BY_DOMAIN = Column(column="meta.domain")


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=7)
    return sink.getvalue().to_pybytes()


def arrow(rows: list[dict[str, Any]], new: Any = pa.ipc.new_stream) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with new(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=9):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def arrow_file(rows: list[dict[str, Any]]) -> bytes:
    return arrow(rows, pa.ipc.new_file)


MADE = [
    (JSONL, "a.jsonl", json_lines),
    (JSONL, "a.jsonl.gz", lambda rows: gzip.compress(json_lines(rows))),
    (JSONL, "a.jsonl.zst", lambda rows: zstandard(json_lines(rows))),
    (Parquet, "a.parquet", parquet),
    (Arrow, "data-00000-of-00001.arrow", arrow),
    (Arrow, "a.arrow", arrow_file),
]


def read(
    *tables: Files | Curated, split_bytes: int = 10**9
) -> tuple[list[dict[str, Any]], list[RefusedRow]]:
    """Return all documents of `tables` and all refusals, as read by a worker in another process."""
    documents = pickle.loads(pickle.dumps(open_documents(tables)))
    refused: list[RefusedRow] = []
    rows = [
        document
        for split in documents.cut_splits(split_bytes)
        for document in documents.read_rows(json.loads(json.dumps(split.task)), refused.append)
    ]
    return rows, refused


def expected(number: int, file: str) -> dict[str, Any]:
    text = ROWS[number]["text"]
    return {
        "id": f"d{number}",
        "url": f"https://a.example/{number}",
        "source": f"source-{number % 3}",
        "language": "en" if number % 2 else "",
        "text": text,
        "text_bytes": len(text.encode()),
        "file": file,
    }


@pytest.mark.parametrize(
    ("kind", "name", "made"), MADE, ids=lambda value: getattr(value, "__name__", str(value))
)
@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_every_format_gives_the_documents_that_were_put_in(
    kind: Any, name: str, made: Any, where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = str(tmp_path) if where == "disk" else f"{request.getfixturevalue('s3')}/in"
    storage.write(f"{folder}/{name}", made(ROWS))
    for paths in (f"{folder}/{name}", f"{folder}/*{name[1:]}", folder):
        rows, refused = read(kind(paths=(paths,), source=BY_DOMAIN, **COLUMNS))
        places = [document.pop("row") for document in rows]
        assert rows == [expected(number, name) for number in range(100)] and not refused
        assert places == sorted(set(places)) and places[0] == 0


def test_the_place_of_a_json_line_is_its_first_byte_and_of_other_rows_their_number(tmp_path):
    storage.write(f"{tmp_path}/a.jsonl", json_lines(ROWS))
    storage.write(f"{tmp_path}/b.jsonl.gz", gzip.compress(json_lines(ROWS)))
    storage.write(f"{tmp_path}/c.parquet", parquet(ROWS))
    plain = json_lines(ROWS)
    for name in ("a.jsonl", "b.jsonl.gz"):
        documents, _ = read(JSONL(paths=(f"{tmp_path}/{name}",), source="s"), split_bytes=900)
        for document in documents:
            line = plain[document["row"] :].partition(b"\n")[0]
            assert json.loads(line)["text"] == document["text"]
    documents, _ = read(Parquet(paths=(f"{tmp_path}/c.parquet",), source="s"), split_bytes=900)
    assert [document["row"] for document in documents] == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "made"), MADE, ids=lambda value: getattr(value, "__name__", str(value))
)
@pytest.mark.parametrize("split_bytes", [1, 300, 2_000, 10**6])
def test_splitting_does_not_change_documents(
    kind: Any, name: str, made: Any, split_bytes: int, tmp_path: Path
) -> None:
    for folder, rows in (("x", ROWS[:60]), ("y", ROWS[60:61]), ("z", ROWS[61:])):
        storage.write(f"{tmp_path}/{folder}/{name}", made(rows))
    table = kind(paths=(str(tmp_path / f"*/{name}"),), source="s", id="id")
    documents, _ = read(table, split_bytes=split_bytes)
    assert [document["id"] for document in documents] == [f"d{n}" for n in range(100)]
    assert [document["file"] for document in documents] == (
        [f"x/{name}"] * 60 + [f"y/{name}"] + [f"z/{name}"] * 39
    )


@given(st.lists(st.text(max_size=12), max_size=12), st.integers(1, 60), st.booleans())
def test_every_line_is_read_once_wherever_a_file_is_cut(
    tmp_path_factory, texts, split_bytes, ends_with_newline
):
    folder = tmp_path_factory.mktemp("cut")
    data = b"\n".join(json.dumps({"text": f"x{text}"}).encode() for text in texts)
    storage.write(f"{folder}/a.jsonl", data + b"\n" * ends_with_newline)
    documents, refused = read(
        JSONL(paths=(f"{folder}/a.jsonl",), source="s"), split_bytes=split_bytes
    )
    assert [document["text"] for document in documents] == [f"x{text}" for text in texts]
    assert not refused


def test_small_files_share_a_split_and_large_ones_are_cut(tmp_path):
    for number in range(10):
        storage.write(f"{tmp_path}/small/{number}.jsonl", json_lines(ROWS[:2]))
    storage.write(f"{tmp_path}/z.jsonl", json_lines(ROWS * 4))
    small = storage.measure_size(f"{tmp_path}/small/0.jsonl")
    large = storage.measure_size(f"{tmp_path}/z.jsonl")
    most = 3 * small
    splits = open_documents([JSONL(paths=(str(tmp_path),), source="s")]).cut_splits(most)
    pieces = [[piece["weight"] for piece in split.task["pieces"]] for split in splits]
    assert pieces[:3] == [[small] * 3] * 3
    assert all(sum(weights) <= most for weights in pieces)
    assert sum(map(sum, pieces)) == 10 * small + large
    assert [split.name for split in splits] == [
        f"documents-{number:05d}" for number in range(len(splits))
    ]


def test_a_document_without_an_id_gets_the_one_that_curate_would_give(tmp_path):
    rows = [{"text": "the sea", "url": "https://a.example/"}, {"text": "a mirror", "url": None}]
    storage.write(f"{tmp_path}/a.jsonl", json_lines(rows))
    documents, _ = read(JSONL(paths=(f"{tmp_path}/a.jsonl",), source="web", url="url"))
    assert [document["id"] for document in documents] == [
        compute_document_id("web", "https://a.example/", b"the sea"),
        compute_document_id("web", "", b"a mirror"),
    ]
    assert [document["url"] for document in documents] == ["https://a.example/", ""]


LINES = [
    (b'{"from": "d", "text": "fine"}', ""),
    (b'{"from": "d", "text": ', "not_json"),
    (b"[" * 100_000, "not_json"),
    (b'["text"]', "not_an_object"),
    (b'{"from": "d"}', "no_text"),
    (b'{"from": "d", "text": null}', "no_text"),
    (b'{"from": "d", "text": 5}', "text_not_a_string"),
    (b'{"from": "d", "text": [["x"]]}', "text_not_a_string"),
    (b'{"from": "d", "text": ""}', "empty_text"),
    (b'{"from": "d", "text": " \\n\\t"}', "empty_text"),
    (b'{"from": "d", "text": "\xff"}', "not_utf8"),
    (b'{"from": "d", "text": "\\ud800"}', "not_unicode"),
    (b'{"text": "x"}', "no_source"),
    (b'{"from": "", "text": "x"}', "no_source"),
    (b'{"from": "d", "text": "\\ud83d\\ude00", "id": 7}', ""),
]


def test_a_bad_row_is_reported_with_position_and_reason_and_never_fatal(tmp_path):
    storage.write(f"{tmp_path}/a.jsonl", b"\n".join(line for line, _ in LINES) + b"\n   \n\n")
    table = JSONL(paths=(f"{tmp_path}/a.jsonl",), source=Column(column="from"), id="id")
    documents, refused = read(table)
    assert [document["text"] for document in documents] == ["fine", "😀"]
    assert documents[1]["id"] == "7"
    places = np.cumsum([0, *(len(line) + 1 for line, _ in LINES)]).tolist()
    bad = [
        RefusedRow("a.jsonl", place, reason)
        for place, (_, reason) in zip(places, LINES, strict=False)
        if reason
    ]
    assert refused == bad


def test_bad_rows_of_parquet_are_reported_too(tmp_path):
    rows = [{"text": "fine"}, {"text": None}, {"text": " "}]
    storage.write(f"{tmp_path}/a.parquet", parquet(rows))
    _, refused = read(Parquet(paths=(f"{tmp_path}/a.parquet",), source="s"))
    assert refused == [
        RefusedRow("a.parquet", 1, "no_text"),
        RefusedRow("a.parquet", 2, "empty_text"),
    ]


def test_a_line_too_long_to_hold_is_stepped_over(tmp_path, monkeypatch):
    monkeypatch.setattr("trainrig.tokens.document_formats.LINE_BYTES", 40)
    lines = ['{"text": "one"}', json.dumps({"text": "x" * 200}), '{"text": "two"}']
    storage.write(f"{tmp_path}/a.jsonl", "\n".join(lines).encode())
    documents, refused = read(JSONL(paths=(f"{tmp_path}/a.jsonl",), source="s"))
    assert [document["text"] for document in documents] == ["one", "two"]
    assert refused == [RefusedRow("a.jsonl", len(lines[0]) + 1, "line_too_long")]


@pytest.mark.parametrize(
    ("name", "packed"),
    [("a.jsonl.gz", lambda data: gzip.compress(data, 1)), ("a.jsonl.zst", zstandard)],
)
def test_of_a_packed_file_that_breaks_off_the_rest_is_refused(tmp_path, name, packed):
    dice = random.Random(0)
    rows = [{"text": f"{dice.getrandbits(20_000):x}"} for _ in range(100)]
    data = packed(json_lines(rows))
    storage.write(f"{tmp_path}/{name}", data[: len(data) // 2])
    documents, refused = read(JSONL(paths=(f"{tmp_path}/{name}",), source="s"))
    assert 10 < len(documents) < 60
    assert [document.reason for document in refused] == ["torn_file"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.ndjson.gz"])
@pytest.mark.parametrize(
    ("first", "reason"),
    [(b'{"text":"torn",\n', "not_json"), (b'[{"text":"in an array"}]\n', "not_an_object")],
)
def test_a_first_line_that_is_no_row_is_refused_alone(
    tmp_path: Path, name: str, first: bytes, reason: str
):
    storage.write(f"{tmp_path}/{name}", gzip.compress(first + json_lines([{"text": "x"}] * 3)))
    documents, refused = read(JSONL(paths=(str(tmp_path),), source="s"))
    assert [document["text"] for document in documents] == ["x"] * 3
    assert refused == [RefusedRow(name, 0, reason)]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    storage.write(f"{tmp_path}/a.jsonl", b'\xef\xbb\xbf{"text": "x"}\n{"text": "y"}')
    documents, _ = read(JSONL(paths=(f"{tmp_path}/a.jsonl",), source="s"))
    assert [document["text"] for document in documents] == ["x", "y"]


# Invalid settings and files


@pytest.mark.parametrize(
    ("kind", "name", "made"), MADE, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_missing_column_is_named_with_the_existing_ones(
    kind: Any, name: str, made: Any, tmp_path: Path
) -> None:
    storage.write(f"{tmp_path}/{name}", made(ROWS))
    for columns, message in (
        ({"text": "txt"}, r"no column 'txt'; did you mean 'text'\?"),
        ({"url": "address.full"}, r"no column 'address\.full'; there are: id, lang, meta, text"),
    ):
        with pytest.raises(DataError, match=rf"{name}: {message}"):
            read(kind(paths=(f"{tmp_path}/{name}",), source="s", **columns))


def test_a_file_without_one_document_is_named_with_the_reasons(tmp_path):
    storage.write(f"{tmp_path}/a.jsonl", json_lines(ROWS))
    storage.write(f"{tmp_path}/b.jsonl", json_lines([{"text": 5}, {"text": 6}, {"other": ""}]))
    with pytest.raises(
        DataError,
        match=r"b\.jsonl.*3 rows.*usable.*\(text_not_a_string 2, no_text 1\)",
    ):
        read(JSONL(paths=(str(tmp_path),), source="s"))


def test_a_part_of_a_file_without_one_document_is_not_fatal(tmp_path):
    rows = [*ROWS, *({"text": None} for _ in range(300))]
    for name, data in (("a.jsonl", json_lines(rows)), ("a.parquet", parquet(rows))):
        storage.write(f"{tmp_path}/{name}", data)
        kind = Parquet if name == "a.parquet" else JSONL
        documents, refused = read(kind(paths=(f"{tmp_path}/{name}",), source="s"), split_bytes=500)
        assert len(documents) == 100
        assert [document.reason for document in refused] == ["no_text"] * 300


def test_an_empty_file_is_no_fault(tmp_path):
    storage.write(f"{tmp_path}/a.jsonl", b"")
    storage.write(f"{tmp_path}/b.jsonl", json_lines(ROWS[:3]))
    documents, refused = read(JSONL(paths=(str(tmp_path),), source="s"))
    assert len(documents) == 3 and not refused


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (Parquet, "a.parquet", "not Parquet, or damaged"),
        (Arrow, "a.arrow", "not an Arrow stream or file, or damaged"),
        (JSONL, "a.jsonl.gz", r"none of its 1 rows is a usable document \(torn_file 1\)"),
        (JSONL, "a.jsonl.zst", r"none of its 1 rows is a usable document \(torn_file 1\)"),
        (JSONL, "a.json.zst", r"none of its 1 rows is a usable document \(torn_file 1\)"),
        (JSONL, "a.jsonl", r"none of its 1 rows is a usable document \(not_json 1\)"),
    ],
)
def test_a_file_of_another_kind_is_named(kind, name, message, tmp_path):
    storage.write(f"{tmp_path}/{name}", b"this is prose and nothing else")
    with pytest.raises(DataError, match=f"{name}: {message}"):
        read(kind(paths=(f"{tmp_path}/{name}",), source="s"))


def test_missing_files_are_named(tmp_path):
    storage.write(f"{tmp_path}/a.txt", b"x")
    for path, message in (
        ("nothing.jsonl", "nothing.jsonl: no such file or folder"),
        ("*.jsonl", r"\*.jsonl: matches none of the 1 files in"),
        ("", r"none of its 1 files is named \*\.jsonl \*\.jsonl\.gz"),
    ):
        with pytest.raises(DataError, match=message):
            open_documents([JSONL(paths=(f"{tmp_path}/{path}".rstrip("/"),), source="s")])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Parquet, ["data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"]),
        (Arrow, ["train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"]),
    ],
)
def test_a_folder_that_holds_a_test_split_too_is_refused(kind, names, tmp_path):
    made = parquet if kind is Parquet else arrow
    for name in names:
        storage.write(f"{tmp_path}/{name}", made(ROWS))
    with pytest.raises(DataError, match="splits test, train, some"):
        open_documents([kind(paths=(str(tmp_path),), source="s")])
    chosen = f"{tmp_path}/data/train-*.parquet" if kind is Parquet else f"{tmp_path}/train"
    assert len(read(kind(paths=(chosen,), source="s"))[0]) == 100


def test_cache_files_of_datasets_are_no_data(tmp_path):
    storage.write(f"{tmp_path}/data-00000-of-00001.arrow", arrow(ROWS))
    storage.write(f"{tmp_path}/cache-0123abcd.arrow", arrow(ROWS[:5]))
    assert len(read(Arrow(paths=(str(tmp_path),), source="s"))[0]) == 100


# Run files and fingerprints


class Reading(RunFile):
    verb = "reading"
    documents: Documents


def loaded(text: str) -> Reading:
    return config.build(Reading, config.parse(text, "a.toml"), "a.toml", text)


def test_a_run_file_names_a_curated_folder_or_has_tables():
    assert loaded('stage = "reading"\ndocuments = "here"').documents == (Curated(folder="here"),)
    text = """
        stage = "reading"
        [[documents]]
        kind = "JSONL"
        paths = ["a/*.jsonl"]
        source = "notes"
        [[documents]]
        kind = "Parquet"
        paths = ["b"]
        source = { column = "meta.domain" }
        [[documents]]
        kind = "Curated"
        folder = "c"
    """
    run = loaded(text)
    assert run.documents == (
        JSONL(paths=("a/*.jsonl",), source="notes"),
        Parquet(paths=("b",), source=BY_DOMAIN),
        Curated(folder="c"),
    )
    assert loaded(config.to_toml(run)) == run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("documents = 3", "should be an array"),
        ("documents = []", "at least 1 item"),
        ('documents = [{ kind = "CSV" }]', "no kind 'CSV'; .*JSONL"),
        ('documents = [{ kind = "JSONL", paths = ["a"] }]', "`source` is missing"),
        ('documents = [{ kind = "JSONL", paths = [], source = "s" }]', "at least 1 item"),
    ],
)
def test_a_run_file_that_cannot_work_is_refused(line, message):
    with pytest.raises(ConfigError, match=message):
        loaded(f'stage = "reading"\n{line}')


def test_the_fingerprint_covers_contents_and_settings_and_not_paths(
    tmp_path,
):
    for folder in ("here", "there"):
        storage.write(f"{tmp_path}/{folder}/a.jsonl", json_lines(ROWS))
    here, there = (JSONL(paths=(f"{tmp_path}/{f}",), source="s") for f in ("here", "there"))
    assert open_documents([here]).inputs == open_documents([there]).inputs
    assert extract_identity(here) == extract_identity(there)
    assert extract_identity(here) != extract_identity(here.model_copy(update={"source": "t"}))
    before = open_documents([there]).inputs
    storage.write(f"{tmp_path}/there/a.jsonl", json_lines(ROWS[:50]))
    assert open_documents([there]).inputs != before
    two = open_documents([here, there]).inputs
    assert two["documents[0]"] == open_documents([here]).inputs["documents"]
    assert set(two) == {"documents[0]", "documents[1]"}


def test_a_folder_that_no_curation_made_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no manifest\.json"):
        open_documents([Curated(folder=str(tmp_path))])


@pytest.mark.data
def test_real_sets_are_read(test_data: Path) -> None:
    tables = (
        JSONL(paths=(f"{test_data}/sets/gsm8k_t*.jsonl",), source="maths", text="question"),
        JSONL(paths=(f"{test_data}/sets/hh_harmless*.jsonl.gz",), source="talk", text="chosen"),
    )
    documents, refused = read(*tables, split_bytes=10**6)
    assert not refused
    assert sum(document["source"] == "maths" for document in documents) == 7473 + 1319
    assert sum(document["source"] == "talk" for document in documents) > 1_000
    assert documents[0]["text"] and all(len(document["id"]) == 32 for document in documents)
