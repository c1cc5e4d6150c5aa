"""Telephone numbers found by trainrig's patterns and by phonenumbers, in the same pages.

`pip install phonenumbers` first; the test is skipped without it. The finds of one side only have to
be read: no data set marks telephone numbers in web pages.
"""

import time
from collections.abc import Callable

import pytest
from support.side_by_side import print_result

from trainrig.corpus.rewrite.pii_mask import PII, mask

pytestmark = [pytest.mark.bench, pytest.mark.data]
ROUNDS = 3
Spans = list[tuple[int, int]]


def find_ours(text: str) -> Spans:
    spans = mask(text, PII(kinds=("PHONE",)))[1]
    return [(span.start, span.start + span.length) for span in spans]


def count_alone(finds: list[Spans], others: list[Spans]) -> int:
    """Return the number of finds that overlap none of `others` in the same page."""
    return sum(
        not any(start < end_there and start_there < end for start_there, end_there in there)
        for here, there in zip(finds, others, strict=True)
        for start, end in here
    )


def test_telephone_numbers_compared_with_phonenumbers(texts: list[str]) -> None:
    phonenumbers = pytest.importorskip("phonenumbers", reason="phonenumbers is not installed")

    def match(region: str | None) -> Callable[[str], Spans]:
        matcher = phonenumbers.PhoneNumberMatcher
        return lambda text: [(found.start, found.end) for found in matcher(text, region)]

    finders = {"trainrig": find_ours, "no region": match(None), "region US": match("US")}
    seconds: dict[str, list[float]] = {name: [] for name in finders}
    finds: dict[str, list[Spans]] = {}
    for _ in range(ROUNDS):
        for name, find in finders.items():
            began = time.process_time()
            finds[name] = [find(page) for page in texts]
            seconds[name].append(time.process_time() - began)
    ours = finds["trainrig"]
    results = {
        name: {
            "finds": sum(map(len, finds[name])),
            "of which trainrig finds none": count_alone(finds[name], ours),
            "trainrig's that it lacks": count_alone(ours, finds[name]),
            "times trainrig's time": sorted(
                round(there / here, 1)
                for there, here in zip(seconds[name], seconds["trainrig"], strict=True)
            ),
        }
        for name in finders
    }
    print_result(benchmark="telephone numbers", pages=len(texts), **results)
    assert results["region US"]["trainrig's that it lacks"] > 0
