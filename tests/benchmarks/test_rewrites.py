"""CPU seconds of text rewrites, URL signals and URL normalisation on real pages."""

import itertools
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tldextract
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from support import side_by_side

from trainrig.corpus.rewrite import C4Lines, Normalise, RefinedWebLines, RepairUnicode, Rewrite
from trainrig.corpus.rewrite.characters import load_fixer
from trainrig.corpus.url_blocklist import UrlLists, UrlSignals
from trainrig.corpus.url_keys import compute_url_key, normalise_url

pytestmark = [pytest.mark.bench, pytest.mark.data]

ROUNDS = 5
BATCH = 5_000  # URLs


@pytest.fixture(scope="module")
def pages(test_data: Path) -> list[tuple[str, str]]:
    """Return the URL and text of each page."""
    found = []
    for archive in sorted((test_data / "crawl").glob("*.warc.gz")):
        with archive.open("rb") as stream:
            for record in ArchiveIterator(stream, record_types=WarcRecordType.response):
                page = record.reader.read().decode("utf-8", "replace")
                text = extract_plain_text(page, main_content=True)
                found.append((record.headers["WARC-Target-URI"], text))
    return found


def measure_pace(work: Callable[[], object], amount: float) -> dict[str, float]:
    """Return `amount` per CPU second: the median of ROUNDS, the minimum and the maximum."""
    work()
    paces = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        paces.append(amount / (time.process_time() - began))
    return {
        "median": round(statistics.median(paces), 1),
        "from": round(min(paces), 1),
        "to": round(max(paces), 1),
    }


@pytest.mark.parametrize(
    "rewrite",
    [
        RepairUnicode(),
        Normalise(),
        C4Lines(),
        C4Lines(reading="datatrove", terminal_punctuation=False),
        RefinedWebLines(),
    ],
    ids=lambda rewrite: rewrite.kind,
)
def test_rewrites(pages: list[tuple[str, str]], rewrite: Rewrite):
    texts = [text for _, text in pages]
    megabytes = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(rewrite.apply(text, "en")[1])
    speed = measure_pace(lambda: [rewrite.apply(text, "en") for text in texts], megabytes)
    print(
        json.dumps(
            {
                "benchmark": f"rewrite {rewrite!r}",
                "megabytes": round(megabytes, 1),
                "mb_per_cpu_second": speed,
                "microseconds_for_5_kb": round(5_000 / speed["median"]),
                "counts": counts,
            }
        )
    )


def test_repair_compared_with_ftfy_on_all_text(pages: list[tuple[str, str]]):
    texts = [text for _, text in pages[::10]]
    rewrite = RepairUnicode()
    ratio = side_by_side.compare(
        "RepairUnicode beside ftfy.fix_text",
        lambda: [rewrite.apply(text, "en") for text in texts],
        lambda: [load_fixer()(text) for text in texts],
        ROUNDS,
    )
    assert ratio < 0.5


def test_urls(pages: list[tuple[str, str]], tmp_path: Path):
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(3_000)]
    lists = {
        "domains": [f"{a}-{b}.example" for a, b in itertools.product(words[:300], words[:300])],
        "strict_words": words[:200],
        "hard_words": words[200:400],
        "soft_words": words[400:600],
    }
    for name, entries in lists.items():
        (tmp_path / name).write_text("\n".join(entries))
    signals = UrlSignals(UrlLists(**{name: (str(tmp_path / name),) for name in lists}))
    real = [url for url, _ in pages] * 4
    # Each URL has its own host; one in twenty contains a word of the lists.
    endings = ("com", "org", "co.uk", "de")
    strange = [
        f"https://www.{drawn.choice(words)}{at}.{drawn.choice(endings)}/{drawn.choice(words[550:])}"
        f"/{drawn.choice(words[600:])}-{drawn.choice(words[600:])}.html?id={at}"
        for at in range(20_000)
    ]
    extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    def measure(urls: Sequence[str]) -> None:
        for at in range(0, len(urls), BATCH):
            signals.measure(urls[at : at + BATCH])

    for name, urls in (("of real pages", real), ("each on its own host", strange)):
        print(
            json.dumps(
                {
                    "benchmark": f"URLs {name}",
                    "urls": len(urls),
                    "listed_domains": len(lists["domains"]),
                    "listed_words": 600,
                    "signals_per_cpu_second": measure_pace(
                        lambda urls=urls: measure(urls), len(urls)
                    ),
                    "normalised_per_cpu_second": measure_pace(
                        lambda urls=urls: [normalise_url(url) for url in urls], len(urls)
                    ),
                    "keys_per_cpu_second": measure_pace(
                        lambda urls=urls: [compute_url_key(url) for url in urls], len(urls)
                    ),
                    "tldextract_alone_per_cpu_second": measure_pace(
                        lambda urls=urls: [extract(url) for url in urls], len(urls)
                    ),
                }
            )
        )
