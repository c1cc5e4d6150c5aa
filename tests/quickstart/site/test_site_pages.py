import json
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.archives import read_warc

from trainrig.corpus.extract import Resiliparse, extract
from trainrig.corpus.read import RawPage
from trainrig.errors import ConfigError
from trainrig.quickstart.site.site_pages import build_pages
from trainrig.quickstart.site.site_plan import (
    CODE,
    HANDBOOK,
    MIRROR,
    NOTES,
    PagesSettings,
    compute_shingle_jaccard,
    read_plants,
)

SETTINGS = PagesSettings(
    docs_pages=60,
    code_pages=12,
    duplicates=4,
    near_duplicates=5,
    foreign=8,
    personal_data=10,
    instructions=40,
    held_out_instructions=4,
    pairs=30,
    docs_files=3,
    code_files=2,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return folder, build_pages(str(folder), SETTINGS, workers=1)


@pytest.fixture(scope="module")
def pages(built):
    """Return every page by its URL."""
    found = {}
    for path in sorted(built[0].glob("*.warc.gz")):
        for page in read_warc(str(path)):
            assert isinstance(page, RawPage)
            assert page.url not in found
            found[page.url] = page
    return found


@pytest.fixture(scope="module")
def plants(built):
    return read_plants(str(built[0] / "planted.json"))


def extract_text(page):
    return extract(page, Resiliparse()).text


def read_contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.mark.slow
def test_two_workers_make_the_same_bytes(built, tmp_path):
    assert build_pages(str(tmp_path), SETTINGS, workers=2) == built[1]
    assert read_contents(tmp_path) == read_contents(built[0])


@pytest.mark.slow
def test_another_seed_makes_another_site(built, tmp_path):
    build_pages(str(tmp_path), SETTINGS.model_copy(update={"seed": 1}), workers=1)
    ours = read_contents(built[0])
    others = read_contents(tmp_path)
    assert ours.keys() == others.keys()
    same = {name for name in ours if ours[name] == others[name]}
    assert same == {"principles.txt"}  # written by hand


@pytest.mark.slow
def test_there_are_as_many_as_asked_for(built, pages, plants):
    folder, counts = built
    assert len(pages) == counts["docs"] + counts["code"]
    copies = sum(plant.original_url is not None for plant in plants)
    assert counts["docs"] == 60 + copies + 8
    assert counts["code"] == sum(url.startswith(CODE) for url in pages) == 12
    assert sum(path.stat().st_size for path in folder.glob("*.warc.gz")) == counts["bytes"]
    assert sorted(path.name for path in folder.glob("*.warc.gz")) == [
        "code-00000.warc.gz",
        "code-00001.warc.gz",
        "docs-00000.warc.gz",
        "docs-00001.warc.gz",
        "docs-00002.warc.gz",
    ]
    lists = {path.name for path in folder.iterdir() if not path.name.endswith(".warc.gz")}
    assert lists >= {
        *("pairs-train.jsonl", "pairs-held-out.jsonl", "instructions-train.jsonl"),
        *("instructions-held-out.jsonl", "problems.jsonl", "prompts.jsonl", "principles.txt"),
    }


@pytest.mark.slow
def test_as_many_faults_are_injected_as_asked_for(built, plants):
    planted = Counter(plant.kind for plant in plants)
    assert built[1]["planted"] == planted.total()
    # Few of so few pages suit as duplicates; how many depends on the installed packages.
    assert 1 <= planted["exact_duplicate"] <= 4
    assert 1 <= planted["near_duplicate"] <= 5
    assert planted["foreign_language"] == 8
    assert planted["personal_data"] == 10
    kinds = Counter(plant.what for plant in plants if plant.what)
    assert kinds == {"CARD": 2, "EMAIL": 2, "IBAN": 2, "IP": 2, "PHONE": 2}


def test_no_page_gets_two_injections(plants):
    copied = [plant.original_url for plant in plants if plant.original_url]
    personal = {plant.url for plant in plants if plant.kind == "personal_data"}
    assert len(set(copied)) == len(copied)
    assert not personal.intersection(copied)


def test_exact_copies_are_the_same_page_under_another_url(plants, pages):
    for plant in plants:
        if plant.kind == "exact_duplicate":
            assert plant.url.startswith(MIRROR)
            assert pages[plant.url].body == pages[plant.original_url].body


def test_near_copies_are_as_near_as_recorded_after_extraction(plants, pages):
    for plant in plants:
        if plant.kind == "near_duplicate":
            assert plant.url.startswith(HANDBOOK)
            assert pages[plant.url].body != pages[plant.original_url].body
            assert 0 < plant.words_changed <= 0.025
            found = compute_shingle_jaccard(
                extract_text(pages[plant.url]), extract_text(pages[plant.original_url])
            )
            # The page frames differ too, and leave some words in the text.
            assert plant.jaccard - 0.12 <= found <= plant.jaccard + 0.02


def test_foreign_pages_say_their_language(plants, pages):
    foreign = [plant for plant in plants if plant.kind == "foreign_language"]
    assert len({plant.language for plant in foreign}) == 8
    for plant in foreign:
        assert plant.url.startswith(f"{NOTES}{plant.language}/")
        assert f'<html lang="{plant.language}">'.encode() in pages[plant.url].body


def test_personal_data_are_in_the_text_that_is_extracted_and_nowhere_else(plants, pages):
    for plant in plants:
        if plant.kind == "personal_data":
            assert plant.value in extract_text(pages[plant.url])
            assert sum(plant.value.encode() in page.body for page in pages.values()) == 1


def test_every_page_has_its_elements_closed(pages):
    class Closed(HTMLParser):
        """Counter of tags that pydoc closes as well; HTML lets <p>, <dt> and others stay open."""

        def __init__(self):
            super().__init__()
            self.counts = Counter()

        def handle_starttag(self, tag, attrs):
            self.counts[tag] += 1

        def handle_endtag(self, tag):
            self.counts[tag] -= 1

    for url, page in pages.items():
        if page.content_type == "text/html":
            parser = Closed()
            parser.feed(page.body.decode())
            parser.close()
            for tag in ("html", "head", "body", "div", "table", "ul", "li", "main", "article", "a"):
                assert parser.counts[tag] == 0, (url, tag)


def test_code_pages_are_python_as_it_stands(pages):
    for url, page in pages.items():
        if url.startswith(CODE):
            assert page.content_type == "text/plain"
            compile(page.body, url, "exec", dont_inherit=True)


def test_instructions_are_chats_about_different_names(built):
    folder, counts = built
    assert counts["instructions"] == 40
    questions = []
    for name in ("instructions-train.jsonl", "instructions-held-out.jsonl"):
        for line in (folder / name).read_text().splitlines():
            chat = json.loads(line)["messages"]
            assert [message["role"] for message in chat] == ["user", "assistant"]
            assert sum(len(message["content"]) for message in chat) <= 600
            questions.append(chat[0]["content"])
    assert len(set(questions)) == 44
    for name, count in (("pairs-train.jsonl", 30), ("pairs-held-out.jsonl", 4)):
        pairs = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        assert len(pairs) == count
        assert all(pair["chosen"] != pair["rejected"] for pair in pairs)


def test_no_installed_package_is_imported(tmp_path, monkeypatch):
    mark = tmp_path / "imported"
    prose = " ".join(f"Line {n} of this text is about the shelf and the book." for n in range(60))
    site = tmp_path / "site-packages"
    (site / "spied").mkdir(parents=True)
    for name in ("__init__", "shelf", "book"):
        (site / "spied" / f"{name}.py").write_text(
            f'"""About {name}.\n\n{prose}\n"""\nopen({str(mark)!r}, "w").write("x")\n'
        )
    library = [entry for entry in sys.path if not entry.endswith("-packages")]
    monkeypatch.setattr(sys, "path", [str(site), *library])
    settings = SETTINGS.model_copy(update={"docs_pages": 12, "instructions": 5})
    counts = build_pages(str(tmp_path / "out"), settings, workers=1)
    urls = {
        page.url for path in (tmp_path / "out").glob("*.warc.gz") for page in read_warc(str(path))
    }
    assert sum("/spied" in url for url in urls) == 3
    assert counts["docs"] >= 3
    assert not mark.exists()


@pytest.mark.slow
def test_dates_are_fixed_and_follow_source_date_epoch(pages, tmp_path, monkeypatch):
    assert {page.date for page in pages.values()} == {"2026-01-01T00:00:00Z"}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    monkeypatch.setattr(sys, "path", [e for e in sys.path if not e.endswith("-packages")])
    small = PagesSettings(
        docs_pages=4, code_pages=1, foreign=1, instructions=1, held_out_instructions=1
    )
    build_pages(str(tmp_path), small, workers=1)
    dates = {page.date for path in tmp_path.glob("*.warc.gz") for page in read_warc(str(path))}
    assert dates == {"1970-01-02T00:00:00Z"}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "tomorrow")
    with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH: 'tomorrow'"):
        build_pages(str(tmp_path), small, workers=1)
