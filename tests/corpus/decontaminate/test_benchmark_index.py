import gzip
import json
import re
import tomllib
from pathlib import Path

import pytest

from trainrig.config import build
from trainrig.corpus.decontaminate.benchmark_index import (
    Index,
    check_examples,
    fingerprint,
    list_benchmarks,
    read_examples,
)
from trainrig.corpus.decontaminate.decontamination_settings import GPT3, Benchmark, Decontamination
from trainrig.errors import ConfigError, DataError

ROWS = [
    {"question": "What is it?", "answer": {"text": "A bird", "short": ["a", "b", None]}, "gold": 1},
    {"question": "", "answer": {"text": "A plane", "short": []}, "gold": 2},
]


def write(path: Path, *rows: object) -> str:
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz"])
def test_examples_have_the_texts_of_their_fields(tmp_path: Path, name: str):
    path = write(tmp_path / name, *ROWS)
    fields = ("question", "answer.text", "answer.short", "gold")
    read = read_examples(Benchmark(name="b", path=path, fields=fields))
    assert read.lines == (1, 2)
    assert read.texts == (("What is it?", "A bird", "a", "b", "1"), ("", "A plane", "2"))
    joined = read_examples(Benchmark(name="b", path=path, fields=fields, joined=True))
    assert joined.texts == (("What is it? A bird a b 1",), (" A plane 2",))


def test_blank_lines_count_as_lines_only(tmp_path: Path):
    path = tmp_path / "b.jsonl"
    path.write_text('\ufeff{"a": "x"}\r\n\n \n{"a": "y"}')
    read = read_examples(Benchmark(name="b", path=str(path), fields=("a",)))
    assert (read.lines, read.texts) == ((1, 4), (("x",), ("y",)))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty; a benchmark has one JSON object per line"),
        (b"\n\n", "the file is empty; a benchmark has one JSON object per line"),
        (b'{"a": "x"}\n{"a": \n', "line 2: not JSON (Expecting value: line 1 column 7 (char 6))"),
        (b'{"a": "x"}\n["a"]\n', "line 2: a JSON list; write a JSON object"),
        (b'{"a": "x"}\n\xff\n', "line 2: not UTF-8 at byte 0"),
        (b'{"a": "x"}\n{"b": "x"}\n', "line 2: the row has no field 'a'; there are: b"),
        (b'{"qa": "x"}\n', "line 1: the row has no field 'a'; did you mean 'qa'?"),
        (b'{"a": {"b": 1}}\n', "line 1: 'a' is a table (name a field of it as a.b), not a text"),
        (b'{"a": true}\n', "line 1: 'a' is a truth value, not a text"),
        (b'{"a": ""}\n{"a": null}\n', "'a' is empty in all 2 examples"),
        (b"\x1f\x8b\x08\x00torn", "cannot be read: "),
    ],
)
def test_a_file_that_is_no_benchmark_is_refused_in_one_line(tmp_path, content, told):
    path = tmp_path / "b.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_examples(Benchmark(name="b", path=str(path), fields=("a",)))
    assert str(error.value).startswith(f"{path}: {told}")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"no\.jsonl: no such"):
        read_examples(Benchmark(name="b", path=str(tmp_path / "no.jsonl"), fields=("a",)))
    with pytest.raises(DataError, match="this is a folder; set `folder`"):
        read_examples(Benchmark(name="b", path=str(tmp_path), fields=("a",)))


def test_every_jsonl_file_of_a_folder_is_a_benchmark(tmp_path: Path):
    write(tmp_path / "b.jsonl.gz", *ROWS)
    write(tmp_path / "a.jsonl", {"text": "x"})
    (tmp_path / "notes.txt").write_text("none")
    settings = Decontamination(
        folder=str(tmp_path), fields={"a": ("text",), "b": ("question",)}, style=GPT3()
    )
    assert [(benchmark.name, benchmark.fields) for benchmark in list_benchmarks(settings)] == [
        ("a", ("text",)),
        ("b", ("question",)),
    ]
    before = fingerprint(settings)
    assert fingerprint(settings.model_copy(update={"fields": {**settings.fields}})) == before
    write(tmp_path / "a.jsonl", {"text": "y"})
    assert fingerprint(settings) != before


def test_missing_fields_are_requested_in_the_error(tmp_path: Path):
    for name in "abc":
        write(tmp_path / f"{name}.jsonl", *ROWS)
    with pytest.raises(DataError) as error:
        list_benchmarks(Decontamination(folder=str(tmp_path), fields={"a": ("question",)}))
    text = '["question", "answer.text", "answer.short"]'
    assert str(error.value) == (
        f"{tmp_path}: `fields` lacks 2 of its 3 benchmarks; add a line for each, with the fields "
        f'to use of these fields with text: "b" = {text}; "c" = {text}'
    )
    for number in range(12):
        write(tmp_path / f"more-{number:02}.jsonl", *ROWS)
    with pytest.raises(DataError, match=r'"more-07" = \[[^]]*\]; and 4 more$'):
        list_benchmarks(Decontamination(folder=str(tmp_path), fields={"a": ("question",)}))


def test_all_benchmarks_are_read_before_any_page(tmp_path: Path):
    benchmark = {"name": "b", "path": str(tmp_path / "b.jsonl"), "fields": ["question"]}
    settings = build(Decontamination, {"benchmarks": [benchmark]}, "run.toml")
    with pytest.raises(DataError, match=r"b\.jsonl: no such.*JSON"):
        fingerprint(settings)
    (tmp_path / "b.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"b\.jsonl: line 1: not JSON"):
        check_examples(settings)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"folder": "{folder}/empty"}, "{folder}/empty: the folder contains no benchmark"),
        (
            {"folder": "{folder}", "fields": {"b": ["question"], "c": ["x"]}},
            "{folder}: `fields` names 'c', but the folder has no such benchmark; there are: b",
        ),
        (
            {
                "folder": "{folder}",
                "fields": {"b": ["question"]},
                "benchmarks": [{"name": "b", "path": "x", "fields": ["y"]}],
            },
            "decontamination: 2 benchmarks are named 'b'",
        ),
        (
            {
                "folder": "{folder}",
                "fields": {"b": ["question"]},
                "style": {"kind": "Llama3", "thresholds": {"bb": 0.3}},
            },
            "decontamination: style.thresholds: no benchmark is named 'bb'",
        ),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_in_one_line(tmp_path, given, told):
    write(tmp_path / "b.jsonl", *ROWS)
    (tmp_path / "empty").mkdir()
    given = {**given, "folder": given["folder"].format(folder=tmp_path)}
    settings = build(Decontamination, given, "run.toml")
    with pytest.raises(DataError) as error:
        list_benchmarks(settings)
    assert str(error.value).startswith(told.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "set `folder`, or list `benchmarks`"),
        ({"fields": {"a": ["b"]}, "benchmarks": [{"name": "a", "path": "p", "fields": ["q"]}]}, ""),
        ({"folder": "f", "style": {"kind": "GPT4"}}, "no kind 'GPT4'; did you mean 'GPT3'?"),
        ({"folder": "f", "style": {"kind": "GPT3", "windw": 1}}, "no key 'windw' in GPT3"),
        (
            {"folder": "f", "style": {"kind": "GPT3", "fewest_words": 14}},
            "must not exceed most_words",
        ),
        ({"folder": "f", "style": {"kind": "PaLM", "dirty_from": 70.0}}, "less than or equal to 1"),
        (
            {"folder": "f", "style": {"kind": "Llama2", "clean_below": 0.9}},
            "must not exceed dirty_from",
        ),
        ({"benchmarks": [{"name": "a", "path": "p", "fields": []}]}, "should have at least 1 item"),
        ({"benchmarks": [{"name": "a/b", "path": "p", "fields": ["q"]}]}, "should match pattern"),
        (
            {
                "benchmarks": [{"name": "gsm8k", "path": "p", "fields": ["q"]}],
                "style": {"kind": "Llama3", "thresholds": {"gsm8": 0.3}},
            },
            "no benchmark is named 'gsm8'; did you mean 'gsm8k'?",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(given, told):
    with pytest.raises(ConfigError) as error:
        build(Decontamination, given, "run.toml")
    assert told in str(error.value)


def test_the_settings_that_the_docs_show_load():
    text = (Path(__file__).parents[3] / "docs" / "decontamination.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    settings = build(Decontamination, tomllib.loads(shown)["decontamination"], "docs")
    assert settings.fields["arc_easy"] == ("query", "choices")
    entry = re.search(r"`(benchmarks = .*?)`", text).group(1)
    (benchmark,) = build(Decontamination, tomllib.loads(entry), "docs").benchmarks
    assert benchmark.fields == ("question",)


def test_n_is_the_percentile_of_the_lengths_between_its_bounds():
    assert GPT3().choose_word_count([3]) == 8
    assert GPT3().choose_word_count([50]) == 13
    lengths = [9, *[10] * 4, *[20] * 95]
    assert GPT3().choose_word_count(lengths) == 10
    assert GPT3().choose_word_count([9, 9, *lengths[2:]]) == 10  # rank 4 of 0 to 99
    assert GPT3().choose_word_count([*[9] * 5, *lengths[5:]]) == 9


def test_texts_below_n_are_looked_for_as_a_whole(tmp_path: Path):
    rows = [{"a": " ".join(f"w{row}x{i}" for i in range(20))} for row in range(60)]
    rows[3] = {"a": "one two three four five six seven eight nine"}
    rows[4] = {"a": "one two three four five six seven"}
    path = write(tmp_path / "b.jsonl", *rows)
    settings = Decontamination(benchmarks=(Benchmark(name="b", path=path, fields=("a",)),))
    index = Index.of(settings)
    assert index.orders == (13,)
    place = index.words_B.tolist().index(index.words_B[index.ends_P[2]])
    assert index.grams.orders_B[place : place + 10].tolist() == [9, *[0] * 9]
    hits, *_ = index.search_texts(["x one two three four five six seven eight nine"])
    assert len(hits.words) == 1
