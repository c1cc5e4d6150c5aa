"""Near-duplicate search end to end: accuracy of removals, and speed from texts to decisions."""

import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.edited_pages import edit_words
from support.searching import look, shelve
from support.side_by_side import print_result

from trainrig.corpus.curate import curate
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.dedup.candidates import CANDIDATE
from trainrig.corpus.dedup.dedup_decisions import BY_URL
from trainrig.corpus.dedup.document_refs import find_positions
from trainrig.corpus.dedup.sorted_runs import read_part
from trainrig.corpus.documents import compute_document_id
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.normalised_texts import NormalisedTexts
from trainrig.corpus.signatures.shingle_similarity import count_common_shingles
from trainrig.corpus.signatures.signatures import Signatures, compute_keys_and_shingles

pytestmark = pytest.mark.bench

SETTINGS = MinHash()
BLOCK = 2_000_000  # pairs compared at a time
# edited copies of each page, each copy edited more; and the files that they are spread over
TURNS = 16
FILES = 8
Pairs = set[tuple[int, int]]


def find_pairs_by_brute_force(signatures: Signatures, threshold: float) -> Pairs:
    """Return all pairs of documents whose exact Jaccard similarity is at least `threshold`."""
    ends = signatures.ends
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    sizes = ends - starts
    shingles = signatures.shingles.copy()
    shingles.flags.writeable = False
    found: Pairs = set()
    for first in range(len(ends)):
        others = np.arange(first + 1, len(ends))
        ratio = np.minimum(sizes[first], sizes[others]) / np.maximum(sizes[first], sizes[others])
        others = others[ratio >= threshold]
        one = np.full(len(others), first)
        whole = sizes[one] + sizes[others]
        least = np.ceil(threshold * whole / (1 + threshold)).astype(np.int64) - 1
        common = count_common_shingles(
            shingles, starts[one], ends[one], shingles, starts[others], ends[others], least
        )
        alike = (common > 0) & (common >= threshold * (whole - common))
        found.update((first, other) for other in others[alike].tolist())
    return found


def find_components(pairs: Pairs) -> dict[int, int]:
    """Map each document to the lowest-numbered document in its connected component."""
    lowest: dict[int, int] = {}

    def root(document: int) -> int:
        while lowest.setdefault(document, document) != document:
            document = lowest[document]
        return document

    for a, b in pairs:
        a, b = sorted((root(a), root(b)))
        lowest[b] = a
    return {document: root(document) for document in lowest}


def judge_search(
    folder: Path, documents: list[tuple[str, str, str]], labels: list[Any]
) -> dict[str, Any]:
    """Return the accuracy of a search among `documents`, where duplicates share a label."""
    signatures = Signatures.of(documents, SETTINGS)
    found = look(folder, [shelve(folder, "all", signatures)], SETTINGS)
    places = {identity: nth for nth, identity in enumerate(signatures.ids.tolist())}
    removed = [
        (places[identity], places[partner], likeness)
        for identity, (kind, partner, likeness) in found.decisions().items()
        if kind != BY_URL
    ]
    exact = find_pairs_by_brute_force(signatures, SETTINGS.threshold)
    rows = pq.read_table(found.search.split_indexes[0].pairs).to_pylist()
    verified = {
        tuple(sorted((row["a_row"], row["b_row"])))
        for row in rows
        if row["similarity"] >= SETTINGS.threshold
    }
    candidates = read_part(found.search.list_runs("candidates", found.search.parts), 0, CANDIDATE)
    ends = (find_positions(candidates[side]).tolist() for side in "ab")
    guessed = {tuple(sorted(pair)) for pair in zip(*ends, strict=True)}
    # Only one of several equal texts takes part in pairs.
    equal = set(find_positions(found.search.read_repeats("text", 0)).tolist())
    exact = {pair for pair in exact if not equal & set(pair)}
    unverified = [(nth, low) for nth, low in find_components(guessed).items() if nth != low]
    return {
        "documents": len(documents),
        "removed": len(removed),
        "precision_by_label": share(labels[a] == labels[b] for a, b, _ in removed),
        "precision_by_similarity": share(s >= SETTINGS.threshold for _, _, s in removed),
        "pairs_alike": len(exact),
        "recall_of_pairs": share(pair in verified for pair in exact),
        "candidates": len(guessed),
        "unverified_removed": len(unverified),
        "unverified_precision_by_label": share(labels[a] == labels[b] for a, b in unverified),
        "unverified_pairs_alike": share(pair in exact for pair in guessed),
    }


def share(answers: Any) -> float:
    found = list(answers)
    return round(sum(found) / max(1, len(found)), 4)


def test_injected_near_duplicates_are_found(tmp_path: Path) -> None:
    dice = random.Random(4)
    words = [f"word{n}" for n in range(5_000)]
    documents = []
    labels = []
    for family in range(1_000):
        text = " ".join(dice.choices(words, k=400))
        # A replaced word changes 5 of 396 shingles in both sets. So n replacements leave a
        # similarity of about (396 - 5 n) / (396 + 5 n), from .95 down to .5.
        texts = [text, *(edit_words(text, n, dice) for n in (2, 4, 6, 8, 10, 13, 20, 26))]
        for number, fixture_text in enumerate(texts):
            identity = compute_document_id("planted", f"{family}/{number}", fixture_text.encode())
            documents.append((identity, f"http://a/{family}/{number}", fixture_text))
            labels.append(family)
    result = judge_search(tmp_path, documents, labels)
    print(json.dumps({"benchmark": "planted near-duplicates", **result}))
    assert result["precision_by_label"] >= 0.98 and result["precision_by_similarity"] == 1
    assert result["recall_of_pairs"] >= 0.95


@pytest.mark.data
def test_versions_of_real_pages(
    pages: list[tuple[str, str]], test_data: Path, tmp_path: Path
) -> None:
    lines = (test_data / "crawl" / "manifest.jsonl").read_text().splitlines()
    # The path without its version: "2.3/reference/…" and "1.13/reference/…" are the same page.
    label = {row["url"]: row["path"].partition("/")[2] for row in map(json.loads, lines)}
    documents = [
        (compute_document_id("crawl", url, text.encode()), url, text) for url, text in pages
    ]
    labels = [label.get(url, url) for url, _ in pages]
    result = judge_search(tmp_path, documents, labels)
    print(json.dumps({"benchmark": "versions of real pages", **result}))
    assert result["precision_by_similarity"] == 1
    assert result["recall_of_pairs"] >= 0.95


@pytest.mark.data
def test_from_parquet_to_fates(pages: list[tuple[str, str]], tmp_path: Path) -> None:
    dice = random.Random(1)
    texts = [edit_words(text, slot * 3, dice) for slot in range(8) for _, text in pages]
    rows = [
        (compute_document_id("crawl", str(n), b""), f"http://a/{n}", t) for n, t in enumerate(texts)
    ]
    columns = zip(("id", "url", "text"), zip(*rows, strict=True), strict=True)
    table = pa.table({name: list(values) for name, values in columns})
    paths = [str(tmp_path / f"{number}.parquet") for number in range(4)]
    for number, path in enumerate(paths):
        pq.write_table(table.slice(number * len(rows) // 4, len(rows) // 4), path)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    Signatures.from_table(table.slice(0, 50), SETTINGS)  # compiles the kernels
    look(tmp_path / "first", [shelve(tmp_path / "first", "0", Signatures.of(rows[:50], SETTINGS))],
         SETTINGS)  # fmt: skip
    rounds: dict[str, list[float]] = defaultdict(list)
    for slot in range(5):
        folder = tmp_path / str(slot)
        began = time.process_time()
        tables = [pq.read_table(path) for path in paths]
        read = time.process_time()
        for batch_table in tables:
            compute_keys_and_shingles(NormalisedTexts.from_arrow(batch_table["text"]), SETTINGS)
        hashed = time.process_time() - read
        read = time.process_time()
        began += hashed
        signed = [Signatures.from_table(signed_table, SETTINGS) for signed_table in tables]
        made = time.process_time()
        split_indexes = [shelve(folder, str(n), signatures) for n, signatures in enumerate(signed)]
        kept = time.process_time()
        found = look(folder, split_indexes, SETTINGS)
        done = time.process_time()
        rounds["read"].append(read - began)
        rounds["sign"].append(made - read)
        rounds["write_signatures"].append(kept - made)
        rounds["search"].append(done - kept)
        rounds["in_memory"].append(made - read + done - kept)
        # This leaves out the digests of texts and URLs that find equal documents.
        rounds["near_duplicates_in_memory"].append(hashed + done - kept)
        rounds["all"].append(done - began)
    print_result(
        benchmark="near-duplicates, from Parquet to decisions",
        documents=len(rows),
        megabytes=round(megabytes, 1),
        removed=len(found.decisions()),
        candidates=found.found.candidates,
        mb_per_cpu_second={
            name: [round(megabytes / t, 1) for t in (np.median(times), max(times), min(times))]
            for name, times in rounds.items()
        },
    )
    assert megabytes / np.median(rounds["all"]) >= 40
    assert megabytes / np.median(rounds["near_duplicates_in_memory"]) >= 80


@pytest.mark.data
@pytest.mark.ray
@pytest.mark.timeout(3600)
def test_passes_by_ray_compared_with_one_process(
    pages: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Alternate a curation's dedup passes by two workers with the same passes in this process.

    Figures are wall seconds on an idle machine, of a corpus that takes four partitions.
    """
    dice = random.Random(1)
    texts = [edit_words(text, slot * 3, dice) for slot in range(TURNS) for _, text in pages]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    for number in range(FILES):
        some = texts[number::FILES]
        rows = {"text": some, "url": [f"http://a/{number}/{n}" for n in range(len(some))]}
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(pa.table(rows), tmp_path / "in" / f"{number}.parquet")
    source = CurationSource(name="web", paths=(str(tmp_path / "in"),), filters=())
    took: dict[int, list[float]] = defaultdict(list)
    removed = set()
    for slot in range(2):
        for workers in (2, 0):
            made = curate(
                Curation(
                    output=str(tmp_path / f"out-{slot}-{workers}"),
                    sources=(source,),
                    workers=workers,
                    memory=600,  # MiB
                )
            )
            took[workers].append(made.cost["seconds_sign"] + made.cost["seconds_search"])
            removed.add(made.counts["dropped_by"]["near_duplicate"])
    ratios = [alone / (2 * by_two) for alone, by_two in zip(took[0], took[2], strict=True)]
    print_result(
        benchmark="near-duplicates by Ray, per core, against one process",
        documents=len(texts),
        megabytes=round(megabytes, 1),
        seconds={str(workers): times for workers, times in took.items()},
        ratio=[round(r, 3) for r in (np.median(ratios), min(ratios), max(ratios))],
    )
    assert len(removed) == 1
    assert np.median(ratios) >= 0.6
