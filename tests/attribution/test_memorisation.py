import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.token_folders import encode_texts, make_encoder, write_token_folder
from typer.testing import CliRunner

from trainrig.attribution import CorpusIndex, open_index
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
from trainrig.attribution.memorisation import (
    compute_exposures,
    count_copies,
    read_texts,
    summarise_exposures,
)
from trainrig.cli import app
from trainrig.errors import ConfigError, DataError

PAGES = {"web": ["the cat sat on the mat and left"], "books": ["nobody sleeps at sea, the cat sat"]}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> CorpusIndex:
    at = tmp_path_factory.mktemp("memorisation")
    encoder = make_encoder()
    shards = [encode_texts(PAGES, encoder)]
    tokens = write_token_folder(at / "tokens", shards, encoder.vocabulary_size)
    index_tokens(CorpusIndexing(tokens=(tokens,), output=str(at / "index"), workers=0))
    return open_index(at / "index")


def test_generations_that_copy_are_counted_by_the_source_of_the_page(index: CorpusIndex) -> None:
    generations = [
        PAGES["web"][0],  # copies all of one page
        "zz the cat sat zz",  # which both sources have
        "qwx",
        "",
    ]
    lengths = {text: len(index.encode(text)) for text in generations}
    short = int(index.find_match_lengths(index.encode(generations[1])).max())
    whole = lengths[PAGES["web"][0]]
    assert short < whole
    shares = count_copies(index, generations, [short, whole, whole + 1])
    assert [share.copies for share in shares] == [2, 1, 0]
    assert [dict(share.by_source) for share in shares] == [{"books": 1, "web": 2}, {"web": 1}, {}]
    assert [share.share for share in shares] == [0.5, 0.25, 0]
    with pytest.raises(DataError, match="no generation"):
        count_copies(index, [], [8])


def test_exposure_is_the_rank_of_a_canary_among_references() -> None:
    losses = {"learned": 1.0, "middle": 3.5, "worst": 9.0, "a": 2.0, "b": 3.0, "c": 4.0}

    def score(texts: Any) -> list[float]:
        return [losses[text] for text in texts]

    found = compute_exposures(score, ["learned", "middle", "worst"], ["a", "b", "c"])
    assert [exposure.rank for exposure in found] == [1, 3, 4]
    assert [exposure.bits for exposure in found] == [2.0, 2 - math.log2(3), 0.0]
    assert summarise_exposures(found)["largest"] == 2.0
    with pytest.raises(DataError, match="two references"):
        compute_exposures(score, ["learned"], ["a"])


def test_texts_that_were_never_seen_have_the_exposure_that_messages_name() -> None:
    """The mean of log2 R - log2 rank over random ranks is log2 e, about 1.44."""
    dice = np.random.default_rng(0)

    def score(texts: Any) -> list[float]:
        return dice.random(len(texts)).tolist()

    found = compute_exposures(score, ["c"] * 2_000, ["r"] * 500)
    assert summarise_exposures(found)["mean"] == pytest.approx(math.log2(math.e), abs=0.1)
    same = compute_exposures(lambda texts: [1.0] * len(texts), ["c"], ["r"] * 1_000)
    assert same[0].bits == pytest.approx(1, abs=0.01)


def test_texts_are_read_from_rows_of_several_forms(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('"one"\n\n{"text": "two", "prompt": "p"}\n{"completion": "three"}\n')
    with file.open("a") as rows:
        rows.write('{"messages": [{"role": "user", "content": "a"}, {"content": "four"}]}')
    assert read_texts(str(file)) == ["one", "two", "three", "four"]
    for line, message in (("[1]", "line 1: has no text"), ("{", "line 1: not JSON")):
        file.write_text(line)
        with pytest.raises(DataError, match=message):
            read_texts(str(file))


def test_line_separators_of_unicode_stand_inside_texts(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    texts = ["one\u2028line", "a\x85b", "c\x0cd"]
    rows = [json.dumps(text, ensure_ascii=False) for text in texts]
    file.write_text("\r\n".join(rows), encoding="utf-8", newline="")
    assert read_texts(str(file)) == texts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": ["hi"]}', "has no text"),
        ('{"messages": [null]}', "has no text"),
        ('{"messages": [["role", "user"]]}', "has no text"),
        ('{"messages": [{"content": null}]}', "has no text"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_rows_without_a_text_are_refused_in_one_line(
    tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'"whole"\n{line}\n')
    with pytest.raises(DataError, match=f"line 2: .*{message}") as caught:
        read_texts(str(file))
    assert "\n" not in str(caught.value)


def test_a_folder_of_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder; name a JSONL file"):
        read_texts(str(tmp_path))


def test_texts_that_cannot_be_ranked_are_refused() -> None:
    def score(texts: Any) -> list[float]:
        return [float(text) if text else 0.0 for text in texts]

    with pytest.raises(DataError, match="canary 2 is empty"):
        compute_exposures(score, ["1", ""], ["2", "3"])
    with pytest.raises(DataError, match="reference 1 is empty"):
        compute_exposures(score, ["1"], ["", "3"])
    for loss in ("nan", "inf"):
        with pytest.raises(DataError, match=f"a loss is {loss}"):
            compute_exposures(score, [loss], ["2", "3"])
        with pytest.raises(DataError, match=f"a loss is {loss}"):
            compute_exposures(score, ["1"], ["2", loss])


def write_fresh_model(folder: Path) -> str:
    """Write a checkpoint of a small model that has learned nothing."""
    from trainrig.models.decoder import Decoder, DecoderConfig, initialise
    from trainrig.train.checkpoint import write_model

    sizes = DecoderConfig(
        layers=1, channels=16, heads=2, positions=32, vocabulary=make_encoder().vocabulary_size
    )
    model = Decoder(sizes)
    initialise(model, seed=1)
    return write_model(str(folder), sizes, make_encoder().text, model.state_dict())


def test_the_command_prints_both_measures(index: CorpusIndex, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(text) for text in PAGES["web"] + ["zz"]))
    copies = ["memorisation", "--generations", str(rows), "--index", index.folder, "--tokens", "3"]
    done = CliRunner().invoke(app, copies)
    assert "1 of 2 generations (50.0%) copy 3 tokens or more: web 1" in done.stdout
    references = tmp_path / "references.jsonl"
    references.write_text("\n".join(json.dumps(f"the cat {n}") for n in range(7)))
    exposure = [
        write_fresh_model(tmp_path / "fresh"),
        "--canaries",
        str(rows),
        "--references",
        str(references),
        "--json",
    ]
    done = CliRunner().invoke(app, [*copies, *exposure])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["copies"][0]["copies"] == 1
    assert found["exposure"]["references"] == 7
    assert all(0 <= canary["bits"] <= 3 for canary in found["exposure"]["canaries"])
    done = CliRunner().invoke(app, copies[:3])
    assert isinstance(done.exception, ConfigError) and "with --index DIR" in str(done.exception)
