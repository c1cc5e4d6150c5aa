"""Keeping benchmarks out of a corpus, and saying how much of them was in it.

    Index.of(settings).save(path)                       once: the benchmarks' words and n-grams
    match(index, texts).save(path)                      each split, documents in their order
    merge(index, paths of all matches).save(path)       once
    decide(index, matches, totals)                      each split: what falls, what is cut
    account.account(index, totals, sum of Decision.counts(), samples)    once, for the report
    page.contamination_section(account)                 its part of the page

A run's inputs have `fingerprint(settings)`. Documents go by their place among those that `match`
saw; `account.sample` makes of a `Touch` and its document what a report shows. Workers map the index
into memory: `Index.load(path)`. Nothing here knows of files other than those, nor of Ray. The
styles, and where they come from, are in settings.py.
"""

from trainrig.corpus.decontaminate.benchmarks import check_examples, fingerprint
from trainrig.corpus.decontaminate.decide import CONTAMINATED, Decision, Touch, decide
from trainrig.corpus.decontaminate.index import Index
from trainrig.corpus.decontaminate.matching import Matches, Totals, match, merge
from trainrig.corpus.decontaminate.settings import (
    GPT3,
    Benchmark,
    Decontamination,
    Llama2,
    Llama3,
    PaLM,
    Style,
)

__all__ = [
    "CONTAMINATED",
    "GPT3",
    "Benchmark",
    "Decision",
    "Decontamination",
    "Index",
    "Llama2",
    "Llama3",
    "Matches",
    "PaLM",
    "Style",
    "Totals",
    "Touch",
    "check_examples",
    "decide",
    "fingerprint",
    "match",
    "merge",
]
