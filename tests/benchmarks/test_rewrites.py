"""CPU seconds of text rewrites, URL signals and URL normalisation on real pages."""

import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tldextract
from support import side_by_side
from support.side_by_side import measure_pace, print_result

from trainrig.corpus.rewrite import C4Lines, Normalise, RefinedWebLines, RepairUnicode, Rewrite
from trainrig.corpus.rewrite.characters import load_fixer
from trainrig.corpus.url_blocklist import UrlLists, UrlSignals
from trainrig.corpus.url_keys import compute_url_key, normalise_url

pytestmark = [pytest.mark.bench, pytest.mark.data]

ROUNDS = 5
BATCH = 5_000  # URLs


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
    counts = sum((Counter(rewrite.apply(text, "en")[1]) for text in texts), Counter[str]())
    speed = measure_pace(lambda: [rewrite.apply(text, "en") for text in texts], megabytes)
    words = measure_pace(lambda: [re.findall(r"\w+", text) for text in texts], megabytes)
    print_result(
        benchmark=f"rewrite {rewrite!r}",
        megabytes=round(megabytes, 1),
        mb_per_cpu_second=speed,
        microseconds_for_5_kb=round(5_000 / speed["median"]),
        counts=counts,
    )
    assert speed["median"] > words["median"] / 5  # of the pace of finding words by `re`


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

    tasks: dict[str, Callable[[Sequence[str]], object]] = {
        "signals": measure,
        "normalised": lambda urls: [normalise_url(url) for url in urls],
        "keys": lambda urls: [compute_url_key(url) for url in urls],
        "tldextract_alone": lambda urls: [extract(url) for url in urls],
    }
    for name, urls in (("of real pages", real), ("each on its own host", strange)):
        paces = {
            task: measure_pace(functools.partial(work, urls), len(urls))
            for task, work in tasks.items()
        }
        print_result(benchmark=f"URLs {name}", urls=len(urls), per_cpu_second=paces)
        for task in ("signals", "normalised", "keys"):
            assert paces[task]["median"] > paces["tldextract_alone"]["median"] / 4, task
