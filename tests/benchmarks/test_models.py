"""Quality models compared with fastText and KenLM: accuracy, and cost in CPU seconds.

Peers that are not installed are skipped: `pip install fasttext-community kenlm`, and KenLM's lmplz
on the PATH.
"""

import gzip
import hashlib
import json
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from fastwarc.warc import ArchiveIterator
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from support.side_by_side import print_result

from trainrig.corpus.models.classifier import Learning, compute_area, compute_reliability
from trainrig.corpus.models.classifier import train as train_classifier
from trainrig.corpus.models.language_model import LanguageModel, train
from trainrig.corpus.models.subwords import Subwords, Words, make_tokenizer

pytestmark = [pytest.mark.bench, pytest.mark.data]
Made = TypeVar("Made")
Truths = NDArray[np.bool_]
Scores = NDArray[np.float64]


def measure(make: Callable[[], Made]) -> tuple[Made, float]:
    began = time.process_time()
    made = make()
    return made, time.process_time() - began


def megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


@pytest.fixture(scope="module")
def pages(request: pytest.FixtureRequest) -> list[str]:
    """Return the distinct main texts of the crawl."""
    folder = request.getfixturevalue("test_data") / "crawl"
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.warc.gz")):
        with path.open("rb") as stream:
            for record in ArchiveIterator(stream):
                html = record.reader.read().decode("utf-8", "ignore")
                text = extract_plain_text(html, main_content=True)
                if len(text) > 200:
                    found[text.encode("utf-8", "ignore").decode()] = None
    return list(found)


def rows(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_n_gram_models_compared_with_kenlm(tmp_path, pages):
    kenlm = pytest.importorskip("kenlm", reason="the package kenlm is not installed")
    if not shutil.which("lmplz"):
        pytest.skip("KenLM's lmplz is not on the PATH")
    learnt = pages[::5] + pages[1::5] + pages[2::5] + pages[3::5]
    asked = pages[4::5]
    subwords = make_tokenizer(Subwords(vocabulary=32_768), iter(learnt))
    pieces = train(learnt, subwords, 5, [1] * 5)
    cut = [cut_into_pieces(pieces, text) for text in learnt]
    text = tmp_path / "pieces.txt"
    text.write_text("\n".join(cut) + "\n")
    words = make_tokenizer(Words(vocabulary=100_000, normalise=False), iter(cut))
    train(cut[:10], words, 5, [1] * 5)  # compiles the kernels
    ours, ours_seconds = measure(lambda: train(cut, words, 5, [1] * 5))
    arpa = tmp_path / "theirs.arpa"
    command = ["lmplz", "-o", "5", "-S", "1G", "-T", str(tmp_path), "--text", str(text)]
    before = children()
    subprocess.run([*command, "--arpa", str(arpa)], check=True, capture_output=True)
    theirs_seconds = children() - before
    theirs = kenlm.Model(str(arpa))
    asked_cut = [cut_into_pieces(pieces, asked_text) for asked_text in asked]
    found, found_seconds = measure(lambda: ours.compute_perplexity(asked_cut))
    expected, expected_seconds = measure(
        lambda: [perplexity(theirs, cut_text) for cut_text in asked_cut]
    )
    _, whole_seconds = measure(lambda: pieces.compute_perplexity(asked))
    gap = np.abs(found / np.array(expected) - 1).max()
    print_result(
        benchmark="n-grams, order 5",
        learnt_megabytes=round(megabytes(learnt), 2),
        words=ours.facts["pieces"],
        train_cpu_seconds=round(ours_seconds, 2),
        lmplz_cpu_seconds=round(theirs_seconds, 2),
        score_megabytes_a_second=round(megabytes(asked_cut) / found_seconds, 2),
        kenlm_score_megabytes_a_second=round(megabytes(asked_cut) / expected_seconds, 2),
        from_text_megabytes_a_second=round(megabytes(asked) / whole_seconds, 2),
        largest_relative_gap_of_a_perplexity=float(f"{gap:.2g}"),
    )
    assert gap < 1e-4


def cut_into_pieces(model: LanguageModel, text: str) -> str:
    """Return the text cut into subwords, separated by spaces; a line is a sentence."""
    found = []
    stream, _ = model.cutter.encode_sentences([text], model.word_of)
    for number in stream.tolist():
        if number == 1:
            found.append([])
        elif number > 2:
            found[-1].append(model.vocabulary[number])
    return "\n".join(" ".join(words) for words in found if words)


def perplexity(model: Any, text: str) -> float:
    lines = [line for line in text.split("\n") if line]
    length = sum(len(line.split()) + 1 for line in lines)
    return 10 ** (-sum(model.score(line) for line in lines) / length) if lines else np.nan


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_classifiers_compared_with_fasttext(tmp_path, test_data, pages):
    fasttext = pytest.importorskip("fasttext", reason="the package fasttext is not installed")
    if not hasattr(fasttext, "train_supervised"):  # fasttext-predict has the same module name
        pytest.skip("the fasttext that is installed does not train")
    for name, (wanted, others) in make_tasks(test_data / "sets", pages).items():
        learnt = [[text for text in texts if not is_measured(text)] for texts in (wanted, others)]
        asked = [text for group in (wanted, others) for text in group if is_measured(text)]
        count = sum(is_measured(text) for text in wanted)
        truths = np.repeat([True, False], [count, len(asked) - count])
        result = {
            "benchmark": f"classifier, {name}",
            "texts": len(learnt[0]) + len(learnt[1]),
            "measured": len(asked),
            "ours": by_ours(learnt, asked, truths),
            "fasttext": by_fasttext(learnt, asked, truths, tmp_path / "lines", 100, 0.1),
            "fasttext_16_0.5": by_fasttext(learnt, asked, truths, tmp_path / "lines", 16, 0.5),
        }
        print(json.dumps(result))
        assert (
            result["ours"]["auc"] > result["fasttext"]["auc"] - 0.03
        )  # twice the standard error of 900 texts


def by_ours(learnt: list[list[str]], asked: list[str], truths: Truths) -> dict[str, float]:
    # compiles the kernels
    train_classifier(learnt[0][:200], learnt[1][:200], Learning(buckets_log2=10))
    model, seconds = measure(lambda: train_classifier(*learnt, Learning()))  # type: ignore[call-arg]
    scores, asked_seconds = measure(lambda: model.score(asked, ["en"] * len(asked)))
    return summarise_curve(scores, truths, seconds, megabytes(asked) / asked_seconds)


def by_fasttext(
    learnt: list[list[str]], asked: list[str], truths: Truths, lines: Path, dim: int, rate: float
) -> dict[str, float]:
    """Return fastText's figures.

    Its defaults are 100 and 0.1. fastText reads lines and distinguishes case, so the lines are
    lower-cased.
    """
    import fasttext

    folded = [[" ".join(text.lower().split()) for text in group] for group in (*learnt, asked)]
    labelled = [
        f"__label__{label} {text}"
        for label, texts in zip(("yes", "no"), folded[:2], strict=True)
        for text in texts
    ]
    lines.write_text("\n".join(random.Random(0).sample(labelled, len(labelled))))
    settings = {"lr": rate, "dim": dim, "wordNgrams": 2, "thread": 1, "verbose": 0}
    model, seconds = measure(lambda: fasttext.train_supervised(str(lines), **settings))
    (labels, chances), asked_seconds = measure(lambda: model.predict(folded[2], k=2))
    scores = [
        row[list(names).index("__label__yes")] for names, row in zip(labels, chances, strict=True)
    ]
    return summarise_curve(np.array(scores), truths, seconds, megabytes(asked) / asked_seconds)


def summarise_curve(
    scores: Scores, truths: Truths, seconds: float, speed: float
) -> dict[str, float]:
    kept = scores >= 0.5
    curve = compute_reliability(np.minimum(scores, 1.0), truths)
    gap = sum(bucket.texts * abs(bucket.predicted - bucket.observed) for bucket in curve) / len(
        truths
    )
    return {
        "auc": round(compute_area(scores, truths), 4),
        "precision": round(float(truths[kept].mean()), 4),
        "recall": round(float(kept[truths].mean()), 4),
        "calibration_gap": round(gap, 4),
        "train_cpu_seconds": round(seconds, 2),
        "score_megabytes_a_second": round(speed, 1),
    }


def is_measured(text: str) -> bool:
    """Return whether a text belongs to the fifth on which neither model is trained."""
    return hashlib.sha256(text.encode()).digest()[0] < 51


def make_tasks(sets: Path, pages: list[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return wanted and unwanted texts for each task."""
    draw = random.Random(0)
    passages = list(
        dict.fromkeys(row["query"].split("\n")[0] for row in rows(sets / "boolq.jsonl"))
    )
    passages = [passage.removeprefix("Passage: ") for passage in passages]
    pieces = []
    for page, passage in zip(pages, passages, strict=False):
        begin = draw.randrange(max(1, len(page) - len(passage)))
        pieces.append(page[begin : begin + len(passage)])
    talks = rows(sets / "hh_harmless_base_test.jsonl.gz")
    chosen = [row["chosen"].rpartition("Assistant:")[2] for row in talks]
    rejected = [row["rejected"].rpartition("Assistant:")[2] for row in talks]
    asked = [row["chosen"].split("Assistant:")[0].replace("Human:", "") for row in talks]
    return {
        "encyclopedia against crawl": (passages, pieces),
        "questions against answers": (asked, chosen),
        "harmless against harmful answers": (chosen, rejected),
    }
