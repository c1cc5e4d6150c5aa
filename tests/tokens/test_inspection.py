import functools
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.shards import write_shard

from trainrig import manifest
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import CLAIM
from trainrig.tokens import inspection
from trainrig.tokens.inspection import Inspection, View, choose_packing, count_source
from trainrig.tokens.prepare import Tokenization
from trainrig.tokens.rows.packing import BestFit, Concatenate, PackingPlan, write_plans
from trainrig.tokens.shards.shard_files import ENDINGS
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary, TokenShards
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

TEXTS = {
    "web": ["the cat", "the cat sat on the mat " * 3, "a mat", "sat on the cat " * 9],
    "books": ["it is", "the sea is grey and nobody sleeps " * 4],
}


@functools.cache
def encoder() -> Encoder:
    texts = [text for of in TEXTS.values() for text in of]
    return Encoder(train_tokenizer(ByteLevelBPE(vocabulary=270), texts).decode())


def list_lengths(source: str) -> list[int]:
    return [len(ids) + 1 for ids in encoder().encode_batch(TEXTS[source])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write two splits of two shards each; the held-out split has no books."""
    base = tmp_path_factory.mktemp("tokens")
    run = Tokenization(documents="d", tokenizer="t", output=str(base))
    stage = manifest.claim(str(base), run, {})
    (base / "tokenizer.json").write_text(encoder().text)
    vocabulary = ShardVocabulary(encoder().vocabulary_size, encoder().fingerprint)
    documents = [
        EncodedDocument(
            id=f"{source}-{number}",
            source=source,
            url=f"https://{source}.example/{number}" if number else "",
            ids=np.append(encoder().encode_batch([text])[0], encoder().end_of_text),
            text_bytes=len(text),
            corpus_file="f",
            corpus_row=number,
        )
        for source, texts in TEXTS.items()
        for number, text in enumerate(texts)
    ]
    write_shard(str(base / "train"), "0", vocabulary, documents[:3])
    write_shard(str(base / "train"), "1", vocabulary, documents[3:])
    write_shard(str(base / "held_out"), "0", vocabulary, documents[:1])
    write_plans(str(base / "train"), PackingPlan(shuffle_documents=True, best_fit=(8,)), padding=1)
    names = [str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()]
    written = {name: manifest.compute_file_sum(str(base / name)) for name in names if name != CLAIM}
    stage.finish({}, written)
    return str(base)


def render_view(**changed: object) -> View:
    usual = {"documents": 0, "rows": 0, "sequence_length": 8, "packing": Concatenate()}
    return View(**usual | {"seed": 0, "borders": False} | changed)


def capture_view(folder: str, *sources: str, **changed: object) -> str:
    return "\n".join(
        text.plain for text in Inspection.open(folder).render_texts(render_view(**changed), sources)
    )


def test_counts_equal_the_documents(folder: str) -> None:
    counts = Inspection.open(folder).count_sources()
    assert {split: list(of) for split, of in counts.items()} == {
        "train": ["books", "web"],
        "held_out": ["web"],
    }
    for source, found in counts["train"].items():
        lengths = list_lengths(source)
        assert (found.documents, found.tokens) == (len(lengths), sum(lengths))
        assert (found.shortest, found.longest) == (min(lengths), max(lengths))
        expected = [sum(2**i <= n < 2 ** (i + 1) for n in lengths) for i in range(20)]
        while not expected[-1]:
            expected.pop()
        assert list(found.lengths) == expected


def test_counting_some_documents_at_a_time_changes_nothing(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = TokenShards.open(f"{folder}/train")
    whole = count_source(shards, "web")
    monkeypatch.setattr(inspection, "CHUNK", 3)
    assert count_source(shards, "web") == whole


def test_each_split_and_source_has_its_line_and_its_bars(folder: str) -> None:
    lines = capture_view(folder).splitlines()
    tokens = {source: sum(list_lengths(source)) for source in TEXTS}
    share = tokens["books"] / sum(tokens.values())
    assert lines[0].startswith(
        f"train · books: 2 documents, {tokens['books']:,} tokens ({share:.1%})"
    )
    assert [line.split(":")[0] for line in lines if " · " in line] == [
        "train · books",
        "train · web",
        "held_out · web",
    ]
    assert sum("█" in line for line in lines) >= 5


def test_sampled_documents_are_decoded_whole(folder: str) -> None:
    found = Inspection.open(folder).sample_documents("train", "web", 99, seed=3)
    texts = {number: f"{text}<|end_of_text|>" for number, text in enumerate(TEXTS["web"])}
    assert {document["id"]: document["text"] for document in found} == {
        f"web-{number}": text for number, text in texts.items()
    }
    assert [
        document["tokens"] for document in sorted(found, key=lambda document: document["id"])
    ] == list_lengths("web")


def test_another_seed_draws_other_documents(folder: str) -> None:
    opened = Inspection.open(folder)
    drawn = {opened.sample_documents("train", "web", 1, seed)[0]["id"] for seed in range(20)}
    assert len(drawn) > 1


def test_a_document_without_a_url_is_named_by_its_id(folder: str) -> None:
    assert "┃ books-0: " in capture_view(folder, "books", documents=9)
    assert "┃ books-0: " in capture_view(folder, "books", rows=99, sequence_length=4)


@pytest.mark.parametrize(
    "packing", [Concatenate(), Concatenate(shuffle_documents=True), BestFit()], ids=str
)
def test_shown_rows_equal_the_packing(folder: str, packing: Concatenate | BestFit) -> None:
    text = capture_view(folder, "web", rows=99, packing=packing)
    rows = [line for line in text.splitlines() if line.startswith("row ")]
    if packing != BestFit():
        assert len(rows) == (sum(list_lengths("web")) - 1) // 8
    pieces = [line for line in text.splitlines() if line.startswith("┃")]
    assert len(pieces) > len(rows)  # some rows have two documents
    assert "held_out" in text  # held-out rows have no plan, and are not shown


def test_long_texts_show_both_ends_and_the_omitted_length() -> None:
    text = "".join(itertools.islice(itertools.cycle("abcdefghij"), 1_000))
    assert inspection.cut_excerpt(text, 20) == "abcdefghij … 980 characters … abcdefghij"
    assert inspection.cut_excerpt("short\x07", 20) == "short⟨U+0007⟩"


def test_one_source_alone_can_be_shown(folder: str) -> None:
    lines = [line for line in capture_view(folder, "books").splitlines() if " · " in line]
    assert [line.split(":")[0] for line in lines] == ["train · books"]


def test_one_split_alone_can_be_opened(folder: str) -> None:
    assert list(Inspection.open(f"{folder}/held_out").count_sources()) == ["held_out"]


def test_json_holds_the_counts_and_the_samples(folder: str) -> None:
    found = Inspection.open(folder).build_json(render_view(documents=1), ("web",))
    assert found["train"]["web"]["documents"] == 4
    assert len(found["held_out"]["web"]["samples"]) == 1


Change = Callable[[Path], None]


def another_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    trained = train_tokenizer(ByteLevelBPE(vocabulary=264), ["xx xx xx"])
    path.write_bytes(trained.ljust(path.stat().st_size))  # keeps the size


def lose(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_tokenizer, r"tokenizer.json: damaged: its SHA-256 differs"),
        (lose("tokenizer.json"), r"tokenizer.json: missing, though manifest.json"),
        (lose(*(f"train/1{ending}" for ending in ENDINGS[:-1])), r"train/1.bin: missing, though"),
        (
            lose(*(f"train/1{ending}" for ending in ENDINGS)),
            r"train/1.bin: missing, though manifest",
        ),
    ],
)
def test_shards_and_tokenizer_have_to_fit(
    folder: str, tmp_path: Path, change: Change, message: str
) -> None:
    copy = copy_folder(folder, tmp_path)
    change(copy)
    with pytest.raises(DataError, match=message):
        Inspection.open(str(copy))


def test_changed_bytes_are_found_on_request(folder: str, tmp_path: Path) -> None:
    copy = copy_folder(folder, tmp_path)
    Inspection.open(str(copy), verify=True)
    data = bytearray((copy / "train" / "0.bin").read_bytes())
    data[3] ^= 1
    (copy / "train" / "0.bin").write_bytes(data)
    # The damaged block is one that is shown.
    with pytest.raises(DataError, match=r"train/0.bin: damaged: block 0"):
        capture_view(str(copy), documents=2)
    with pytest.raises(DataError, match=r"train/0.bin: damaged: its SHA-256 differs"):
        Inspection.open(str(copy), verify=True)


def copy_folder(folder: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "tokens"))


def test_missing_inputs_are_named(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"no source 'wbe'.*'web'"):
        capture_view(folder, "wbe")
    tokens = sorted(sum(list_lengths(source)) for source in TEXTS)
    lines = capture_view(folder, rows=1, sequence_length=tokens[1] - 1).splitlines()
    no_row = f"no row: {tokens[0]:,} tokens are less than a row of {tokens[1]:,}"
    assert {line.partition(";")[0] for line in lines if "row" in line} == {no_row, "row 0 of 1"}
    with pytest.raises(ConfigError, match=r"no packing 'BestFi'.*'BestFit'"):
        choose_packing("BestFi", shuffled=False)
    with pytest.raises(ConfigError, match="best-fit rows ignore"):
        choose_packing("BestFit", shuffled=True)
    assert choose_packing("Concatenate", shuffled=True) == Concatenate(shuffle_documents=True)
