"""Pages as Arrow tables: one row for each record of an input, whether it could be read or not.

A table holds a part of a split. The parts of a split depend on its records alone.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from trainrig.corpus.read import (
    InputPiece,
    RawPage,
    ReadSettings,
    Unreadable,
    cut_pieces,
    find_inputs,
    read,
)
from trainrig.corpus.read.input_files import FoundFiles

log = logging.getLogger(__name__)

PART = 500  # records of a part: some seconds of work for one core, and some tens of MB in memory
PART_BYTES = 64 * 2**20  # bytes of page bodies in a part

Record = RawPage | Unreadable

PAGE = pa.schema(
    [
        ("split", pa.string()),  # name of the split, such as "crawl-00003"
        ("row", pa.int64()),  # number of the record within its split
        ("source", pa.string()),
        ("url", pa.string()),
        ("content_type", pa.string()),
        ("charset", pa.string()),  # declared charset; null if none
        ("date", pa.string()),
        ("record_id", pa.string()),  # id in the file; "" if none
        ("metadata", pa.string()),  # a JSON object of strings from the file
        ("headers", pa.string()),  # a JSON object: response headers about permissions
        ("body", pa.large_binary()),  # null if the record could not be read
        ("where", pa.string()),  # place of a record that could not be read
        ("reason", pa.string()),  # why it could not be read; null if it was
    ]
)
# Columns of a page that are not part of its document.
PAGE_ALONE = ("content_type", "charset", "record_id", "headers", "body", "where", "reason")


def cut_source(
    name: str, paths: Sequence[str], reading: ReadSettings
) -> tuple[FoundFiles, list[tuple[str, list[InputPiece]]]]:
    """Return the files of a source, and its splits: the name of each, and its pieces of files.

    Warns of files of its folders that are not read. Raises DataError if a pattern matches no file,
    or if a file has an unknown format.
    """
    found = find_inputs(paths)
    if others := found.describe_passed_over():
        log.warning("source %s: %s", name, others)
    groups = cut_pieces(found.files, reading)
    return found, [(f"{name}-{number:05d}", group) for number, group in enumerate(groups)]


def read_pages(
    split: str, source: str, pieces: Iterable[InputPiece], reading: ReadSettings
) -> Iterator[pa.Table]:
    """Yield the records of a split as tables of PAGE, in order."""
    first = 0
    records = (record for piece in pieces for record in read(piece, reading))
    for part in split_records(records):
        yield build_page_table(split, source, list(enumerate(part, first)))
        first += len(part)


def split_records(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Split `records` into parts that depend on the records alone, so a resumed run cuts alike.

    A record that is left out counts with its size, because parts may have been cut before that.
    """
    part: list[Record] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.body) if isinstance(record, RawPage) else record.left_out
        if len(part) == PART or size >= PART_BYTES:
            yield part
            part = []
            size = 0
    if part:
        yield part


def build_page_table(split: str, source: str, records: Sequence[tuple[int, Record]]) -> pa.Table:
    """Return the table of `records`, given as (number within the split, record)."""
    rows = [
        {
            "split": split,
            "row": number,
            "source": source,
            **(
                {"where": _replace_surrogates(record.where), "reason": record.reason}
                if isinstance(record, Unreadable)
                else _describe_page(record)
            ),
        }
        for number, record in records
    ]
    return pa.Table.from_pylist(rows, PAGE)


def _describe_page(page: RawPage) -> dict[str, str | bytes | None]:
    return {
        "url": page.url,
        "content_type": page.content_type,
        "charset": page.charset,
        "date": page.date,
        "record_id": page.id,
        "metadata": json.dumps(dict(page.metadata), ensure_ascii=False),
        "headers": json.dumps(dict(page.headers), ensure_ascii=False),
        "body": page.body,
    }


def list_pages(rows: pa.Table) -> list[tuple[int, RawPage]]:
    """Return the pages of `rows` that have a body, each with its index in the table.

    Of the columns of PAGE only `body` has to be there.
    """
    names = ["body", "url", "content_type", "charset", "date", "record_id", "metadata", "headers"]
    nothing = [None] * len(rows)
    columns = [rows[name].to_pylist() if name in rows.column_names else nothing for name in names]
    return [
        (
            index,
            RawPage(
                url=url or "",
                content_type=content_type or "",
                body=body,
                date=date or "",
                charset=charset,
                id=record_id or "",
                metadata=json.loads(metadata or "{}"),
                headers=json.loads(headers or "{}"),
            ),
        )
        for index, row in enumerate(zip(*columns, strict=True))
        for body, url, content_type, charset, date, record_id, metadata, headers in [row]
        if body is not None
    ]


def _replace_surrogates(text: str) -> str:
    """Return `text` with "?" for bytes of a file name that are not UTF-8, which Arrow refuses."""
    return text.encode("utf-8", "replace").decode()
