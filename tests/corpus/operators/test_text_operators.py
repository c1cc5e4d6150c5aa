import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig import config
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.models.language_id import identify_all
from trainrig.corpus.operators.text_operators import Language
from trainrig.errors import ConfigError

ENGLISH = "The mill stands by the river, and its wheel has turned there for two hundred years."
FRENCH = "Le moulin se dresse au bord de la rivière, et sa roue y tourne depuis deux cents ans."
TEXTS = [ENGLISH, "buenos días", f"{ENGLISH}\n{FRENCH}\n{ENGLISH}", "12.5", FRENCH]


@pytest.mark.parametrize("model", ["blend", "lid.176"])
def test_languages_are_those_of_the_named_model(model: Any):
    rows = Language(model=model)(pa.table({"text": TEXTS}))
    codes, scores = identify_all(TEXTS, model=model)
    assert rows["language"].to_pylist() == codes
    assert rows["language_score"].to_pylist() == scores.tolist()
    assert rows.column_names == ["text", "language", "language_score"]


def test_the_share_of_paragraphs_is_a_column_if_it_is_set():
    rows = Language(paragraphs=True)(pa.table({"text": TEXTS}))
    shares = rows["language_share"].to_pylist()
    assert [share == 1 for share in shares] == [True, True, False, True, True]
    assert shares[2] == pytest.approx(2 / 3, abs=0.01)


def build_run(folder: Path, **language: object) -> Curation:
    pages = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (folder / "pages.jsonl").write_text(pages)
    filters = [{"kind": "Score", "signal": "language_share", "least": 0.9}]
    source = {"name": "web", "paths": [str(folder / "pages.jsonl")], "filters": filters}
    run = {"stage": "curate", "output": str(folder / "out"), "workers": 0, "sources": [source]}
    return config.build(Curation, run | {"language": language}, "r")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["blend", "lid.176"])
def test_a_curation_identifies_languages_as_its_run_file_says(tmp_path: Path, model: str):
    run = build_run(tmp_path, model=model, paragraphs=True)
    curate(run)
    rows = pa.concat_tables(
        pq.read_table(path)
        for folder in ("kept", "dropped")
        for path in sorted((tmp_path / "out" / folder).glob("*.parquet"))
    ).to_pylist()
    by_text = {row["text"]: row for row in rows}
    expected = Language(model=model, paragraphs=True)(pa.table({"text": TEXTS})).to_pylist()
    for row in expected:
        found = by_text[row["text"]]
        assert {name: found[name] for name in row} == row
    assert by_text[TEXTS[2]]["dropped_by"] == "Score.language_share_low"


def test_a_rule_on_the_share_needs_the_setting(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"set paragraphs = true in \[language\]"):
        build_run(tmp_path)
