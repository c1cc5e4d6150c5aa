"""Runs each case of the real data by its own run file, and compares with what is right."""

import gzip
import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from trainrig import config
from trainrig.corpus.curate import Curation, curate
from trainrig.errors import DataError
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture
def cases(test_data: Path) -> Path:
    folder = test_data / "cases" / "curation"
    if not folder.is_dir():
        pytest.skip("TRAINRIG_TEST_DATA has no cases of curation")
    return folder


@pytest.fixture
def copy_case(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that copies a case to a new working directory and reads its run file."""

    def copy(name: str) -> dict[str, Any]:
        # contents alone, because the originals may be read-only
        shutil.copytree(cases / name, tmp_path / name, copy_function=shutil.copyfile)
        monkeypatch.chdir(tmp_path / name)
        return tomllib.loads(Path("run.toml").read_text())

    return copy


def run_curation(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Curate by `run`, and return the documents in the order of their sources and pages."""
    curate(config.build(Curation, run, "run.toml"))
    paths = [*Path("out/kept").glob("*.parquet"), *Path("out/dropped").glob("*.parquet")]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["source"], row["row"]))


def read_reasons() -> list[str]:
    """Return the reasons of the records that gave no document."""
    paths = sorted(Path("out/quarantine").iterdir())
    return [row["reason"] for path in paths for row in read_lines(path.read_bytes())]


def read_lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


# name of the case: texts that the one document holds, texts that it does not hold
ONE_PAGE: dict[str, tuple[list[str], list[str]]] = {
    "code_prism_docusaurus": (
        [
            "def open_gate(level):\n    for gate in gates:\n        if gate.level < level:\n"
            "            gate.open()\n"
        ],
        [],
    ),
    "jsonld_only": (["The reservoir at the head", "as his father did before him."], ["Home"]),
    "mathml": (
        [
            r"gauge is 1.5\times 10^{-4} and",
            r"gauge is \frac{2}{3} of it",
            r"flow is Q = A\sqrt{2gh} all",
        ],
        ["×", "Q=A2gh"],
    ),
    "single_characters": (
        ["costs €49,", "at −4 degrees", "and ≤5 boats", "我们不同意这个决定，因为他没有说明理由。"],
        [],
    ),
    "ul_near_body": (
        ["may close the gate on a slow boat", "after the last try", "Default:\t/dev/ttyS0"],
        [],
    ),
    "utf16_header": (["Gates\n\nThe reservoir at the head", "once a minute."], ["\0", "\ufffd"]),
    "xhtml_self_closed": (["The reservoir at the head", "dry for most of the summer."], ["a.js"]),
}


@pytest.mark.parametrize("name", ONE_PAGE)
@pytest.mark.parametrize("quality", ["fast", "balanced", "precise"])
def test_the_text_of_a_page_is_whole(copy_case: Any, name: str, quality: str) -> None:
    run = copy_case(name)
    run["sources"][0]["extractor"] = {"kind": "MainContent", "quality": quality}
    (document,) = run_curation(run)
    wanted, unwanted = ONE_PAGE[name]
    assert [text for text in wanted if text not in document["text"]] == []
    assert [text for text in unwanted if text in document["text"]] == []


def test_a_json_array_is_read_and_its_fields_are_joined(copy_case: Any) -> None:
    run = copy_case("alpaca_array")
    run["sources"][0]["reading"]["fields"]["text"] = ["instruction", "input", "output"]
    documents = run_curation(run)
    rows = json.loads(Path("alpaca_data.json").read_text())
    assert [document["text"] for document in documents] == [
        f"{row['instruction']}\n\n{row['output']}" for row in rows
    ]


@pytest.mark.parametrize("name", ["jsonl_nested", "parquet_nested"])
def test_nested_fields_are_read(copy_case: Any, name: str) -> None:
    documents = run_curation(copy_case(name))
    if name == "jsonl_nested":
        rows = read_lines(Path("a.jsonl").read_bytes())
        expected = [(row["doc"]["body"], row["metadata"]["url"]) for row in rows]
    else:
        rows = pq.read_table("a.parquet").to_pylist()
        expected = [(row["doc"]["body"], row["meta"]["url"]) for row in rows]
    assert expected
    assert [(document["text"], document["url"]) for document in documents] == expected


def test_lists_of_strings_are_joined(copy_case: Any) -> None:
    documents = run_curation(copy_case("parquet_list_text"))
    expected = ["\n\n".join(row["text"]) for row in pq.read_table("a.parquet").to_pylist()]
    assert [document["text"] for document in documents] == expected


def test_packed_json_lines_of_a_folder_are_read(copy_case: Any) -> None:
    documents = run_curation(copy_case("folder_json_gz"))
    (path,) = Path("c4").rglob("*.json.gz")
    rows = read_lines(gzip.decompress(path.read_bytes()))
    assert [(d["text"], d["url"]) for d in documents] == [(r["text"], r["url"]) for r in rows]


def test_common_lines_of_prose_leave_code_as_it_is(copy_case: Any) -> None:
    run = copy_case("common_lines_code")
    run["common_lines"]["sources"] = ["prose"]
    documents = run_curation(run)
    programs = [row["text"] for row in read_lines(Path("code.jsonl").read_bytes())]
    assert [d["text"] for d in documents if d["source"] == "code"] == [
        re.sub(r"\n{3,}", "\n\n", text).strip()
        for text in programs  # as all texts are tidied
    ]


def test_addresses_in_logs_are_masked(copy_case: Any) -> None:
    texts = [
        document["text"].splitlines()[-1] for document in run_curation(copy_case("ip_in_logs"))
    ]
    assert texts == [
        "kernel: IN=eth0 SRC=<IP> DST=<IP> LEN=60 PROTO=TCP",
        "client_ip=<IP> status=200 path=/login",
        "<ip><IP></ip>",
    ]


def test_the_bytes_of_a_page_decide_about_its_type(copy_case: Any) -> None:
    documents = run_curation(copy_case("warc_octet_stream_html"))
    assert all("The reservoir at the head" in document["text"] for document in documents)
    assert len(documents) == 7
    assert read_reasons() == ["partial_content"]


def test_a_large_window_of_zstd_is_named(copy_case: Any) -> None:
    with pytest.raises(DataError, match="zstd_window_too_large 1"):
        run_curation(copy_case("zstd_long31"))


def test_very_long_words_do_not_slow_a_tokenizer(copy_case: Any) -> None:
    run = copy_case("tok_long_words")
    with gzip.open("docs.jsonl.gz") as packed, Path("docs.jsonl").open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    manifest = make_tokenizer(config.build(TokenizerTraining, run, "run.toml"))
    assert manifest.counts["vocabulary"] == 1_000
