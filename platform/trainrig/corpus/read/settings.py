"""The settings of a run file about how the files of a source are read."""

import codecs
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings

# warc includes WET and WAT; text includes .txt and .md; html is a page saved as a file.
Format = Literal["warc", "arc", "jsonl", "parquet", "text", "html"]


class Fields(Settings):
    """Names of the keys of JSON objects, or of the columns of Parquet files, to read.

    A row without its text is counted as unreadable; other keys may be missing.
    """

    text: str = "text"  # key or column of the text
    # Key or column of an HTML page to extract; if set, `text` is not read.
    html: str | None = None
    url: str = "url"  # key or column of the URL
    id: str = "id"  # key or column of the row's own id
    date: str = "date"  # key or column of the date
    metadata: tuple[str, ...] = ()  # further keys or columns to keep with the document, as text

    def list_columns(self) -> list[str]:
        """Return all keys or columns to read, without repetitions."""
        body = self.html if self.html is not None else self.text
        return list(dict.fromkeys([body, self.url, self.id, self.date, *self.metadata]))


class ReadSettings(Settings):
    """Settings of reading, all part of a run's identity, as they decide names and bytes."""

    # Format of the files; None: detected for each file by its first bytes or its name.
    format: Format | None = None
    fields: Fields = Fields()  # names of the keys or columns in JSONL and Parquet
    # Extent of one document in a text file: the file, a line, or a block of lines up to a blank
    # one.
    documents: Literal["file", "line", "block"] = "file"
    encoding: str | None = None  # character encoding of text files; None: detected for each file
    base_url: str = ""  # URL that the relative path of an HTML or text file is appended to
    # Approximate bytes of input (as stored, compressed or not) of one piece; None: a 256th of the
    # source, but at least 4 MiB (a second's work of one core) and at most 64 MiB. The size never
    # depends on the number of workers, because output files are named after pieces.
    piece_bytes: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check_encoding(self) -> Self:
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ValueError(
                    f"encoding {self.encoding!r} is unknown; use one such as 'utf-8' or 'cp1252'"
                ) from None
        return self
