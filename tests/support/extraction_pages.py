"""Real pages with strings that their text must and must not contain, in two halves by host.

The sources in `crawl/manifest.jsonl` are `trafilatura-eval-A` (news and blogs in many languages,
for which `extraction/trafilatura-evaldata.json` lists strings) and `readability-test-pages` (no
strings). The trees of the block model were trained on the tuning half. Figures are of the reported
half.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from fastwarc.warc import ArchiveIterator, WarcRecordType
from numpy.typing import ArrayLike

from trainrig.corpus.read import RawPage

STRINGS = "trafilatura-eval-A"
NO_STRINGS = "readability-test-pages"


@dataclass(frozen=True)
class Labelled:
    """A page, its source, and the strings that its text must and must not contain."""

    page: RawPage
    source: str
    host: str  # host of the page's site
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]

    @property
    def half(self) -> str:
        """Return "tuning" or "reported", chosen by the host, or "" for a page without strings."""
        if not self.wanted:
            return ""
        return ("tuning", "reported")[hashlib.sha256(self.host.encode()).digest()[0] % 2]


def labelled_pages(data: Path) -> list[Labelled]:
    """Return all pages of the crawl below `data`, in its order."""
    strings = json.loads((data / "extraction/trafilatura-evaldata.json").read_text())
    by_file = {about["file"]: (url, about) for url, about in strings.items()}
    lines = (data / "crawl/manifest.jsonl").read_text().splitlines()
    manifest = {entry["sha256"]: entry for entry in map(json.loads, lines)}
    found = []
    for path in sorted((data / "crawl").glob("*.warc.gz")):
        with path.open("rb") as stream:
            for record in ArchiveIterator(stream, record_types=WarcRecordType.response):
                body = record.reader.read()
                url = record.headers["WARC-Target-URI"]
                page = RawPage(url, "text/html", body, "", record.http_charset)
                entry = manifest[hashlib.sha256(page.body).hexdigest()]
                file = Path(entry["path"]).name
                url = entry["url"]
                about = {}
                if entry["source"] == STRINGS:
                    url, about = by_file.get(file, (url, {}))
                host = (urlsplit(url).hostname or file.split(".")[0]).removeprefix("www.")
                if entry["source"] == NO_STRINGS:
                    host = Path(entry["path"]).parent.name
                wanted = tuple(about.get("with", ()))
                unwanted = tuple(about.get("without", ()))
                found.append(Labelled(page, entry["source"], host, wanted, unwanted))
    return found


def counts(labelled: Labelled, text: str) -> tuple[int, int, int]:
    """Count the wanted strings that `text` contains, those it lacks, and unwanted ones it contains.

    White space is folded on both sides.
    """
    folded = fold(text)
    held = sum(fold(phrase) in folded for phrase in labelled.wanted)
    wrong = sum(fold(phrase) in folded for phrase in labelled.unwanted)
    return held, len(labelled.wanted) - held, wrong


def precision(pages: ArrayLike) -> float:
    """Return the precision of the summed counts of all pages."""
    held, _, wrong = np.asarray(pages).sum(0)
    return float(held / (held + wrong))


def recall(pages: ArrayLike) -> float:
    """Return the recall of the summed counts of all pages."""
    held, lacked, _ = np.asarray(pages).sum(0)
    return float(held / (held + lacked))


def f1(pages: ArrayLike) -> float:
    """Return the harmonic mean of precision and recall."""
    held, lacked, wrong = np.asarray(pages).sum(0)
    return float(2 * held / (2 * held + lacked + wrong))


def error_of_lead(ours: ArrayLike, theirs: ArrayLike, hosts: Sequence[str]) -> float:
    """Return the standard error of the F1 difference, from 1,000 resamples of hosts."""
    pages_of = [[n for n, name in enumerate(hosts) if name == host] for host in sorted(set(hosts))]
    a, b = (np.array([np.asarray(counts)[n].sum(0) for n in pages_of]) for counts in (ours, theirs))
    random = np.random.default_rng(0)
    draws = [random.integers(0, len(a), len(a)) for _ in range(1000)]
    return float(np.std([f1(a[draw]) - f1(b[draw]) for draw in draws]))


def fold(text: str) -> str:
    """Return `text` with one space for each run of white space."""
    return " ".join(text.split())
