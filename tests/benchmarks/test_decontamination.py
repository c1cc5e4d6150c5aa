"""Decontamination against fourteen real benchmarks: pace, growth and findings in real pages.

The pace is compared with a set of n-grams in Python. The growth is with the corpus and with the
benchmarks.
"""

import gzip
import re
import statistics
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.side_by_side import measure_cpu_seconds, print_result

from trainrig.corpus.decontaminate import (
    GPT3,
    Benchmark,
    Decontamination,
    Index,
    Llama2,
    Llama3,
    PaLM,
    Style,
    decide,
    match,
    merge,
)
from trainrig.corpus.decontaminate.benchmark_index import read_examples

pytestmark = [pytest.mark.bench, pytest.mark.data]

ROUNDS = 5
FIELDS = {
    "HumanEval.jsonl.gz": ("prompt", "canonical_solution"),
    "alpaca_seed_tasks.jsonl": ("instruction", "instances.input", "instances.output"),
    "arc_easy.jsonl": ("query", "choices"),
    "bigbench_language_identification.jsonl": ("query",),
    "boolq.jsonl": ("query",),
    "copa.jsonl": ("query", "choices"),
    "enterprise_pii_classification.jsonl": ("query",),
    "gsm8k_test.jsonl": ("question", "answer"),
    "gsm8k_train.jsonl": ("question", "answer"),
    "hh_harmless_base_test.jsonl.gz": ("chosen", "rejected"),
    "lambada_openai.jsonl": ("context", "continuation"),
    "piqa.jsonl": ("query", "choices"),
    "simple_arithmetic_nospaces.jsonl": ("context", "continuation"),
    "svamp.jsonl": ("context", "chain_of_thought", "answer"),
    "winogrande.jsonl": ("context_options", "continuation"),
}


def make_leaked_pages(test_data: Path) -> list[str]:
    """Return pages that quote examples: two of each thousand from some benchmarks."""
    found = []
    for benchmark in settings(test_data, GPT3()).benchmarks[:10]:
        examples = read_examples(benchmark).texts[::500]
        found += [f"As they asked: {' '.join(texts).upper()} and so on." for texts in examples]
    return found


def settings(test_data: Path, style: Style) -> Decontamination:
    benchmarks = tuple(
        Benchmark(name=name.partition(".")[0], path=str(test_data / "sets" / name), fields=fields)
        for name, fields in FIELDS.items()
    )
    return Decontamination(benchmarks=benchmarks, style=style)


def index(test_data: Path, tmp_path: Path, style: Style) -> Index:
    """Return the index loaded from its file, as a worker loads it."""
    path = str(tmp_path / f"{style.kind}.index")
    Index.of(settings(test_data, style)).save(path)
    return Index.load(path)


class Peer:
    """Word n-grams in sets, as in lm-evaluation-harness's janitor, one set for each n.

    This deletes punctuation once per document; the janitor deletes it from each n-gram.
    """

    def __init__(self, ours: Index) -> None:
        self._deleted = dict.fromkeys(
            code
            for code in range(sys.maxunicode)
            if unicodedata.category(chr(code))[0] in "PS" and not chr(code).isalnum()
        )
        self._deleted[ord("_")] = None
        self._sets: dict[int, set[str]] = {}
        letters = ours.vocabulary.letters.tobytes().decode("utf-32-le", "surrogatepass")
        ends = ours.vocabulary.ends_V.tolist()
        names = [letters[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        words = [names[word] for word in ours.words_B.tolist()]
        for place, order in enumerate(ours.grams.orders_B.tolist()):
            if order:
                gram = " ".join(words[place : place + order])
                self._sets.setdefault(order, set()).add(gram)

    def collisions(self, texts: Sequence[str]) -> set[tuple[int, int, int]]:
        found = set()
        for number, text in enumerate(texts):
            words = [
                (word, chunk.start(), chunk.end())
                for chunk in re.finditer(r"\S+", text)
                if (word := chunk.group().lower().translate(self._deleted))
            ]
            plain = [word for word, _, _ in words]
            for order, known in self._sets.items():
                for first in range(len(words) - order + 1):
                    if " ".join(plain[first : first + order]) in known:
                        found.add((number, words[first][1], words[first + order - 1][2]))
        return found


def measure_pace(ours: Index, texts: Sequence[str]) -> float:
    """Return the median of three measurements, in megabytes per CPU second."""
    return count_megabytes(texts) / statistics.median(
        measure_cpu_seconds(lambda: match(ours, texts)) for _ in range(3)
    )


def count_megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6


def test_matching_compared_with_sets_of_n_grams(texts, test_data, tmp_path):
    ours = index(test_data, tmp_path, GPT3())
    peer = Peer(ours)
    some = texts[::10] + make_leaked_pages(test_data)  # a sample, because the peer is slow
    found = match(ours, some)
    columns = (found.span_documents, found.span_starts, found.span_ends)
    spans = set(zip(*(column.tolist() for column in columns), strict=True))
    theirs = peer.collisions(some)
    rounds = [
        (
            measure_cpu_seconds(lambda: match(ours, some)),
            measure_cpu_seconds(lambda: peer.collisions(some)),
        )
        for _ in range(ROUNDS)
    ]
    ratios = sorted(b / a for a, b in rounds)
    print_result(
        benchmark="matching against fourteen benchmarks",
        megabytes=round(count_megabytes(some), 1),
        mb_per_cpu_second=round(count_megabytes(some) / statistics.median(a for a, _ in rounds), 1),
        peer_mb_per_cpu_second=round(
            count_megabytes(some) / statistics.median(b for _, b in rounds), 2
        ),
        times_peer=round(statistics.median(ratios), 1),
        times_peer_from_to=[round(ratios[0], 1), round(ratios[-1], 1)],
        collisions=[len(spans), len(theirs)],
        rounds=ROUNDS,
    )
    assert spans == theirs
    assert spans
    assert statistics.median(ratios) > 1


def test_cost_grows_with_the_corpus_and_little_with_the_benchmarks(texts, test_data, tmp_path):
    ours = index(test_data, tmp_path, GPT3())
    unit = texts[::12]  # about a megabyte
    match(ours, unit)
    corpus = {}
    for times in (1, 10, 100):
        seconds = measure_cpu_seconds(lambda times=times: match(ours, unit * times))
        corpus[times] = round(times * count_megabytes(unit) / seconds, 1)
    examples = {}
    whole = settings(test_data, GPT3())
    for share in (0.01, 0.1, 1.0):
        folder = tmp_path / str(share)
        folder.mkdir()
        part = whole.model_copy(
            update={
                "benchmarks": tuple(
                    _part(benchmark, share, folder) for benchmark in whole.benchmarks
                )
            }
        )
        path = folder / "index"
        build = measure_cpu_seconds(lambda part=part, path=path: Index.of(part).save(str(path)))
        loaded = Index.load(str(path))
        examples[share] = {
            "examples": loaded.firsts[-1],
            "words": len(loaded.words_B),
            "index_mb": round(path.stat().st_size / 1e6, 1),
            "build_cpu_seconds": round(build, 2),
            "mb_per_cpu_second": round(measure_pace(loaded, texts), 1),
        }
    print_result(
        benchmark="growth of decontamination",
        corpus_megabytes=round(count_megabytes(unit), 2),
        mb_per_cpu_second_by_times=corpus,
        by_share_of_benchmarks=examples,
    )
    assert corpus[100] > corpus[1] / 1.5


def _part(benchmark: Benchmark, share: float, folder: Path) -> Benchmark:
    content = Path(benchmark.path).read_bytes()
    content = gzip.decompress(content) if benchmark.path.endswith(".gz") else content
    lines = content.splitlines(keepends=True)
    path = folder / f"{benchmark.name}.jsonl"
    path.write_bytes(b"".join(lines[: max(1, round(len(lines) * share))]))
    return benchmark.model_copy(update={"path": str(path)})


def test_benchmark_examples_in_real_pages(texts, test_data, tmp_path):
    for style in (GPT3(), PaLM(), Llama3(), Llama2()):
        ours = index(test_data, tmp_path, style)
        match(ours, texts[:10])
        found = match(ours, texts)
        found.save(str(tmp_path / "m"))
        decision = decide(ours, found, merge(ours, [str(tmp_path / "m")]))
        print_result(
            benchmark=f"benchmarks in real pages, {style.kind}",
            mb_per_cpu_second=round(measure_pace(ours, texts), 1),
            pages=len(texts),
            **decision.compute_counts(),
        )
        assert len(decision.touches) < len(texts) / 100
