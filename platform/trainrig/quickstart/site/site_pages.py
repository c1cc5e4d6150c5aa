"""The quickstart's raw data: web archives made from the local Python installation.

folder/docs-00000.warc.gz …          HTML: manuals of the library and of installed packages
    folder/code-00000.warc.gz …          Python sources as plain text
    folder/planted.json                  list of the faults injected into pages
    folder/instructions-train.jsonl      questions and answers on functions and classes
    folder/instructions-held-out.jsonl
    folder/pairs-train.jsonl             preference pairs: right answers with wrong ones
    folder/pairs-held-out.jsonl

The same installation and settings give the same bytes at any number of workers.
"""

import datetime
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig import storage
from trainrig.corpus.read import RawPage
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.errors import ConfigError, DataError
from trainrig.quickstart.site import questions, source_pages, stdlib_pages
from trainrig.quickstart.site.article import Article
from trainrig.quickstart.site.page_frame import render
from trainrig.quickstart.site.site_plan import (
    CODE,
    PagesSettings,
    PlannedPage,
    plan_site,
    write_plants,
)
from trainrig.quickstart.site.source_pages import (
    Described,
    SourceFile,
    SourceReading,
    hash_with_seed,
)

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

# At most one docs page in 4 is from pydoc, and one in 4 is a reference topic.
_LIBRARY_SHARE = 4
_CODE_ONE_IN = 6  # One installed source in 6 becomes a code page; the others become manuals.
_LARGEST_CODE = 40_000  # Largest code page, in bytes.
_WINDOW = 256  # Sources read at a time; few, so that reading stops soon after there are enough.
_MODULE_SECONDS = 20.0  # Time limit for pydoc to import and render one module.


@dataclass(frozen=True)
class _Gathered:
    articles: list[Article]
    code: list[tuple[SourceFile, bytes]]
    described: list[Described]
    skipped_modules: int  # Modules of the standard library that gave no page.


def build_pages(folder: str, settings: PagesSettings, workers: int) -> dict[str, int]:
    """Write the archives and lists in `folder`, with `workers` processes; return the counts.

    Raises DataError if the installation has nothing that could become a docs page, and ConfigError
    if SOURCE_DATE_EPOCH is not a number.
    """
    with _open_processes(workers) as run:
        gathered = _gather(settings, workers, run)
        if not gathered.articles:
            raise DataError(
                "no pages can be built: this Python has neither its standard library nor "
                "packages as source code; use a Python that has"
            )
        pages, plants = plan_site(gathered.articles, settings)
        sizes = [*run(_write_archive, _plan_archives(folder, pages, gathered.code, settings))]
    write_plants(storage.join(folder, "planted.json"), plants)
    train, held_out = questions.write_instructions(
        gathered.described, settings.instructions, settings.held_out_instructions, settings.seed
    )
    pairs = questions.shuffle_answers(train[: settings.pairs])
    wrong = questions.shuffle_answers(held_out)
    for name, text in (
        ("instructions-train.jsonl", questions.format_lines([i.build_row() for i in train])),
        ("instructions-held-out.jsonl", questions.format_lines([i.build_row() for i in held_out])),
        ("pairs-train.jsonl", questions.format_lines(pairs)),
        ("pairs-held-out.jsonl", questions.format_lines(wrong)),
        ("problems.jsonl", questions.format_problems(settings.seed)),
        ("prompts.jsonl", questions.format_prompts(held_out)),
        ("principles.txt", questions.PRINCIPLES),
    ):
        storage.write(storage.join(folder, name), text.encode())
    return {
        "docs": len(pages),
        "code": len(gathered.code),
        "planted": len(plants),
        "instructions": len(train),
        "skipped_modules": gathered.skipped_modules,
        "bytes": sum(sizes),
    }


@contextmanager
def _open_processes(workers: int) -> Iterator[Map]:
    """Yield an ordered `map` over processes, or the built-in one for a single worker."""
    if workers == 1:
        yield map
        return
    # Uses "spawn", because forking a process with threads (Ray, torch) may deadlock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield pool.map


def _gather(settings: PagesSettings, workers: int, run: Map) -> _Gathered:
    seed = settings.seed
    articles, skipped_modules = _make_library_pages(settings, workers)
    manuals, code = _share_out(
        source_pages.list_package_sources(source_pages.find_package_folders(), seed)
    )
    described: list[Described] = []
    read: set[str] = set()
    for reading in _iterate_readings(manuals, run):
        if len(articles) >= settings.docs_pages:
            break
        if reading.digest not in read:
            read.add(reading.digest)
            described += reading.described
            if reading.article is not None:
                articles.append(reading.article)
    library = source_pages.list_standard_sources(seed)
    described += _collect_library_descriptions(library, settings, run)
    turns = itertools.zip_longest(code, library)
    mixed = [source for turn in turns for source in turn if source is not None]
    # Sorted by path, so that the menus of a page link to its neighbours.
    articles.sort(key=lambda article: article.path)
    code_pages = _select_code_pages(mixed, settings.code_pages)
    return _Gathered(articles, code_pages, described, skipped_modules)


def _make_library_pages(settings: PagesSettings, workers: int) -> tuple[list[Article], int]:
    """Build the pages that every Python installation has: pydoc's and the reference's.

    Also returns the number of modules that gave no page.
    """
    most = -(-settings.docs_pages // _LIBRARY_SHARE)
    modules = sorted(
        stdlib_pages.list_standard_modules(),
        key=lambda module: hash_with_seed(settings.seed, module),
    )[:most]
    outcomes = stdlib_pages.render(sorted(modules), workers, seconds=_MODULE_SECONDS)
    pages = [outcome for outcome in outcomes if isinstance(outcome, Article)]
    topics = stdlib_pages.make_topic_pages()
    topics.sort(key=lambda page: hash_with_seed(settings.seed, page.path))
    return [*pages, *topics[:most]][: settings.docs_pages], len(outcomes) - len(pages)


def _share_out(sources: Sequence[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
    """Divide the sources, by module name, between manuals and code pages."""
    shares: tuple[list[SourceFile], list[SourceFile]] = ([], [])
    for source in sources:
        draw = int.from_bytes(hash_with_seed(0, f"code/{source.module}")[:4], "big")
        shares[draw % _CODE_ONE_IN == 0].append(source)
    return shares


def _iterate_readings(sources: Sequence[SourceFile], run: Map) -> Iterator[SourceReading]:
    for start in range(0, len(sources), _WINDOW):
        groups = [
            sources[at : at + 16] for at in range(start, min(start + _WINDOW, len(sources)), 16)
        ]
        for readings in run(_read_sources, groups):
            yield from readings


def _read_sources(sources: Sequence[SourceFile]) -> list[SourceReading]:
    return [source_pages.read_source(source) for source in sources]


def _collect_library_descriptions(
    library: Sequence[SourceFile], settings: PagesSettings, run: Map
) -> list[Described]:
    """Collect descriptions from the standard library, enough for all instructions."""
    needed = settings.instructions + settings.held_out_instructions
    found: list[Described] = []
    for reading in _iterate_readings(library, run):
        if len(found) >= needed:
            break
        found += reading.described
    return found


def _select_code_pages(sources: Iterable[SourceFile], count: int) -> list[tuple[SourceFile, bytes]]:
    """Return the first `count` sources that are small enough, valid UTF-8 and distinct."""
    pages: dict[bytes, SourceFile] = {}
    for source in sources:
        if len(pages) >= count:
            break
        try:
            data = Path(source.path).read_bytes()
            data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(data) <= _LARGEST_CODE:
            pages.setdefault(data, source)
    return [(source, data) for data, source in pages.items()]


@dataclass(frozen=True)
class _Archive:
    path: str
    pages: tuple[PlannedPage | RawPage, ...]
    date: str


def _plan_archives(
    folder: str,
    docs: Sequence[PlannedPage],
    code: Sequence[tuple[SourceFile, bytes]],
    settings: PagesSettings,
) -> Iterator[_Archive]:
    date = _choose_date()
    sources = [
        RawPage(f"{CODE}{source.module.replace('.', '/')}.py", "text/plain", data, date, "utf-8")
        for source, data in code
    ]
    for name, pages, count in (
        ("docs", docs, settings.docs_files),
        ("code", sources, settings.code_files),
    ):
        for number in range(min(count, len(pages))):
            path = storage.join(folder, f"{name}-{number:05}.warc.gz")
            yield _Archive(path, tuple(pages[number::count]), date)


def _choose_date() -> str:
    """Return the date of all pages, ISO 8601: SOURCE_DATE_EPOCH if the environment sets it."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return "2026-01-01T00:00:00Z"
    if not epoch.isdecimal():
        raise ConfigError(f"SOURCE_DATE_EPOCH: {epoch!r} is not a number of seconds since 1970")
    moment = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _write_archive(archive: _Archive) -> int:
    """Render and write one archive, and return its size in bytes."""
    write_warc(archive.path, (_render_page(page, archive.date) for page in archive.pages))
    return storage.measure_size(archive.path)


def _render_page(page: PlannedPage | RawPage, date: str) -> RawPage:
    if isinstance(page, RawPage):
        return page
    return RawPage(page.url, "text/html", render(page.article, page.frame), date, "utf-8")
