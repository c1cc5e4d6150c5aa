"""Remove benchmark examples from a corpus, and report how much of them the corpus held.

The steps, in order:

Index.of(settings).save(path)                   once: the benchmarks' words and n-grams
    match(index, texts).save(path)                  for each split, documents in order
    merge(index, paths of all matches).save(path)   once
    decide(index, matches, totals)                  for each split: dropped documents, cut spans
    tallies.tally_contamination(index, totals, sum of Decision.compute_counts(), samples)   once
    contamination.html.j2                           once: section of the report

Add `fingerprint(settings)` to the inputs of a run, because the settings only name the benchmark
files. Documents are numbered by their position among the texts given to `match`. `tallies.sample`
turns a `Touch` and its document into a sample for the report. Workers map the index into memory
with `Index.load(path)`. This package does not use Ray. The rules and the papers they come from are
in decontamination_settings.py.
"""

from trainrig.corpus.decontaminate.benchmark_index import Index as Index
from trainrig.corpus.decontaminate.benchmark_index import check_examples as check_examples
from trainrig.corpus.decontaminate.benchmark_index import fingerprint as fingerprint
from trainrig.corpus.decontaminate.decide import CONTAMINATED as CONTAMINATED
from trainrig.corpus.decontaminate.decide import Decision as Decision
from trainrig.corpus.decontaminate.decide import Touch as Touch
from trainrig.corpus.decontaminate.decide import decide as decide
from trainrig.corpus.decontaminate.decontamination_settings import GPT3 as GPT3
from trainrig.corpus.decontaminate.decontamination_settings import Benchmark as Benchmark
from trainrig.corpus.decontaminate.decontamination_settings import (
    Decontamination as Decontamination,
)
from trainrig.corpus.decontaminate.decontamination_settings import Llama2 as Llama2
from trainrig.corpus.decontaminate.decontamination_settings import Llama3 as Llama3
from trainrig.corpus.decontaminate.decontamination_settings import PaLM as PaLM
from trainrig.corpus.decontaminate.decontamination_settings import Style as Style
from trainrig.corpus.decontaminate.document_matches import Matches as Matches
from trainrig.corpus.decontaminate.document_matches import Totals as Totals
from trainrig.corpus.decontaminate.document_matches import match as match
from trainrig.corpus.decontaminate.document_matches import merge as merge
