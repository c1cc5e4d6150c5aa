import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.manifest import CLAIM, MANIFEST
from trainrig.tokens.document_set import JSONL, Column, Parquet, is_held_out
from trainrig.tokens.tokenizer import (
    REPORT,
    REPORT_PAGE,
    TOKENIZER_FILE,
    HeldOutCollector,
    Reporting,
    TokenizerTraining,
    make_tokenizer,
    train_tokenizer,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.imported import Imported
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE, WordPiece
from trainrig.tokens.tokenizers.training_sample import TextSampling

SMALL = ByteLevelBPE(vocabulary=320, min_frequency=1)
REPORTING = Reporting(held_out=0.2, smaller=(300,))
SYLLABLES = ["sea", "mir", "ror", "gre", "no", "bo", "dy", "sle", "ép", "猫", "tion", "ka"]
WORDS = [first + last for first in SYLLABLES for last in SYLLABLES]
Row = dict[str, Any]


def row(number: int, source: str = "web") -> Row:
    draw = random.Random(f"{source}{number}")
    text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(5, 30)))
    url = f"https://{source}.example/{number}"
    language = "en" if number % 3 else "de"
    return {"id": f"{source}{number}", "url": url, "source": source, "language": language,
            "text": text}  # fmt: skip


ROWS = [row(n) for n in range(120)] + [row(n, "wiki") for n in range(60)]


def write(folder: Path, rows: list[Row], files: int = 1) -> JSONL:
    folder.mkdir()
    for number in range(files):
        lines = [json.dumps(row) + "\n" for row in rows[number::files]]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return JSONL(
        paths=(str(folder),), source=Column(column="source"), id="id", url="url",
        language="language",
    )  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> JSONL:
    return write(tmp_path_factory.mktemp("tokenizer") / "documents", ROWS, 3)


@pytest.fixture(scope="module")
def folder(table: JSONL, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tokenizer on `table` and return the output folder."""
    folder = tmp_path_factory.mktemp("trained")
    make_tokenizer(training(table, folder))
    return folder


def training(table: JSONL, output: Path, **changes: Any) -> TokenizerTraining:
    given = {"documents": (table,), "output": str(output), "tokenizer": SMALL, "report": REPORTING}
    return TokenizerTraining(**(given | changes))


def hash_files(output: Path) -> dict[str, str]:
    paths = storage.list_files(str(output))
    names = {path.rpartition("/")[2]: path for path in paths}
    return {
        n: storage.compute_sha256(path) for n, path in names.items() if n not in {CLAIM, MANIFEST}
    }


def read_report(output: Path) -> dict[str, Any]:
    return json.loads((output / REPORT).read_text())


@pytest.mark.slow
def test_a_tokenizers_folder_keeps_the_contract(table, folder):
    made = manifest.read_input(str(folder), "tokenizer")
    assert set(made.files) == {TOKENIZER_FILE, REPORT}
    found = hash_files(folder)
    assert {name: entry.sha256 for name, entry in made.files.items()} == {
        name: found[name] for name in made.files
    }
    assert set(found) == {*made.files, REPORT_PAGE}
    sampled = [row for row in ROWS if not is_held_out(row["url"], 0.2)]
    assert 0 < len(sampled) < len(ROWS)
    assert made.counts["vocabulary"] == 320
    assert made.counts["sampled_documents"] == len(sampled)
    assert made.counts["sampled_bytes"] == sum(len(row["text"].encode()) for row in sampled)
    assert make_tokenizer(training(table, folder)) == made
    with pytest.raises(OutputTaken, match=r"tokenizer\.vocabulary: 320 there, 310 here"):
        other = ByteLevelBPE(vocabulary=310, min_frequency=1)
        make_tokenizer(training(table, folder, tokenizer=other))


def test_the_report_reads_only_held_out_documents(folder):
    report = read_report(folder)
    out = [row for row in ROWS if is_held_out(row["url"], 0.2)]
    assert report["held_out"] is True
    total = report["vocabulary"]["total"]
    assert total["documents"] == len(out)
    assert total["bytes"] == sum(len(row["text"].encode()) for row in out)
    for key, names in (("source", "sources"), ("language", "languages")):
        assert {name: of["documents"] for name, of in report["vocabulary"][names].items()} == {
            name: sum(row[key] == name for row in out) for name in {e[key] for e in out}
        }
    encoder = Encoder.load(str(folder / TOKENIZER_FILE))
    assert total["tokens"] == sum(map(len, encoder.encode_batch([row["text"] for row in out])))


@pytest.mark.slow
def test_order_and_files_of_the_documents_change_nothing(folder, tmp_path):
    rows = random.Random(0).sample(ROWS, len(ROWS))
    make_tokenizer(training(write(tmp_path / "documents", rows, 2), tmp_path / "other"))
    assert hash_files(tmp_path / "other") == hash_files(folder)


@pytest.mark.parametrize("limit", [1, 300, 10**6])
def test_held_back_texts_are_bounded_and_the_same_in_any_order(limit):
    def held_back(rows: list[Row]) -> list[str]:
        back = HeldOutCollector(Reporting(held_out=0.5, bytes=limit))
        passed = [identity for identity, _, _ in back.filter_rows(rows)]
        assert passed == [row["id"] for row in rows if not is_held_out(row["url"], 0.5)]
        return [text.id for text in back.list_texts()]

    chosen = held_back(ROWS)
    assert chosen == held_back(ROWS[::-1])
    sizes = {row["id"]: len(row["text"].encode()) for row in ROWS}
    out = [row["id"] for row in ROWS if is_held_out(row["url"], 0.5)]
    by_hash = sorted(out, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8).digest())
    assert chosen == by_hash[: len(chosen)]
    total = sum(sizes[identity] for identity in chosen)
    if limit == 10**6:
        assert chosen == by_hash
    else:
        assert total >= limit and total - sizes[chosen[-1]] < limit


@pytest.mark.slow
def test_vocabularies_are_compared_on_the_same_text(table, folder, tmp_path):
    path = str(folder / TOKENIZER_FILE)
    report = Reporting(held_out=0.2, smaller=(300, 280), compare={"old": path}, channels=10)
    made = make_tokenizer(training(table, tmp_path / "other", report=report))
    assert made.inputs["report.compare.old"] == Encoder.load(path).fingerprint
    rivals = read_report(tmp_path / "other")["rivals"]
    names = ["this one", "its first 300 entries", "its first 280 entries", "old"]
    assert [one["name"] for one in rivals] == names
    assert [one["embedding_parameters"] for one in rivals] == [3200, 3000, 2800, 3200]
    assert rivals[0]["amount"] == rivals[3]["amount"]
    assert rivals[0]["amount"]["tokens"] <= rivals[1]["amount"]["tokens"]
    untied = report.model_copy(update={"tied": False})
    make_tokenizer(training(table, tmp_path / "untied", report=untied))
    assert read_report(tmp_path / "untied")["rivals"][0]["embedding_parameters"] == 6400


@pytest.mark.slow
def test_without_held_out_documents_the_report_names_its_documents(tmp_path):
    rows = [row for row in ROWS if not is_held_out(row["url"], 0.2)]
    make_tokenizer(training(write(tmp_path / "documents", rows), tmp_path / "t"))
    report = read_report(tmp_path / "t")
    assert report["held_out"] is False
    assert report["vocabulary"]["total"]["documents"] == len(rows)
    assert "No document was held out" in (tmp_path / "t" / REPORT_PAGE).read_text()


@pytest.mark.slow
def test_the_default_report_compares_half_a_quarter_and_an_eighth_where_they_can_be(
    table, tmp_path
):
    larger = ByteLevelBPE(vocabulary=530, min_frequency=1)
    make_tokenizer(training(table, tmp_path / "t", tokenizer=larger, report=Reporting()))
    names = [one["name"] for one in read_report(tmp_path / "t")["rivals"]]
    assert names == ["this one", "its first 265 entries"]


@pytest.mark.slow
def test_another_kind_has_a_report_too(table, tmp_path):
    kind = WordPiece(vocabulary=600)
    make_tokenizer(training(table, tmp_path / "t", tokenizer=kind, report=Reporting()))
    report = read_report(tmp_path / "t")
    assert report["kind"] == "WordPiece"
    assert report["vocabulary"]["engine"] == "tokenizers" and report["vocabulary"]["why_not_fast"]
    assert report["vocabulary"]["not_given_back"] == []


@pytest.mark.parametrize(
    ("tokenizer", "smaller", "message"),
    [
        (SMALL, (262,), r"262 entries are impossible.*263 to 319"),
        (SMALL, (300, 320), r"320 entries are impossible.*263 to 319"),
        (WordPiece(vocabulary=600), (300,), "smaller WordPiece is not part"),
    ],
)
def test_invalid_smaller_vocabularies_are_refused_before_training(
    table, tmp_path, tokenizer, smaller, message
):
    report = Reporting(smaller=smaller)
    with pytest.raises(ValueError, match=message):
        training(table, tmp_path, tokenizer=tokenizer, report=report)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"report": Reporting(compare={"x": "nowhere.json"})}, DataError, "nowhere.json: no such"),
        ({"tokenizer": ByteLevelBPE(vocabulary=32_768)}, DataError, "not 32768"),
        (
            {"sample": TextSampling(weights={"news": 1})},
            ConfigError,
            "source 'news'",
        ),
    ],
)
def test_invalid_settings_are_refused_and_leave_nothing(table, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        make_tokenizer(training(table, tmp_path / "t", **changes))
    assert storage.list_files(str(tmp_path / "t")) == []


def test_a_damaged_tokenizer_or_document_file_leaves_no_claimed_output(table, tmp_path):
    (tmp_path / "t.json").write_text('{"model": null}')
    with pytest.raises(DataError, match=r"t\.json: not a tokenizer\.json"):
        make_tokenizer(
            training(
                table,
                tmp_path / "out",
                tokenizer=Imported(path=f"{tmp_path}/t.json"),
                report=Reporting(held_out=0.2),
            )
        )
    assert storage.list_files(str(tmp_path / "out")) == []
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    damaged = Parquet(paths=(f"{tmp_path}/a.parquet",), source="s")
    with pytest.raises(DataError, match=r"a\.parquet: not Parquet, or damaged"):
        make_tokenizer(training(damaged, tmp_path / "out"))
    assert storage.list_files(str(tmp_path / "out")) == []


def test_a_tokenizer_without_documents_is_refused_and_leaves_nothing(tmp_path):
    """The smallest vocabulary needs no text to train, but the report has nothing to measure."""
    tokenizer = ByteLevelBPE(vocabulary=ByteLevelBPE().least)
    documents = write(tmp_path / "documents", [])
    with pytest.raises(DataError, match="documents: no document"):
        make_tokenizer(
            training(documents, tmp_path / "t", tokenizer=tokenizer, report=Reporting(held_out=0.2))
        )
    assert storage.list_files(str(tmp_path / "t")) == []


def test_a_refusal_by_the_encoder_leaves_no_claimed_output(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trainrig.tokens.tokenizer.train_tokenizer", lambda *_: b"{}")
    with pytest.raises(DataError):
        make_tokenizer(training(table, tmp_path / "out"))
    assert storage.list_files(str(tmp_path / "out")) == []


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_files(table, folder, tmp_path, monkeypatch):
    run = training(table, tmp_path / "killed")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("trainrig.tokens.tokenizers.vocabulary_page.render_vocabulary_page", killed)
        with pytest.raises(KeyboardInterrupt):
            make_tokenizer(run)
    assert not storage.exists(str(tmp_path / "killed" / MANIFEST))
    make_tokenizer(run)
    assert hash_files(tmp_path / "killed") == hash_files(folder)


def test_an_imported_tokenizer_is_known_by_its_content_not_its_place(table, folder, tmp_path):
    path = tmp_path / "elsewhere.json"
    moved = tmp_path / "moved.json"
    path.write_bytes((folder / TOKENIZER_FILE).read_bytes())
    there = {"output": tmp_path / "out", "report": Reporting(held_out=0.2)}
    made = make_tokenizer(training(table, tokenizer=Imported(path=str(path)), **there))
    path.rename(moved)
    again = training(table, tokenizer=Imported(path=str(moved)), **there)
    assert make_tokenizer(again) == made
    other = train_tokenizer(ByteLevelBPE(vocabulary=264), ["xx xx xx"])
    moved.write_bytes(other)
    with pytest.raises(OutputTaken, match=r"input `tokenizer.path`.*contents"):
        make_tokenizer(again)


def test_the_weights_of_the_sample_are_kept(table, tmp_path):
    run = training(
        table, tmp_path / "t", sample=TextSampling(bytes=2_000, weights={"web": 1, "wiki": 3})
    )
    made = make_tokenizer(run)
    assert made.counts["sampled_bytes"] == pytest.approx(2_000, abs=8)
    bytes_of = read_report(tmp_path / "t")["sampled_bytes_of"]
    assert bytes_of["wiki"] == pytest.approx(1_500, abs=4)
    assert manifest.read_input(str(tmp_path / "t"), "tokenizer") == made
