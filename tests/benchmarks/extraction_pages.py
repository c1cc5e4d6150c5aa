"""Real pages and what their text must and must not say, in two halves by host.

Sources of `crawl/manifest.jsonl`: `trafilatura-eval-A` (news and blogs in many languages, for which
`extraction/trafilatura-evaldata.json` lists strings) and `readability-test-pages` (no strings).
The trees of the block model were trained on the tuning half; figures are of the reported half.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fastwarc.warc import ArchiveIterator, WarcRecordType

from trainrig.corpus.read import Page

STRINGS, NO_STRINGS = "trafilatura-eval-A", "readability-test-pages"


@dataclass(frozen=True)
class Labelled:
    """A page, where it is from, and strings that its text is to hold or not."""

    page: Page
    source: str
    host: str  # of the site that it was taken from
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]

    @property
    def half(self) -> str:
        """ "tuning" or "reported", by the host; "" without strings."""
        if not self.wanted:
            return ""
        return ("tuning", "reported")[hashlib.sha256(self.host.encode()).digest()[0] % 2]


def labelled_pages(data: Path) -> list[Labelled]:
    """All pages of the crawl below `data`, in its order."""
    strings = json.loads((data / "extraction/trafilatura-evaldata.json").read_text())
    by_file = {about["file"]: (url, about) for url, about in strings.items()}
    lines = (data / "crawl/manifest.jsonl").read_text().splitlines()
    manifest = {entry["sha256"]: entry for entry in map(json.loads, lines)}
    found = []
    for path in sorted((data / "crawl").glob("*.warc.gz")):
        with path.open("rb") as stream:
            for record in ArchiveIterator(stream, record_types=WarcRecordType.response):
                body, url = record.reader.read(), record.headers["WARC-Target-URI"]
                page = Page(url, "text/html", body, "", record.http_charset)
                entry = manifest[hashlib.sha256(page.body).hexdigest()]
                file = Path(entry["path"]).name
                url, about = entry["url"], {}
                if entry["source"] == STRINGS:
                    url, about = by_file.get(file, (url, {}))
                host = (urlsplit(url).hostname or file.split(".")[0]).removeprefix("www.")
                if entry["source"] == NO_STRINGS:
                    host = Path(entry["path"]).parent.name
                wanted, unwanted = tuple(about.get("with", ())), tuple(about.get("without", ()))
                found.append(Labelled(page, entry["source"], host, wanted, unwanted))
    return found


@dataclass(frozen=True)
class Score:
    """Over all strings of all pages, with white space folded."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def score(texts: Iterable[tuple[Labelled, str]]) -> Score:
    """How many of the strings that texts hold they should, and the other way round."""
    right, missed, wrong = 0, 0, 0
    for labelled, text in texts:
        folded = fold(text)
        held = sum(fold(each) in folded for each in labelled.wanted)
        right += held
        missed += len(labelled.wanted) - held
        wrong += sum(fold(each) in folded for each in labelled.unwanted)
    return Score(right / (right + wrong), right / (right + missed))


def fold(text: str) -> str:
    """`text` with one space for each run of white space."""
    return " ".join(text.split())
