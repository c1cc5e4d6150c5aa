"""Work that reading repeats after it was stopped in the middle of a file."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import manifest, storage
from trainrig.corpus.curate import READ_FORMAT, curate
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.extract import PlainText, extract
from trainrig.corpus.extract.guard import Guard
from trainrig.corpus.operators import page_tables
from trainrig.corpus.operators.page_tables import split_records
from trainrig.corpus.read import RawPage, Unreadable
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.corpus.rewrite.pii_mask import PII
from trainrig.corpus.stages import read_pages

PAGES = 95
PART = 10
TEXT = "The keeper of lighthouse {0} writes to the harbor master that lamp {0} has to be mended. "


class Stopped(Exception):
    """Stands for any cause that ends a run."""


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Write one file, compressed as a single stream, which cannot be cut."""
    path = tmp_path / "pages.jsonl.gz"
    rows = [{"url": f"http://a/{n}", "text": TEXT.format(n) * 9} for n in range(PAGES)]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return str(path)


def make_run(archive: str, output: Path) -> Curation:
    source = CurationSource(name="web", paths=(archive,), filters=())
    return Curation(output=str(output), workers=0, sources=(source,))


def read_content(output: Path) -> str:
    return manifest.read_manifest(str(output)).content


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(1,), (PART,), (37, 38), (5, 15, 25, 35, 45, 55), (94, 95)])
def test_extracted_pages_are_not_extracted_again(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: tuple[int, ...]
) -> None:
    monkeypatch.setattr(page_tables, "PART", PART)
    curate(make_run(archive, tmp_path / "whole"))
    extracted: Counter[str] = Counter()

    def counting(guard: Guard, pages: Iterable[RawPage]) -> Iterator[Any]:
        for page in pages:
            extracted[page.url] += 1
            if extracted.total() in whens:
                raise Stopped
            yield extract(page, PlainText())

    monkeypatch.setattr(Guard, "extract", counting)
    whens = set(stops)
    for _ in stops:
        with pytest.raises(Stopped):
            curate(make_run(archive, tmp_path / "out"))
    curate(make_run(archive, tmp_path / "out"))
    assert read_content(tmp_path / "out") == read_content(tmp_path / "whole")
    assert len(extracted) == PAGES
    assert extracted.total() - PAGES <= len(stops) * PART  # one part is being written at a stop


records = st.lists(
    st.one_of(
        st.integers(0, 60).map(lambda size: RawPage("", "", b"x" * size, "", None)),
        st.just(Unreadable("a", "revisit")),
    ),
    max_size=60,
)


@given(records, st.integers(1, 7), st.integers(1, 200))
def test_parts_are_whole_and_bounded(found: list[Any], most: int, largest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_tables, "PART", most)
        patch.setattr(page_tables, "PART_BYTES", largest)
        parts = list(split_records(found))
    assert [record for part in parts for record in part] == found
    for part in parts:
        sizes = [len(record.body) for record in part if isinstance(record, RawPage)]
        assert 1 <= len(part) <= most
        assert sum(sizes) - (sizes[-1] if sizes else 0) < largest


@given(records, st.sets(st.integers(0, 59)), st.integers(1, 7), st.integers(1, 200))
def test_records_that_are_left_out_do_not_move_the_cuts(
    found: list[Any], crashed: set[int], most: int, largest: int
) -> None:
    left = [
        read_pages._leave_out(record, PII()) if number in crashed else record
        for number, record in enumerate(found)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_tables, "PART", most)
        patch.setattr(page_tables, "PART_BYTES", largest)
        assert [*map(len, split_records(left))] == [*map(len, split_records(found))]


@pytest.mark.slow
def test_a_part_of_which_a_file_is_missing_is_done_again(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_tables, "PART", PART)
    curate(make_run(archive, tmp_path / "whole"))
    begun = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(
            "trainrig.corpus.curate.apply_rules.apply_rules_to_split", lambda *rest: 1 / 0
        )
        with pytest.raises(ZeroDivisionError):
            curate(make_run(archive, begun))
    pages = storage.list_files(f"{begun}/scratch/pages")
    assert len(pages) == 10
    storage.delete(pages[3])
    storage.delete_folder(f"{begun}/scratch/done/read-{READ_FORMAT}")
    curate(make_run(archive, begun))
    assert read_content(begun) == read_content(tmp_path / "whole")


@pytest.mark.slow
def test_empty_inputs_are_reported(tmp_path: Path) -> None:
    write_warc(str(tmp_path / "pages.warc.gz"), [RawPage("http://a/", "image/png", b"", "", None)])
    with pytest.raises(Exception, match=r"document, of 1 read \(not_text 1\)"):
        curate(make_run(str(tmp_path / "pages.warc.gz"), tmp_path / "out"))
