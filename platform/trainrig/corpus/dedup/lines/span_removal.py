"""Last phase of common-line removal: locate the common lines in the texts of a split."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup import key_file
from trainrig.corpus.dedup.lines.counting import LINE, Batch
from trainrig.corpus.dedup.lines.normal_form import NormalForm
from trainrig.corpus.dedup.lines.settings import CommonLines
from trainrig.corpus.dedup.lines.units import Units, find_units
from trainrig.corpus.dedup.span_file import RemovedSpans, save_spans


def cut_lines(
    batches: Iterable[Batch], common: Sequence[str], settings: CommonLines, path: str
) -> dict[str, int]:
    """Find the spans to remove from the texts of a split, and write them to `path` (phase 3).

    The texts must be those of phase 1; `common` are the files of phase 2. A line is removed with
    its newline, a paragraph with the blank lines after it. At the end of a text without a final
    newline, the newline before it is removed instead. Documents in the file are numbered within the
    split. It takes the memory of a batch, one file of `common`, and 48 bytes per line. Returns the
    numbers of `documents`, `lines` and `characters`, each also as `…_cut`.
    """
    normal_form = NormalForm()
    found = []
    numbers = []
    documents = 0
    characters = 0
    for texts, numbers_of in batches:
        units = find_units(texts, settings, normal_form)
        found.append(dataclasses.replace(units, documents_U=units.documents_U + documents))
        numbers.append(numbers_of)
        documents += len(texts)
        characters += sum(map(len, texts))
    units = Units.concatenate(found)
    number_D = np.concatenate([np.empty(0, np.int64), *numbers])
    goes_U = _mark_cut_units(units, number_D, common, settings)
    spans = _find_spans(units, goes_U)
    save_spans(path, spans)
    return {
        "documents": documents,
        "documents_cut": len(np.unique(spans.documents)),
        "lines": len(goes_U),
        "lines_cut": int(goes_U.sum()),
        "characters": characters,
        "characters_cut": int((spans.ends - spans.starts).sum()),
    }


def _mark_cut_units(
    units: Units, number_D: NDArray[np.int64], common: Sequence[str], settings: CommonLines
) -> NDArray[np.bool_]:
    """Return which units are removed, as a mask."""
    long = np.flatnonzero(units.lengths_U >= settings.min_characters)
    keys = units.keys_U[long]
    goes = np.zeros(len(units.keys_U), bool)
    for records in key_file.find(keys, common, LINE):
        there = records["key"] != 0
        hits = long[there]
        firsts = records["first"][there]
        goes[hits] = True
        if settings.keep_first:
            at_home = hits[number_D[units.documents_U[hits]] == firsts]
            _, first = np.unique(units.keys_U[at_home], return_index=True)
            goes[at_home[first]] = False
    return goes


def _find_spans(units: Units, goes_U: NDArray[np.bool_]) -> RemovedSpans:
    """Merge runs of consecutive removed units into spans."""
    removed = np.flatnonzero(goes_U)
    follows = np.zeros(len(removed), bool)  # true if the unit before is removed as well
    documents = units.documents_U[removed]
    follows[1:] = (np.diff(removed) == 1) & (documents[1:] == documents[:-1])
    heads = removed[~follows]
    tails = removed[np.append(~follows[1:], True)[: len(removed)]]
    starts = units.starts_U[heads]
    ends = units.nexts_U[tails]
    # At the end of a text without a final newline, the newline before it is removed.
    before = np.maximum(heads - 1, 0)
    inner = (heads > 0) & (units.documents_U[before] == units.documents_U[heads])
    last = inner & (ends == units.ends_U[tails])
    return RemovedSpans(
        units.documents_U[heads], np.where(last, units.ends_U[before], starts), ends
    )
