"""Passes that find exact repeats: documents with the URL or the text of another document.

Documents are equal if the digests of their URLs or texts are. Of equal documents, the one that
comes first in the keep order is *the first*, and each other one is a *repeat* of it. Only documents
that are no repeats are then searched for near-duplicates, by their MinHash band keys.

A *ref* is a document's number in the search: its split index, and its position there.
"""

import numpy as np

from trainrig.corpus.dedup.decisions.documents import BY_TEXT, BY_URL, DedupDecisions, Documents
from trainrig.corpus.dedup.pairs import equals
from trainrig.corpus.dedup.pairs.document_reference import make_refs, split_digests
from trainrig.corpus.dedup.pairs.sorted_runs import read_part
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch, Kind, mark_absent
from trainrig.corpus.urls.key import compute_url_key
from trainrig.splits import Done, Task, Work

_NO_URL = np.frombuffer(compute_url_key(""), np.uint8)


def write_digests(search: DuplicateSearch, kind: Kind) -> Work:
    """Return the work that writes the digests of a partition's documents, by ranges of digests.

    `write_repeats` finds repeats across partitions in them. Repeats within the partition are found
    here and left out, so a frequent text has one row per partition, not one per copy.
    """

    def write(task: Task) -> Done:
        tables = [np.empty(0, equals.DIGEST)]
        repeats = np.empty(0, np.uint64)
        if kind == "text" and search.urls:  # the pass over URLs came before
            repeats = search.read_repeats("url", task["number"])
        for number, split_index in search.list_own_indexes(task["number"]):
            documents = Documents.load(split_index, search.keep)
            refs = make_refs(number, np.arange(split_index.count))
            wanted = mark_absent(repeats, number, split_index)
            if kind == "url":
                wanted &= (documents.urls != _NO_URL).any(axis=1)
            if split_index.earlier:  # an earlier run decided, and dropped some by URL or text
                decisions = DedupDecisions.load(split_index.documents).kinds
                wanted &= ~np.isin(decisions, [BY_URL] if kind == "url" else [BY_URL, BY_TEXT])
            digests = split_digests(documents.urls if kind == "url" else documents.digests)
            rows = equals.digest_rows(digests, documents.ranks, documents.ids, refs)
            tables.append(rows[wanted])
        rows = np.concatenate(tables)
        found = equals.find_repeated_documents(rows)
        search.write(f"{kind}-own-repeats", task, found, found["ref"])
        search.write_by_key(f"{kind}-keys", task, rows[~np.isin(rows["ref"], found["ref"])])
        return {}, {}

    return write


def write_repeats(search: DuplicateSearch, kind: Kind) -> Work:
    """Return the work that finds the repeats within a range of digests.

    Each repeat is written twice: to its own partition, which leaves it out of later passes, and to
    the partition of its first, which decides it.
    """

    def find(task: Task) -> Done:
        paths = search.list_runs(f"{kind}-keys", search.partitions)
        found = equals.find_repeated_documents(read_part(paths, task["number"], equals.DIGEST))
        search.write(f"{kind}-repeats-by-ref", task, found, found["ref"])
        search.write(f"{kind}-repeats-by-first", task, found, found["first"])
        return {}, {}

    return find
