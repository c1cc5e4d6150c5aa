"""Reads the texts that a quality model is trained on."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.read import ReadSettings, Unreadable, cut_pieces, find_files, read
from trainrig.errors import DataError


class TextFiles(Settings):
    """Files of texts: curated or other Parquet, JSONL, plain text. Pages must be curated first."""

    # Files, folders and patterns (with the wildcards * and ?), on disk or in buckets.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY] = Field(min_length=1)
    reading: ReadSettings = ReadSettings()  # how the files are split into texts

    def fingerprint(self) -> str:
        """Return a digest of the files' contents. Raises DataError if a path matches nothing."""
        return manifest.digest(
            [storage.compute_content_key(file.path) for file in find_files(self.paths)]
        )

    def read(self) -> Iterator[str]:
        """Yield the texts in the order of the files; unreadable records are skipped.

        Raises DataError for files that contain pages instead of texts.
        """
        for group in cut_pieces(find_files(self.paths), self.reading):
            for piece in group:
                for page in read(piece, self.reading):
                    if isinstance(page, Unreadable):
                        continue
                    if page.content_type.partition(";")[0].strip() != "text/plain":
                        raise DataError(
                            f"{piece.path} contains a page ({page.content_type}), not a "
                            "text; curate it first, and name the folder `kept` of the output"
                        )
                    yield page.body.decode("utf-8", "replace")
