"""The chain of heuristic filters compared with datatrove's on unseen documents, and languages.

Texts are of data/crawl, extracted by resiliparse. datatrove runs in another interpreter, named by
TRAINRIG_PEERS. Figures are CPU seconds of one process each. No text is kept.
"""

import json
import os
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree
from support.side_by_side import print_result

from trainrig.corpus.filters.filters import (
    C4,
    Filter,
    FineWeb,
    GopherQuality,
    GopherRepetition,
    Preset,
    find_first_broken_rule,
)
from trainrig.corpus.models.language_id import identify_all, list_language_codes
from trainrig.corpus.signals.text_arrays import build_batch
from trainrig.corpus.signals.text_signals import measure
from trainrig_contrib.datatrove_signals.datatrove_columns import measure_datatrove

pytestmark = [pytest.mark.bench, pytest.mark.data]

BATCH = 100  # documents
# parts of the measured documents, each measured once, as a document seen before is not fresh
PARTS = 4
PEER = Path(__file__).with_name("datatrove_verdicts.py")

Columns = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def texts(test_data: Path) -> list[str]:
    """Return all pages with any text, in an order that mixes the sites."""
    found = []
    for archive in sorted((test_data / "crawl").glob("*.warc.gz")):
        with archive.open("rb") as stream:
            records: Any = ArchiveIterator(stream, record_types=WarcRecordType.response)
            for record in records:
                body = record.reader.read()
                tree = HTMLTree.parse_from_bytes(body, detect_encoding(body))
                found.append(extract_plain_text(tree, main_content=True))
    random.Random(0).shuffle(found)
    return [text for text in found if text.strip()]


@pytest.fixture(scope="module")
def measured(texts: list[str]) -> list[str]:
    """Return documents of about 5 kB to measure; the others serve as documents seen before."""
    long = [text for text in texts if 2_000 <= len(text) <= 12_000]
    return long[: len(long) // 2]


def by_papers(texts: Sequence[str]) -> Columns:
    batch = build_batch(texts)
    codes, scores = identify_all(texts, batch)
    columns = measure(texts, codes, batch)
    return columns | {"language": np.array(codes), "language_score": scores}


def by_datatrove(texts: Sequence[str]) -> Columns:
    codes, scores = identify_all(texts)
    columns = measure_datatrove(texts)
    return columns | {"language": np.array(codes), "language_score": scores}


def measure_pace(
    chain: Callable[[Sequence[str]], Columns],
    presets: Sequence[str],
    texts: list[str],
    fresh: list[str],
) -> list[float]:
    """Return the documents per second of each part of `fresh`, after all other texts.

    The pace is of measuring by `chain` and of applying `presets`.
    """
    filters = [
        quality_filter for name in presets for quality_filter in Preset(name=name).build_filters()
    ]
    unseen = set(fresh)
    seen = [text for text in texts if text not in unseen]
    for first in range(0, len(seen), BATCH):
        chain(seen[first : first + BATCH])
    rates = []
    for part in range(PARTS):
        some = fresh[part::PARTS]
        began = time.process_time()
        for first in range(0, len(some), BATCH):
            find_first_broken_rule(filters, chain(some[first : first + BATCH]))
        rates.append(len(some) / (time.process_time() - began))
    return rates


def summarise(rates: list[float], by: float) -> list[float]:
    """Return the minimum, the median and the maximum of `rates`, in units of `by`."""
    return [round(rate / by, 1) for rate in (min(rates), statistics.median(rates), max(rates))]


def run_datatrove(texts: list[str], folder: Path) -> dict[str, Any]:
    """Return datatrove's verdicts on `texts` and its cost."""
    python = os.environ.get("TRAINRIG_PEERS")
    if not python:
        pytest.skip("TRAINRIG_PEERS names no interpreter with datatrove[processing] and spacy")
    given = folder / "texts.jsonl"
    verdicts_file = folder / "verdicts.json"
    given.write_text("\n".join(map(json.dumps, texts)))
    subprocess.run(
        [python, str(PEER), str(given), str(verdicts_file)], check=True, capture_output=True
    )
    found: dict[str, Any] = json.loads(verdicts_file.read_text())
    return found


def test_the_chain_keeps_its_pace(texts: list[str], measured: list[str], tmp_path: Path):
    pytest.importorskip("spacy")
    papers = ("fineweb", "gopher", "c4-tfds", "plain")
    own = measure_pace(by_papers, papers, texts, measured)
    same = measure_pace(by_datatrove, ("fineweb-datatrove",), texts, measured)
    some = measured[:200]
    theirs = len(some) / run_datatrove(some, tmp_path)["cpu_seconds"]
    ours = {"own_words": own, "datatrove_words": same}
    print_result(
        benchmark="heuristics",
        documents=len(measured),
        mean_bytes=round(statistics.mean(len(text.encode()) for text in measured)),
        documents_per_cpu_second={"datatrove": round(theirs, 1)}
        | {name: summarise(rates, 1) for name, rates in ours.items()},
        over_datatrove={name: summarise(rates, theirs) for name, rates in ours.items()},
        load=os.getloadavg()[0],
    )
    assert statistics.median(own) / theirs >= 80
    assert statistics.median(same) / theirs >= 45
    # On a machine that is busy with other work, a CPU second does less.
    if os.getloadavg()[0] <= (os.cpu_count() or 1):
        assert statistics.median(own) >= 4_000
        assert statistics.median(same) >= 1_500


def test_verdicts_are_datatroves(texts: list[str], tmp_path: Path):
    pytest.importorskip("spacy")
    some = texts[:1_000]
    verdicts = run_datatrove(some, tmp_path)["verdicts"]
    columns = measure_datatrove(some)
    by: Any = {"words": "datatrove"}
    lines: Any = {"max_duplicate_line_characters": 0.01}
    rules: dict[str, Filter] = {
        "repetition": GopherRepetition(**by),
        "quality": GopherQuality(**by),
        "c4": C4(min_sentences=5, **by),
        "c4_any_end": C4(min_sentences=5, terminal_punctuation=False, **by),
        "fineweb": FineWeb(**lines, **by),
        "fineweb_after_c4": FineWeb(after_c4=True, **lines, **by),
    }
    equal = {}
    for name, rule in rules.items():
        ours = [reason is None for reason in find_first_broken_rule((rule,), columns)]
        # None: datatrove was not asked, as an earlier filter had dropped the text.
        pairs = [(a, b) for a, b in zip(ours, verdicts[name], strict=True) if b is not None]
        equal[name] = sum(a == b for a, b in pairs) / len(pairs)
    print(json.dumps({"benchmark": "verdicts", "documents": len(some), "equal": equal}))
    assert min(equal.values()) >= 0.999


def test_languages_of_sentences(test_data: Path):
    """Record the accuracy: of the set's thousand languages, the model can name a seventh."""
    path = test_data / "sets" / "bigbench_language_identification.jsonl"
    questions = [json.loads(line) for line in path.read_text().splitlines()]
    names = json.loads(Path(__file__).with_name("language_names.json").read_text())
    assert set(names.values()) <= set(list_language_codes())
    sentences = []
    answers = []
    choices = []
    for question in questions:
        listed = re.findall(r"^[A-K]\. (.*)$", question["query"], re.MULTILINE)
        sentence = re.search(r"^Sentence:(.*?)^A\. ", question["query"], re.MULTILINE | re.DOTALL)
        assert sentence
        sentences.append(sentence[1])
        answers.append(names.get(listed[question["gold"]]))
        choices.append([names.get(name) for name in listed])
    codes, scores = identify_all(sentences)
    known = [number for number, answer in enumerate(answers) if answer]
    right = sum(codes[number] == answers[number] for number in known) / len(known)
    sure = [number for number in known if scores[number] >= 0.65]
    right_if_sure = sum(codes[number] == answers[number] for number in sure) / len(sure)
    chosen = sum(
        code in listed and code == answer
        for code, listed, answer in zip(codes, choices, answers, strict=True)
    )
    print_result(
        benchmark="language identification",
        sentences=len(sentences),
        in_languages_of_the_model=len(known),
        right_of_those=round(right, 4),
        sure_of_those=len(sure),
        right_where_sure=round(right_if_sure, 4),
        right_of_all=round(chosen / len(sentences), 4),
    )
    assert right >= 0.65
