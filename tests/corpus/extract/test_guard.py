import os
import signal
import time

import pytest

from trainrig.corpus.extract import (
    Extracted,
    MainContent,
    NotExtracted,
    PlainText,
    Resiliparse,
    extract,
)
from trainrig.corpus.extract.guard import FailedPage, Guard
from trainrig.corpus.read import RawPage

WORKS = Extracted("works", "", "")


def page(body: bytes) -> RawPage:
    return RawPage(f"http://example.org/{body[:9].decode()}", "text/html", body, "", None)


def extract_deadly(page: RawPage, settings: PlainText) -> Extracted | NotExtracted:
    """Extract in a way that harms the process, as the page's text says."""
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


def make_guard(*failed_pages: FailedPage, cpu_seconds: float = 60.0) -> Guard:
    return Guard(
        PlainText(), failed_pages, cpu_seconds=cpu_seconds, memory=2**26, by=extract_deadly
    )


DEADLY = {  # has the order of the batch
    b"fault": "crashed",
    b"exit": "crashed",
    b"loop": "cpu_time",
    b"memory": "memory",
    b"leak": "memory",
}


@pytest.mark.slow
def test_a_page_that_crashes_its_process_loses_only_that_page():
    pages = [page(b"a"), page(b"b"), *map(page, DEADLY), page(b"c")]
    # A leak takes CPU time too, so its memory limit is small and one second is enough.
    with make_guard(cpu_seconds=1.0) as first:
        outcomes = list(first.extract(pages))
    assert outcomes == [WORKS, WORKS, *map(NotExtracted, DEADLY.values()), WORKS]
    assert [(v.url, v.cause) for v in first.failed_pages] == [
        (page(body).url, cause) for body, cause in DEADLY.items()
    ]
    # With the failed pages of an earlier attempt, these are not tried: one would take an hour.
    began = time.monotonic()
    with make_guard(*first.failed_pages, cpu_seconds=3600) as second:
        assert list(second.extract(pages)) == outcomes
    assert second.failed_pages == first.failed_pages
    assert time.monotonic() - began < 600


def test_another_page_at_a_victims_address_is_tried():
    fault = page(b"fault")
    with make_guard(FailedPage(fault.url, "0" * 64, "crashed")) as under:
        assert list(under.extract([RawPage(fault.url, "", b"x", "", None)])) == [WORKS]


def test_an_error_in_a_library_loses_its_page_and_prints_are_ignored():
    with make_guard() as under:
        outcomes = list(under.extract([page(b"raise"), page(b"print"), page(b"a")]))
        assert outcomes == [NotExtracted("crashed"), WORKS, WORKS]
        assert under.failed_pages == []


def test_a_kill_from_outside_blames_no_page_and_a_guard_ends_its_child():
    with make_guard() as under:
        assert list(under.extract([page(b"a")])) == [WORKS]
        assert under._child is not None
        under._child._process.kill()
        assert list(under.extract([page(b"b")])) == [WORKS]
        assert under.failed_pages == []
        child = under._child._process
    assert child.returncode is not None


def test_outcomes_are_those_without_a_guard_whatever_the_batches():
    # Together the pages exceed BATCH_BYTES. Most are refused, which is quick.
    bodies = [b"<p>page %d " % number + b"word " * (number * 997) for number in range(150)]
    pages = [page(body) for body in bodies]
    settings = MainContent(max_bytes=100_000)
    with Guard(settings) as under:
        assert list(under.extract(pages)) == [extract(html, settings) for html in pages]
        assert list(under.extract([])) == []
        large = page(b"x" * 100_000_000)
        small = page(b"<p>small")
        assert list(under.extract([large, small])) == [
            NotExtracted("too_large"),
            Extracted("small", "", "", share=1.0),
        ]


def test_a_page_whose_tree_outgrows_all_memory_is_given_up():
    # Each unclosed <b> is opened again in each later paragraph: 10^8 elements from 300 kB.
    body = b"".join(b"<p><b id=%d>" % number for number in range(20_000))
    with Guard(Resiliparse(), memory=2**29) as under:
        outcomes = list(under.extract([page(body), page(b"<p>small")]))
    assert outcomes[1] == Extracted("small", "", "")
    # A library that does not check its allocations may crash before memory is full.
    assert outcomes[0] in (NotExtracted("memory"), NotExtracted("crashed"))


def test_a_child_that_cannot_start_blames_no_page(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with make_guard() as under, pytest.raises(RuntimeError, match="ended with exit code 1"):
        list(under.extract([page(b"a")]))
    assert under.failed_pages == []
