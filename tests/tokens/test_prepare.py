import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.file_hashes import hash_files

from trainrig import manifest, storage
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.errors import DataError, OutputTaken
from trainrig.tokens.document_set import JSONL, QUARANTINE, Column, Parquet, normalise_url
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.rows.packing import PackingPlan
from trainrig.tokens.shards.shard_files import ENDINGS
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.tokens.special_tokens import BEGIN_OF_TEXT
from trainrig.tokens.tokenize_operator import BATCH_ROWS, Tokenize
from trainrig.tokens.tokenizer import TOKENIZER_FILE, TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

WORDS = ["the", "sea", "is", "a", "grey", "mirror", "and", "nobody", "sleeps", "é", "猫", "\n\n"]
SMALL = ByteLevelBPE(vocabulary=300)
PLANS = PackingPlan(shuffle_documents=True, best_fit=(64,))
Row = dict[str, str]


def row(number: int, source: str = "web", url: str | None = None) -> Row:
    draw = random.Random(f"{source}-{number}")
    text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(5, 30)))
    url = f"https://{source}.example/{number}" if url is None else url
    identity = hashlib.blake2b(f"{source}{number}".encode(), digest_size=16).hexdigest()
    return {"id": identity, "url": url, "source": source, "language": "", "text": text}


# More rows than are encoded at a time, texts that spell special tokens, and two sources in one
# file.
FILES = {
    "web-00000": [row(number) for number in range(BATCH_ROWS + 44)],
    "web-00001": [row(number) for number in range(1_000, 1_010)]
    + [row(2_000) | {"text": "<|end_of_text|> is how a text ends <|pad|>"}]
    + [row(number, source) for number in range(3_000, 3_003) for source in ("wiki", "web")],
    "wiki-00000": [row(number, "wiki") for number in range(100, 120)],
}


def write_documents(folder: str, files: dict[str, list[Row]]) -> str:
    """Write the output of `curate` for rows without filters."""
    source = CurationSource(name="any", paths=("any.warc",))
    inputs = {"any": manifest.digest(files)}
    stage = manifest.claim(folder, Curation(output=folder, workers=0, sources=(source,)), inputs)
    sums = {}
    for name, rows in files.items():
        path = stage.build_path(f"kept/{name}.parquet")
        schema = pa.schema([(column, pa.string()) for column in row(0)])
        with storage.atomic_file(path) as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema), temporary)
        sums[f"kept/{name}.parquet"] = manifest.compute_file_sum(path)
    stage.finish({}, sums)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write `documents`, train a `tokenizer` on them, and tokenize them into `tokens`."""
    folder = str(tmp_path_factory.mktemp("prepare"))
    write_documents(f"{folder}/documents", FILES)
    make_tokenizer(make_training(folder))
    tokenize(make_tokenization(folder))
    return folder


def make_training(folder: str, **changes: Any) -> TokenizerTraining:
    places = {"documents": f"{folder}/documents", "output": f"{folder}/tokenizer"}
    return TokenizerTraining(**{**places, "tokenizer": SMALL, **changes})


def make_tokenization(folder: str, **changes: Any) -> Tokenization:
    names = ("documents", "tokenizer")
    places = {name: f"{folder}/{name}" for name in names} | {"output": f"{folder}/tokens"}
    fixed = {"workers": 0, "held_out": 0.2, "shard_bytes": 1_024, "plans": PLANS}  # a shard a file
    return Tokenization(**{**places, **fixed, **changes})


def decode_texts(folder: str, split: str) -> dict[str, str]:
    """Return the texts that the ids of a split decode to, keyed by document id."""
    encoder = Encoder.load(f"{folder}/{TOKENIZER_FILE}")
    shards = TokenShards.open(f"{folder}/{split}")
    found = {}
    for source in shards.sources:
        start = 0
        for document in shards.read_documents(source, 0, shards.tokens(source)):
            *ids, last = shards.read_window(source, start, document.length).tolist()
            assert last == encoder.end_of_text and encoder.end_of_text not in ids
            text = encoder.decode(ids)
            assert document.text_bytes == len(text.encode())
            found[document.id] = text
            start += document.length
    return found


def read_urls(folder: str, split: str) -> dict[str, str]:
    """Return the URLs of one split's documents, keyed by document id."""
    paths = storage.list_files(f"{folder}/{split}", ".index.parquet")
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return {row["id"]: row["url"] for row in rows}


# Damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer/tokenizer.json", "documents/kept"])
def test_one_flipped_bit_of_an_input_is_found_and_its_file_named(
    folder: str, tmp_path: Path, name: str
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / name
    path = path if path.is_file() else sorted(path.glob("*.parquet"))[-1]
    flip(path)
    run = make_tokenization(str(tmp_path / "copy"), output=str(tmp_path / "tokens"))
    with pytest.raises(DataError, match=rf"^{path}: damaged: its SHA-256 differs"):
        tokenize(run)


# Tokens


@pytest.mark.slow
@pytest.mark.parametrize("begin_of_text", [False, True])
def test_the_operator_gives_the_ids_of_the_shards(
    folder: str, tmp_path: Path, begin_of_text: bool
) -> None:
    tokenize(
        make_tokenization(
            folder, output=str(tmp_path / "tokens"), held_out=0.0, begin_of_text=begin_of_text
        )
    )
    operator = Tokenize(tokenizer=f"{folder}/tokenizer", begin_of_text=begin_of_text)
    rows = operator(pa.Table.from_pylist([row for rows in FILES.values() for row in rows]))
    found = dict(zip(rows["id"].to_pylist(), rows["tokens"].to_pylist(), strict=True))
    shards = TokenShards.open(str(tmp_path / "tokens" / TRAIN))
    checked = 0
    for source in shards.sources:
        start = 0
        for document in shards.read_documents(source, 0, shards.tokens(source)):
            ids = shards.read_window(source, start, document.length).tolist()
            assert found[document.id] == ids
            start += document.length
            checked += 1
    assert checked == len(found) == sum(map(len, FILES.values()))


@pytest.mark.slow
def test_the_folder_of_tokens_keeps_the_contract(folder: str) -> None:
    made = manifest.read_input(f"{folder}/tokens", "tokenize")
    assert made.inputs == {
        name: manifest.read_manifest(f"{folder}/{kind}").content
        for name, kind in (("documents", "documents"), ("tokenizer", "tokenizer"))
    }
    assert {name: entry.sha256 for name, entry in made.files.items()} == hash_files(
        f"{folder}/tokens"
    )
    plans = [name for name in made.files if name.startswith("train/plans/")]
    assert plans
    assert sorted(made.files) == sorted(
        [TOKENIZER_FILE, *plans]
        + [
            f"{split}/documents-{number:05d}{ending}"
            for split in (TRAIN, HELD_OUT)
            for number in range(len(FILES))
            for ending in ENDINGS
        ]
    )
    assert hash_files(f"{folder}/tokens")[TOKENIZER_FILE] == storage.compute_sha256(
        f"{folder}/tokenizer/{TOKENIZER_FILE}"
    )
    assert tokenize(make_tokenization(folder, workers=7)) == made
    with pytest.raises(OutputTaken, match=r"held_out: 0\.2 there, 0\.3 here"):
        tokenize(make_tokenization(folder, held_out=0.3))


def test_every_kept_text_is_decoded_from_its_ids(folder: str) -> None:
    kept = {row["id"]: row["text"] for rows in FILES.values() for row in rows}
    parts = {split: decode_texts(f"{folder}/tokens", split) for split in (TRAIN, HELD_OUT)}
    assert parts[TRAIN] | parts[HELD_OUT] == kept
    assert len(parts[TRAIN]) + len(parts[HELD_OUT]) == len(kept)


def test_the_counts_equal_the_shards(folder: str) -> None:
    counts = manifest.read_manifest(f"{folder}/tokens").counts
    assert counts["vocabulary"] == 300
    for split in (TRAIN, HELD_OUT):
        shards = TokenShards.open(f"{folder}/tokens/{split}")
        tokens = {source: shards.tokens(source) for source in shards.sources}
        texts = decode_texts(f"{folder}/tokens", split)
        assert counts[f"{split}_tokens_of"] == tokens
        assert counts[f"{split}_tokens"] == sum(tokens.values())
        assert counts[f"{split}_documents"] == len(texts)
        assert counts[f"{split}_bytes"] == sum(len(text.encode()) for text in texts.values())


def test_every_document_knows_its_row(folder: str) -> None:
    for split in (TRAIN, HELD_OUT):
        shards = TokenShards.open(f"{folder}/tokens/{split}")
        for source in shards.sources:
            for document in shards.read_documents(source, 0, shards.tokens(source)):
                rows = FILES[document.corpus_file.removesuffix(".parquet")]
                assert rows[document.corpus_row]["id"] == document.id


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_makes_the_same_bytes(
    local_ray: None, folder: str, tmp_path: Path, workers: int
) -> None:
    output = f"{tmp_path}/tokens"
    made = tokenize(make_tokenization(folder, output=output, workers=workers))
    assert hash_files(output) == hash_files(f"{folder}/tokens")
    assert made.content == manifest.read_manifest(f"{folder}/tokens").content


def test_a_stopped_run_resumes_and_writes_the_same_bytes(folder: str, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(done: int, whole: int) -> None:
        if done == 2:
            raise Stopped

    run = make_tokenization(folder, output=f"{tmp_path}/tokens")
    with pytest.raises(Stopped):
        tokenize(run, stop)
    seen: list[int] = []
    tokenize(run, lambda done, whole: seen.append(done))
    assert seen == [2, 3]
    assert hash_files(run.output) == hash_files(f"{folder}/tokens")


# Held-out documents


@pytest.mark.slow
def test_no_url_is_in_both_splits(tmp_path: Path) -> None:
    spellings = ("https://a.example/{}", "HTTPS://A.example:443/{}/", "https://a.example/{}#top")
    files = {
        f"web-{number:05d}": [
            row(100 * number + page, url=spelling.format(page)) for page in range(60)
        ]
        for number, spelling in enumerate(spellings)
    }
    folder = str(tmp_path)
    write_documents(f"{folder}/documents", files)
    make_tokenizer(make_training(folder))
    tokenize(make_tokenization(folder, held_out=0.3))
    trained, held = (
        {normalise_url(url) for url in read_urls(f"{folder}/tokens", split).values()}
        for split in (TRAIN, HELD_OUT)
    )
    assert len(trained) + len(held) == 60 and not trained & held
    assert 5 < len(held) < 35


def test_a_document_keeps_its_side_when_others_are_added_or_more_are_held_out(
    folder: str, tmp_path: Path
) -> None:
    more = {"first-00000": [row(number, "news") for number in range(30)], **FILES}
    write_documents(f"{tmp_path}/documents", more)
    tokenizer = f"{folder}/tokenizer"
    tokenize(make_tokenization(str(tmp_path), tokenizer=tokenizer))
    tokenize(make_tokenization(folder, output=f"{tmp_path}/half", held_out=0.5))
    held = set(read_urls(f"{folder}/tokens", HELD_OUT))
    news = {row["id"] for row in more["first-00000"]}
    assert 0 < len(held) < 200
    assert set(read_urls(f"{tmp_path}/tokens", HELD_OUT)) - news == held
    assert held < set(read_urls(f"{tmp_path}/half", HELD_OUT))


def test_documents_without_a_url_are_split_by_their_ids(folder: str, tmp_path: Path) -> None:
    rows = [row(number, url="") for number in range(200)]
    write_documents(f"{tmp_path}/documents", {"web-00000": rows})
    tokenize(make_tokenization(str(tmp_path), tokenizer=f"{folder}/tokenizer"))
    trained, held = (set(read_urls(f"{tmp_path}/tokens", split)) for split in (TRAIN, HELD_OUT))
    assert trained | held == {row["id"] for row in rows} and not trained & held
    assert 15 < len(held) < 70  # 40, and six standard deviations either way


# Invalid settings and inputs


def test_another_stages_folder_is_refused(folder: str, tmp_path: Path) -> None:
    output = f"{tmp_path}/out"
    made_by = "is the output of `{}`, not of `{}`"
    with pytest.raises(DataError, match=made_by.format("tokenize", "curate")):
        tokenize(make_tokenization(folder, documents=f"{folder}/tokens", output=output))
    with pytest.raises(DataError, match=made_by.format("curate", "tokenizer")):
        tokenize(make_tokenization(folder, tokenizer=f"{folder}/documents", output=output))
    assert not Path(output).exists()


def test_when_everything_is_held_out_nothing_is_left(folder: str, tmp_path: Path) -> None:
    output = f"{tmp_path}/tokens"
    with pytest.raises(DataError, match="documents: no document"):
        tokenize(make_tokenization(folder, output=output, held_out=0.999999))
    assert storage.list_files(output) == []


def test_nothing_held_out_is_an_empty_split(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = f"{tmp_path}/tokens"
    with caplog.at_level("WARNING"):
        counts = tokenize(make_tokenization(folder, output=output, held_out=0.0)).counts
    assert caplog.records == []
    assert (counts["held_out_documents"], counts["held_out_tokens"]) == (0, 0)
    assert len(decode_texts(output, TRAIN)) == sum(map(len, FILES.values()))


def test_a_share_that_holds_out_no_document_is_reported(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenize(make_tokenization(folder, output=f"{tmp_path}/tokens", held_out=1e-9))
    assert (
        f"no document is held out, because the share 1e-09 of {sum(map(len, FILES.values()))}"
        in (caplog.text)
    )


# Special tokens around a text


def test_a_text_that_writes_special_tokens_stays_text(folder: str) -> None:
    written = "<|end_of_text|> is how a text ends <|pad|>"
    texts = decode_texts(f"{folder}/tokens", TRAIN) | decode_texts(f"{folder}/tokens", HELD_OUT)
    assert written in texts.values()  # `texts_of` found no special token inside


def test_documents_begin_with_begin_of_text_on_request(folder: str, tmp_path: Path) -> None:
    tokenize(make_tokenization(folder, output=f"{tmp_path}/tokens", begin_of_text=True))
    begin = Encoder.load(f"{folder}/tokenizer/{TOKENIZER_FILE}").find_special(BEGIN_OF_TEXT)
    plain, begun = (
        TokenShards.open(f"{parent}/tokens/{TRAIN}") for parent in (folder, str(tmp_path))
    )
    for source in plain.sources:
        starts = begun.find_boundaries(source, 0, begun.tokens(source))
        assert [begun.read_window(source, at, 1)[0] for at in (0, *starts.tolist())] == [begin] * (
            plain.count_documents(source)
        )
        assert begun.tokens(source) == plain.tokens(source) + plain.count_documents(source)


# Rows without a document


def test_invalid_documents_are_counted_and_skipped(folder: str, tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"page {n} of the sea", "id": n % 20}) for n in range(30)]
    lines = [*rows[:3], '{"text": null}', *rows[3:], "not JSON at all"]
    storage.write(f"{tmp_path}/in/a.jsonl", "\n".join(lines).encode())
    documents = (JSONL(paths=(f"{tmp_path}/in/*.jsonl",), source="notes", id="id"),)
    run = make_tokenization(folder, documents=documents, output=f"{tmp_path}/tokens")
    run = run.model_copy(update={"shard_bytes": 10**6})
    made = tokenize(run)
    assert made.counts["refused"] == {"no_text": 1, "not_json": 1}
    assert made.counts["repeated_ids"] == 10
    assert made.counts["train_documents"] + made.counts["held_out_documents"] == 30
    seen = storage.read(f"{run.output}/{QUARANTINE}/documents-00000.jsonl").decode().splitlines()
    assert [json.loads(line) for line in seen] == [
        {"file": "a.jsonl", "place": len("\n".join(rows[:3])) + 1, "reason": "no_text"},
        {"file": "a.jsonl", "place": len("\n".join(lines[:-1])) + 1, "reason": "not_json"},
    ]
    assert f"{QUARANTINE}/documents-00000.jsonl" in made.files


def test_a_damaged_file_is_named_and_leaves_no_claimed_output(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.table({"text": [f"page {number} of the sea" for number in range(1_000)]})
    pq.write_table(texts, path, compression="snappy")
    damaged = bytearray(path.read_bytes())
    damaged[100:120] = bytes(byte ^ 0xFF for byte in damaged[100:120])
    path.write_bytes(damaged)
    documents = (Parquet(paths=(str(path),), source="notes"),)
    run = make_tokenization(folder, documents=documents, output=f"{tmp_path}/tokens")
    with pytest.raises(DataError, match=r"a\.parquet: not Parquet"):
        tokenize(run)
    assert storage.list_files(run.output) == []


@pytest.mark.parametrize("shard_bytes", [4_000, 10**6])
def test_files_from_elsewhere_give_the_documents_that_a_curated_folder_gives(
    folder: str, tmp_path: Path, shard_bytes: int
) -> None:
    for name, rows in FILES.items():
        lines = "\n".join(json.dumps(row) for row in rows)
        storage.write(f"{tmp_path}/in/{name}.jsonl", lines.encode())
    lines_of = JSONL(paths=(f"{tmp_path}/in",), source=Column(column="source"), id="id", url="url")
    run = make_tokenization(
        folder, documents=(lines_of,), output=f"{tmp_path}/tokens", shard_bytes=shard_bytes
    )
    made = tokenize(run)
    assert made.counts["refused"] == {}
    for split in (TRAIN, HELD_OUT):
        assert decode_texts(run.output, split) == decode_texts(f"{folder}/tokens", split)


@pytest.mark.slow
def test_a_bucket_holds_the_same_bytes_as_a_disk(
    folder: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_documents(f"{s3}/documents", FILES)
    make_tokenizer(make_training(s3))
    tokenize(make_tokenization(s3))
    for name in ("tokenizer", "tokens"):
        assert hash_files(f"{s3}/{name}") == hash_files(f"{folder}/{name}")
