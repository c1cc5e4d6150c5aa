import os
import signal
import time

import pytest

from trainrig.corpus.extract import Extracted, MainContent, NotExtracted, PlainText, extract
from trainrig.corpus.extract.guard import Guard, Victim
from trainrig.corpus.read import Page

WORKS = Extracted("works", "", "")


def page(body: bytes) -> Page:
    return Page(f"http://example.org/{body[:9].decode()}", "text/html", body, "", None)


def deadly(page: Page, settings: PlainText) -> Extracted | NotExtracted:
    """An extractor that does to its process what the page says."""
    if page.body == b"fault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif page.body == b"loop":
        while True:
            pass
    elif page.body == b"memory":
        return Extracted(str(len(bytearray(2**40))), "", "")
    elif page.body == b"leak":
        kept = []
        while True:
            kept.append(bytearray(2**20))
    elif page.body == b"exit":
        os._exit(3)
    elif page.body == b"raise":
        raise ValueError("a bug of a library")
    elif page.body == b"print":
        os.write(1, b"noise")
    return WORKS


def guard(*victims: Victim, cpu_seconds: float = 60.0) -> Guard:
    return Guard(PlainText(), victims, cpu_seconds=cpu_seconds, memory=2**28, by=deadly)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"fault", "crashed"),
        (b"exit", "crashed"),
        (b"loop", "cpu_time"),
        (b"memory", "memory"),
        (b"leak", "memory"),
    ],
)
def test_a_page_that_ends_its_process_costs_that_page_alone(body: bytes, cause: str):
    # Touching the memory of a leak takes CPU time too, on some machines more than a loop is given.
    with guard(cpu_seconds=0.5 if cause == "cpu_time" else 60.0) as under:
        outcomes = list(under.extract([page(b"a"), page(b"b"), page(body), page(b"c")]))
        assert outcomes == [WORKS, WORKS, NotExtracted(cause), WORKS]
        assert [(v.url, v.cause) for v in under.victims] == [(page(body).url, cause)]


def test_victims_of_an_earlier_try_are_not_tried_again():
    pages = [page(b"a"), page(b"loop"), page(b"fault"), page(b"b")]
    with guard(cpu_seconds=0.5) as first:
        outcomes = list(first.extract(pages))
    began = time.monotonic()
    with Guard(PlainText(), first.victims, cpu_seconds=3600, by=deadly) as second:
        assert list(second.extract(pages)) == outcomes
    assert second.victims == first.victims
    assert time.monotonic() - began < 60


def test_another_page_at_a_victims_address_is_tried():
    fault = page(b"fault")
    with guard(Victim(fault.url, "0" * 64, "crashed")) as under:
        assert list(under.extract([Page(fault.url, "", b"x", "", None)])) == [WORKS]


def test_what_a_library_raises_costs_its_page_and_not_the_process():
    with guard() as under:
        assert list(under.extract([page(b"raise"), page(b"a")])) == [NotExtracted("crashed"), WORKS]
        assert under.victims == []


def test_what_a_library_prints_is_no_answer():
    with guard() as under:
        assert list(under.extract([page(b"print"), page(b"a")])) == [WORKS, WORKS]


def test_a_kill_from_outside_makes_no_victim():
    with guard() as under:
        assert list(under.extract([page(b"a")])) == [WORKS]
        assert under._child is not None
        under._child._process.kill()
        assert list(under.extract([page(b"b")])) == [WORKS]
        assert under.victims == []


def test_outcomes_are_those_without_a_guard_whatever_the_batches():
    bodies = [b"<p>page %d " % number + b"word " * (number * 997) for number in range(150)]
    pages = [page(body) for body in bodies]
    settings = MainContent(max_bytes=500_000)
    with Guard(settings) as under:
        assert list(under.extract(pages)) == [extract(each, settings) for each in pages]
        assert list(under.extract([])) == []


def test_a_page_of_a_hundred_megabytes_passes_through_a_guard():
    with Guard(MainContent()) as under:
        large, small = page(b"x" * 100_000_000), page(b"<p>small")
        assert list(under.extract([large, small])) == [
            NotExtracted("too_large"),
            Extracted("small", "", ""),
        ]


def test_a_page_whose_tree_outgrows_all_memory_is_given_up():
    # Each unclosed <b> is opened again in each paragraph after it: 10^8 elements from 300 kB.
    body = b"".join(b"<p><b id=%d>" % number for number in range(20_000))
    with Guard(MainContent(), memory=2**30) as under:
        outcomes = list(under.extract([page(body), page(b"<p>small")]))
    assert outcomes[1] == Extracted("small", "", "")
    # A library that does not check its allocations may fault before memory is full.
    assert outcomes[0] in (NotExtracted("memory"), NotExtracted("crashed"))


def test_the_child_goes_when_the_guard_does():
    with guard() as under:
        list(under.extract([page(b"a")]))
        assert under._child is not None
        child = under._child._process
    assert child.returncode is not None


def test_a_child_that_cannot_start_is_no_pages_fault(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with guard() as under, pytest.raises(RuntimeError, match="ended with 1"):
        list(under.extract([page(b"a")]))
    assert under.victims == []
