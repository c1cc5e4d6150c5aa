"""Passes over digests of texts and URLs, which find exact repeats.

Each repeat repeats a first; only documents that repeat none are compared by band keys.
"""

import numpy as np

from trainrig.corpus.dedup.decisions.documents import BY_TEXT, BY_URL, DedupDecisions, Documents
from trainrig.corpus.dedup.pairs import equals
from trainrig.corpus.dedup.pairs.document_reference import make_refs, split_digests
from trainrig.corpus.dedup.pairs.sorted_runs import read_part
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch, Kind, mark_left
from trainrig.corpus.urls.key import compute_url_key
from trainrig.splits import Done, Task, Work

_NO_URL = np.frombuffer(compute_url_key(""), np.uint8)


def write_equal_keys(search: DuplicateSearch, kind: Kind) -> Work:
    """Return the work that writes the digests of documents for the search in other partitions.

    Documents that repeat one of their own partition are left out. So a text that is everywhere has
    one row per partition, not one per copy.
    """

    def write(task: Task) -> Done:
        tables = [np.empty(0, equals.DIGEST)]
        gone = np.empty(0, np.uint64)
        if kind == "text" and search.urls:
            gone = search.read_repeats("url", task["number"])
        for number, split_index in search.list_own_indexes(task["number"]):
            documents = Documents.load(split_index, search.keep)
            names = make_refs(number, np.arange(split_index.count))
            wanted = mark_left(gone, number, split_index)
            if kind == "url":
                wanted &= (documents.urls != _NO_URL).any(axis=1)
            if split_index.earlier:
                fell = DedupDecisions.load(split_index.documents).kinds
                wanted &= ~np.isin(fell, [BY_URL] if kind == "url" else [BY_URL, BY_TEXT])
            words = split_digests(documents.urls if kind == "url" else documents.digests)
            rows = equals.digest_rows(words, documents.ranks, documents.ids, names)
            tables.append(rows[wanted])
        rows = np.concatenate(tables)
        again = equals.find_repeated_documents(rows)
        search.write(f"{kind}-own-repeats", task, again, again["ref"])
        search.write_by_key(f"{kind}-keys", task, rows[~np.isin(rows["ref"], again["ref"])])
        return {}, {}

    return write


def write_repeats(search: DuplicateSearch, kind: Kind) -> Work:
    """Return the work that finds repeats and writes each to its own and its first's partition."""

    def find(task: Task) -> Done:
        paths = search.list_runs(f"{kind}-keys", search.partitions)
        found = equals.find_repeated_documents(read_part(paths, task["number"], equals.DIGEST))
        search.write(f"{kind}-repeats-by-ref", task, found, found["ref"])
        search.write(f"{kind}-repeats-by-first", task, found, found["first"])
        return {}, {}

    return find
