"""How the files of a source are read; what a run file says of it."""

import codecs
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings

# warc: also WET and WAT; text: .txt, .md; html: files saved from the web or made by a tool.
Format = Literal["warc", "arc", "jsonl", "parquet", "text", "html"]


class Fields(Settings):
    """Which key of a JSON object, or column of a Parquet file, holds what.

    A row without its text is counted as unreadable; the others may be missing from it.
    """

    text: str = "text"  # key or column of the text
    # Key or column of an HTML page to extract; where it is named, `text` is not read.
    html: str | None = None
    url: str = "url"  # key or column of the URL
    id: str = "id"  # key or column of the row's own id
    date: str = "date"  # key or column of the date
    metadata: tuple[str, ...] = ()  # further keys or columns to keep beside the document, as text

    def list_columns(self) -> list[str]:
        """All that are read, each once."""
        body = self.html if self.html is not None else self.text
        return list(dict.fromkeys([body, self.url, self.id, self.date, *self.metadata]))


class ReadSettings(Settings):
    """How files become pages. All of it is part of what a run is: it decides names and bytes."""

    # Format of the files; None: found out for each by its first bytes, else by its name.
    format: Format | None = None
    fields: Fields = Fields()  # which keys or columns of JSONL and Parquet hold what
    # What one document of a text file is: the file, a line, or a block of lines up to a blank one.
    documents: Literal["file", "line", "block"] = "file"
    encoding: str | None = None  # character encoding of text files; None: found out for each
    base_url: str = ""  # URL that the relative path of an HTML or text file is appended to
    # Bytes of input (as stored: packed) that one piece has about; None: a 256th of the source's,
    # but not under 4 MiB (a second of one core's work) nor above 64 MiB. It goes by the input and
    # never by the number of workers, because each piece names files of the output.
    piece_bytes: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _encoding_is_known(self) -> Self:
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ValueError(
                    f"no encoding is named {self.encoding!r}; 'utf-8', 'cp1252', 'shift_jis' are"
                ) from None
        return self
