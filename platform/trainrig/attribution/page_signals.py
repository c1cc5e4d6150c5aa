"""The signals that curation stored with a page: language, scores and counts of its text."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainrig import manifest, storage
from trainrig.corpus.documents import KEPT, read_column_names, read_columns
from trainrig.errors import DataError

# Columns that are the page itself or its origin, which an attribution shows elsewhere.
NOT_SIGNALS = {"text", "html", "url", "id", "source", "metadata", "row"}


def read_signals(corpus: str, rows: Sequence[tuple[str, int]]) -> list[Mapping[str, Any]]:
    """Return the stored signals of documents, each given as its corpus file and its row there.

    `corpus` is the folder that `curate` wrote. A document of another corpus has none. Raises
    DataError if `corpus` is no such folder, or if a file is shorter than its row says.
    """
    manifest.read_input(corpus, "curate")
    found: list[Mapping[str, Any]] = [{} for _ in rows]
    for file in sorted({file for file, _ in rows}):
        path = storage.join(corpus, KEPT, file)
        if not storage.exists(path):
            continue
        names = [name for name in read_column_names(path) if name not in NOT_SIGNALS]
        table = read_columns(path, names)
        for number, (own, row) in enumerate(rows):
            if own != file:
                continue
            if row >= table.num_rows:
                raise DataError(
                    f"{path}: has {table.num_rows:,} documents, but the tokens name row {row:,}; "
                    "name the corpus that the tokens were made of"
                )
            values = table.slice(row, 1).to_pylist()[0]
            found[number] = {k: v for k, v in values.items() if isinstance(v, str | int | float)}
    return found
