"""Last phase of substring removal: compute the spans to remove, in characters."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup import sliced_file
from trainrig.corpus.dedup.span_file import RemovedSpans, save_spans
from trainrig.corpus.dedup.substrings.flat import encode_texts
from trainrig.corpus.dedup.substrings.report import save_repeated_texts
from trainrig.corpus.dedup.substrings.spans import SPAN, unite_spans


def cut_substrings(
    batches: Iterable[Sequence[str]],
    repeats: Sequence[str],
    split: int,
    path: str,
    repeated_texts: str,
) -> dict[str, int]:
    """Compute the spans to remove from the texts of a split, and write them to `path` (phase 5).

    The texts must be those of phase 1; `repeats` are the files of phase 4, and `split` is the
    position of this split among the files of phase 3. A span that begins or ends within a character
    is shortened to whole characters, so that every removed byte is a repeat. The removed texts are
    counted in the file `repeated_texts`, for `read_repeated_texts`. It takes twice the memory of a
    batch, that of the removed texts, and 72 bytes per span.

    Returns the numbers of `documents` and `bytes`, each also as `…_cut`, and `spans_cut`.
    """
    found = [sliced_file.load(file, SPAN, split, split + 1) for file in repeats]
    spans = unite_spans(np.concatenate([np.empty(0, SPAN), *found]))
    columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    cut: list[bytes] = []
    documents = size = 0
    for texts in batches:
        data = encode_texts(texts)
        first, end = np.searchsorted(spans["document"], [documents, documents + len(texts)])
        own = np.array(spans["document"][first:end]) - documents
        base = data.starts_D1[own]
        begins, ends, starts, stops = _align_to_characters(
            data.data,
            data.starts_D1,
            own,
            base + spans["start"][first:end],
            base + spans["end"][first:end],
        )
        there = stops > starts
        for column, values in zip(columns, (own + documents, starts, stops), strict=True):
            column.append(values[there])
        pairs = zip(begins[there].tolist(), ends[there].tolist(), strict=True)
        cut += [data.data[begin:end].tobytes() for begin, end in pairs]
        documents += len(texts)
        size += len(data.data)
    in_characters = RemovedSpans(*map(np.concatenate, columns))
    save_spans(path, in_characters)
    save_repeated_texts(repeated_texts, cut)
    return {
        "documents": documents,
        "documents_cut": len(np.unique(in_characters.documents)),
        "bytes": size,
        "bytes_cut": sum(map(len, cut)),
        "spans_cut": len(cut),
    }


@compile_nogil
def _align_to_characters(
    data: NDArray[np.uint8],
    document_starts: NDArray[np.int64],
    documents: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Shorten each span to whole characters.

    Returns begin and end in bytes of `data`, then start and stop in characters of the document.
    """
    begins = begins.copy()
    ends = ends.copy()
    starts = np.empty_like(begins)
    stops = np.empty_like(begins)
    at = characters = 0
    for span in range(len(documents)):
        document = documents[span]
        if span == 0 or document != documents[span - 1]:
            at = document_starts[document]
            characters = 0
        begin = begins[span]
        end = ends[span]
        while begin < end and data[begin] & 0xC0 == 0x80:  # within a character
            begin += 1
        while end > begin and end < document_starts[document + 1] and data[end] & 0xC0 == 0x80:
            end -= 1
        while at < begin:
            characters += data[at] & 0xC0 != 0x80
            at += 1
        starts[span] = characters
        while at < end:
            characters += data[at] & 0xC0 != 0x80
            at += 1
        stops[span] = characters
        begins[span] = begin
        ends[span] = end
    return begins, ends, starts, stops
