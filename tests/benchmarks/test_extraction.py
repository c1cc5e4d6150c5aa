"""Speed and quality of extraction, compared with trafilatura, on real pages of news and blogs.

Speed is from HTML bytes in memory to text, in CPU seconds of one process. Quality is judged by
strings that a text must and must not contain, on the half of the hosts that nothing was tuned on.
"""

import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import extraction_pages as real

from trainrig.corpus.extract import (
    Extracted,
    MainContent,
    NotExtracted,
    Resiliparse,
    Trafilatura,
    extract,
    extractors,
)
from trainrig.corpus.extract.guard import Guard
from trainrig.corpus.read import RawPage

pytestmark = [pytest.mark.bench, pytest.mark.data, pytest.mark.timeout(3600)]
trafilatura = pytest.importorskip("trafilatura", reason="the peer")

ROUNDS = 3
EVERY = 3  # one page in three is used where speed is measured


@pytest.fixture(scope="module")
def pages(test_data: Path) -> list[Any]:
    return [
        page
        for page in real.labelled_pages(test_data)
        if page.source in (real.STRINGS, real.NO_STRINGS)
    ]


def extract_text(settings: MainContent | Resiliparse, page: RawPage) -> str:
    found = extract(page, settings)
    return found.text if isinstance(found, Extracted) else ""


def extract_by_trafilatura(page: RawPage, *, precision: bool) -> str:
    found = trafilatura.extract(page.body, include_comments=False, favor_precision=precision)
    return found or ""


METHODS: dict[str, Callable[[RawPage], str]] = {
    "resiliparse": functools.partial(extract_text, Resiliparse()),
    "fast": functools.partial(extract_text, MainContent(quality="fast")),
    "balanced": functools.partial(extract_text, MainContent()),
    "precise": functools.partial(extract_text, MainContent(quality="precise")),
    "trafilatura": functools.partial(extract_by_trafilatura, precision=False),
    "trafilatura, precision": functools.partial(extract_by_trafilatura, precision=True),
}


def measure_cpu_seconds(method: Callable[[RawPage], str], pages: Sequence[Any]) -> float:
    began = time.process_time()
    for page in pages:
        method(page.page)
    return time.process_time() - began


def test_quality_compared_with_trafilatura(pages: list[Any]):
    reported = [page for page in pages if page.half == "reported"]
    hosts = [page.host for page in reported]
    counts = {
        name: [real.counts(page, method(page.page)) for page in reported]
        for name, method in METHODS.items()
    }
    theirs = counts["trafilatura"]
    leads = {name: real.f1(found) - real.f1(theirs) for name, found in counts.items()}
    errors = {name: real.error_of_lead(found, theirs, hosts) for name, found in counts.items()}
    for name, found in counts.items():
        line = {
            "benchmark": f"extraction, quality: {name}",
            "precision": round(real.precision(found), 4),
            "recall": round(real.recall(found), 4),
            "f1": round(real.f1(found), 4),
            "lead": round(leads[name], 4),
            "error_of_lead": round(errors[name], 4),
            "pages": len(reported),
        }
        print(json.dumps(line))
    assert leads["balanced"] >= -0.02
    # No worse, within the error of this half: it is .0014 behind (docs/evidence/extraction.md).
    assert leads["precise"] >= -errors["precise"]


def test_speed_compared_with_trafilatura(pages: list[Any]):
    some = pages[::EVERY]
    for method in METHODS.values():  # compiles, and loads the trees
        method(some[0].page)
    # Alternate, so that the machine's load affects all alike.
    seconds = [
        {name: measure_cpu_seconds(METHODS[name], some) for name in METHODS} for _ in range(ROUNDS)
    ]
    for name in METHODS:
        speeds = sorted(len(some) / measured[name] for measured in seconds)
        ratios = sorted(measured["trafilatura"] / measured[name] for measured in seconds)
        line = {
            "benchmark": f"extraction, speed: {name}",
            "pages_per_cpu_second": round(speeds[ROUNDS // 2]),
            "from_to": [round(speeds[0]), round(speeds[-1])],
            "times_trafilatura": round(ratios[ROUNDS // 2], 2),
            "times_from_to": [round(ratios[0], 2), round(ratios[-1], 2)],
            "pages": len(some),
        }
        print(json.dumps(line))
    # On a busy machine everything takes more CPU seconds, so only the ratio counts.
    assert min(measured["trafilatura"] / measured["balanced"] for measured in seconds) >= 4


def test_how_often_precise_uses_trafilatura(pages: list[Any], monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    answer = extractors.extract_with_trafilatura

    def counted(html: str, settings: Trafilatura) -> str:
        asked.append(settings.favour)
        return answer(html, settings)

    monkeypatch.setattr(extractors, "extract_with_trafilatura", counted)
    some = pages[::EVERY]
    for page in some:
        extract_text(MainContent(quality="precise"), page.page)
    line = {
        "benchmark": "extraction: trafilatura asked by precise, times a page",
        "for_precision": round(asked.count("precision") / len(some), 2),
        "again_for_balance": round(asked.count("balance") / len(some), 2),
        "pages": len(some),
    }
    print(json.dumps(line))
    assert set(asked) <= {"precision", "balance"}
    # The second question is asked only for pages for which the first was asked.
    assert asked.count("balance") < asked.count("precision") <= len(some)


def test_cost_of_a_guard(pages: list[Any]):
    some = [page.page for page in pages]
    settings = MainContent()
    with Guard(settings) as guard:

        def guarded() -> list[Extracted | NotExtracted]:
            return list(guard.extract(some))

        def bare() -> list[Extracted | NotExtracted]:
            return [extract(html, settings) for html in some]

        def cpu_seconds_of_both() -> float:
            assert guard._child is not None
            child = psutil.Process(guard._child._process.pid).cpu_times()
            return time.process_time() + child.user + child.system

        assert guarded() == bare()
        ratios = []
        for _ in range(5):
            began = cpu_seconds_of_both()
            guarded()
            middle = cpu_seconds_of_both()
            bare()
            ratios.append((middle - began) / (cpu_seconds_of_both() - middle))
    ratios.sort()
    line = {
        "benchmark": "extraction: guarded over bare, CPU seconds of both processes",
        "ratio": round(ratios[2], 3),
        "from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
        "pages": len(some),
    }
    print(json.dumps(line))
    assert ratios[2] < 1.1
