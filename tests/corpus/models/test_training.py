import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from trainrig import config
from trainrig.corpus.models.scorers import Classifier, Perplexity, Scorer
from trainrig.corpus.models.training import (
    ClassifierTraining,
    NgramTraining,
    train_classifier,
    train_language_model,
)
from trainrig.errors import ConfigError, DataError, OutputTaken

GOOD = [f"a good text number {n} about the {n % 7} seas" for n in range(200)]
BAD = [f"click here {n} times to win {n % 9} prizes" for n in range(200)]


@pytest.fixture
def folder(tmp_path):
    lines = [json.dumps({"text": text}) for text in GOOD]
    (tmp_path / "good.jsonl").write_text("\n".join(lines) + "\n")
    pq.write_table(pa.table({"text": BAD}), tmp_path / "bad.parquet")
    return tmp_path


def classifier(folder, **changes):
    run = {
        "stage": "classifier",
        "positives": {"paths": (str(folder / "good.jsonl"),)},
        "negatives": {"paths": (str(folder / "bad.parquet"),)},
        "output": str(folder / "classifier"),
        "learning": {"buckets_log2": 12},
    }
    return config.build(ClassifierTraining, run | changes, "run.toml")


def ngrams(folder, **changes):
    run = {
        "stage": "ngrams",
        "texts": {"paths": (str(folder / "good.jsonl"),)},
        "output": str(folder / "ngrams"),
        "pieces": {"kind": "Words"},
        "order": 3,
    }
    return config.build(NgramTraining, run | changes, "run.toml")


def test_a_classifier_from_files_scores_as_its_report_says(folder):
    made = train_classifier(classifier(folder))
    assert made.counts["auc"] > 0.99
    report = json.loads((folder / "classifier/report.json").read_text())
    assert report["reliability"] and report["thresholds"]
    page = (folder / "classifier/report.html").read_text()
    assert "Calibration" in page and f"{report['measured_texts']:,} held out to measure" in page
    scorer = Classifier(path=str(folder / "classifier/classifier.safetensors"))
    good, bad = scorer.score(["a good text about seas", "click to win prizes"], ["en", "en"])
    assert good > 0.5 > bad


def test_ngrams_from_files_find_their_own_text_likely(folder):
    updates = []
    made = train_language_model(
        ngrams(folder, arpa=True), lambda *progress: updates.append(progress)
    )
    assert updates[-1] == (3, 3) and made.counts["texts"] == 200
    texts = ["a good text number", "win click a number"]
    languages = ["en", "en"]
    scorer = Perplexity(path=str(folder / "ngrams/ngrams.safetensors"))
    likely, unlikely = scorer.score(texts, languages)
    assert likely < unlikely
    arpa = Perplexity(path=str(folder / "ngrams/ngrams.arpa.gz"))
    assert arpa.score(texts[:1], ["en"])[0] == likely


@pytest.mark.parametrize(
    ("make", "train"), [(classifier, train_classifier), (ngrams, train_language_model)]
)
def test_a_finished_stage_does_nothing_again_and_takes_no_other_run(folder, make, train):
    first = train(make(folder))
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}
    assert train(make(folder)) == first
    assert times == {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}
    change = {"learning": {"seed": 5}} if make is classifier else {"order": 2}
    with pytest.raises(OutputTaken):
        train(make(folder, **change))


@pytest.mark.parametrize("role", ["positives", "negatives"])
def test_other_texts_in_the_same_files_are_another_input(folder, role):
    train_classifier(classifier(folder))
    if role == "positives":
        with (folder / "good.jsonl").open("a") as file:
            file.write('{"text": "one more"}\n')
    else:
        pq.write_table(pa.table({"text": [*BAD, "one more"]}), folder / "bad.parquet")
    with pytest.raises(OutputTaken, match=f"input `{role}` has other contents"):
        train_classifier(classifier(folder))


@pytest.mark.parametrize(
    ("make", "train"), [(classifier, train_classifier), (ngrams, train_language_model)]
)
def test_another_folder_gets_the_same_bytes(folder, make, train):
    one = train(make(folder))
    two = train(make(folder, output=str(folder / "other")))
    assert one.files == two.files


def test_invalid_settings_are_refused_and_leave_nothing(folder):
    with pytest.raises(DataError, match="no such file"):
        train_classifier(classifier(folder, positives={"paths": (str(folder / "none"),)}))
    (folder / "empty.jsonl").write_text('{"text": ""}\n')
    empty = {"paths": (str(folder / "empty.jsonl"),)}
    with pytest.raises(DataError, match="files contain no text"):
        train_classifier(classifier(folder, positives=empty))
    with pytest.raises(DataError, match="no words to count"):
        train_language_model(ngrams(folder, texts=empty))
    (folder / "page.html").write_text("<html><p>hello</p></html>")
    with pytest.raises(DataError, match="contains a page"):
        train_language_model(ngrams(folder, texts={"paths": (str(folder / "page.html"),)}))
    assert not (folder / "classifier").exists() and not (folder / "ngrams").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 7}, "less than or equal to 6"),
        ({"least_counts": (1, 1)}, "2 numbers; order 3 requires 3"),
        ({"least_counts": (1, 2, 1)}, "none may be below"),
        ({"pieces": {"kind": "Word"}}, "did you mean 'Words'"),
    ],
)
def test_a_run_file_that_cannot_work_is_refused(folder, change, message):
    with pytest.raises(ConfigError, match=message):
        ngrams(folder, **change)


def test_rare_n_grams_are_left_out(folder):
    whole = train_language_model(ngrams(folder))
    pruned = train_language_model(
        ngrams(folder, least_counts=(1, 1, 50), output=str(folder / "pruned"))
    )
    assert pruned.counts["n_grams"][:2] == whole.counts["n_grams"][:2]
    assert pruned.counts["n_grams"][2] < whole.counts["n_grams"][2]


def test_scorers_are_chosen_by_kind():
    adapter = TypeAdapter(Scorer)
    found = adapter.validate_python({"kind": "WordList", "path": {"en": "list.txt"}})
    assert found.column == "toxic_words"
    with pytest.raises(ValidationError):
        adapter.validate_python({"kind": "Classifier", "path": "a", "column": "Not A Name"})
