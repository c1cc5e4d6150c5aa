"""Examples of real benchmarks injected into real pages: all are found, and nothing else."""

import random
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from support import plain_decontamination as plain

from trainrig.corpus.decontaminate import (
    GPT3,
    Benchmark,
    Decontamination,
    Index,
    Llama2,
    Llama3,
    PaLM,
    decide,
    match,
    merge,
)
from trainrig.corpus.decontaminate.benchmark_index import read_examples
from trainrig.corpus.removed_spans import remove_spans

pytestmark = pytest.mark.data

FIELDS = {"gsm8k_test": "question", "boolq": "query"}
INJECTED = 40  # examples of each benchmark


def disguise(text: str, number: int) -> str:
    """Return the same words, formatted as another page might have them."""
    if number % 4 == 1:
        return text.upper()
    if number % 4 == 2:
        return text.replace(" ", "\n \u00a0").replace("'", "’")
    if number % 4 == 3:
        return "“" + text.replace(", ", " — ").replace(" ", "  ") + "”"
    return text


@pytest.fixture(scope="module")
def pages(test_data: Path) -> list[str]:
    found = []
    with (test_data / "crawl/0004.warc.gz").open("rb") as stream:
        for record in ArchiveIterator(stream, record_types=WarcRecordType.response):
            page = record.reader.read().decode("utf-8", "replace")
            found.append(extract_plain_text(page, main_content=True))
            if len(found) == 200:
                return found
    return found


@pytest.fixture(scope="module")
def benchmarks(test_data: Path) -> tuple[Benchmark, ...]:
    sets = test_data / "sets"
    return tuple(
        Benchmark(name=name, path=str(sets / f"{name}.jsonl"), fields=(field,))
        for name, field in FIELDS.items()
    )


@pytest.mark.parametrize(
    "style", [GPT3(), PaLM(), Llama3(), Llama2()], ids=lambda style: style.kind
)
def test_every_injected_example_is_found_and_nothing_else(pages, benchmarks, style, tmp_path):
    index = Index.of(Decontamination(benchmarks=benchmarks, style=style))
    texts = {benchmark.name: read_examples(benchmark).texts for benchmark in benchmarks}
    randomly = random.Random(5)
    documents = list(pages)
    injected = []
    for name in FIELDS:
        for line in randomly.sample(range(1, len(texts[name]) + 1), INJECTED):
            number = len(injected)
            page = pages[number]
            middle = randomly.randrange(len(page) + 1)
            example = disguise(texts[name][line - 1][0], number)
            documents[number] = f"{page[:middle]} {example} {page[middle:]}"
            injected.append((number, name))
    matches = match(index, documents)
    matches.save(str(tmp_path / "m"))
    decision = decide(index, matches, merge(index, [str(tmp_path / "m")]))
    found = {(touch.document, touch.benchmark) for touch in decision.touches}
    assert set(injected) <= found
    assert len(found) <= len(injected) + 3
    for touch in decision.touches:
        own = " ".join(plain.letters(texts[touch.benchmark][touch.line - 1][0]))
        shared = " ".join(plain.letters(documents[touch.document][touch.start : touch.end]))
        assert shared in own or isinstance(style, Llama2)
    # The remaining texts contain none of the examples.
    left = [
        "" if n in decision.fallen else remove_spans(text, decision.cuts.get(n, ()))[0]
        for n, text in enumerate(documents)
    ]
    again = match(index, left)
    again.save(str(tmp_path / "m"))
    assert decide(index, again, merge(index, [str(tmp_path / "m")])).touches == ()
