"""The signals that curation stored with a page: language, scores and counts of its text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainrig import manifest, storage
from trainrig.corpus.documents import KEPT, read_column_names, read_columns
from trainrig.errors import DataError

# Columns that are the page itself or its origin, which an attribution shows elsewhere.
NOT_SIGNALS = {"text", "html", "url", "id", "source", "metadata", "row"}


class CorpusRow(NamedTuple):
    """A document of a curated corpus, as the tokens name it."""

    file: str
    row: int
    id: str


def read_signals(corpus: str, rows: Sequence[CorpusRow]) -> list[Mapping[str, Any]]:
    """Return the stored signals of documents.

    `corpus` is the folder that `curate` wrote. A document of another corpus has none. Raises
    DataError if `corpus` is no such folder, or if one of its rows is another document.
    """
    manifest.read_input(corpus, "curate")
    found: list[Mapping[str, Any]] = [{} for _ in rows]
    for file in sorted({row.file for row in rows}):
        path = storage.join(corpus, KEPT, file)
        if not storage.exists(path):
            continue
        names = [name for name in read_column_names(path) if name not in NOT_SIGNALS]
        table = read_columns(path, ["id", *names])
        for number, wanted in enumerate(rows):
            if wanted.file != file:
                continue
            values = dict(*table.slice(wanted.row, 1).to_pylist())
            if values.pop("id", None) != wanted.id:
                raise DataError(
                    f"{path}: row {wanted.row:,} is not the document {wanted.id} that the tokens "
                    "name; name the corpus that the tokens were made of"
                )
            found[number] = {k: v for k, v in values.items() if isinstance(v, str | int | float)}
    return found
