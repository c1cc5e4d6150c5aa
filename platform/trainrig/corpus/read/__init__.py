"""Reads files of many formats into pages; damage in a file never stops the reading."""

from collections.abc import Iterator

from trainrig import storage
from trainrig.corpus.read import warc_and_arc
from trainrig.corpus.read.archive_records import ArchiveGrammar, read_archive
from trainrig.corpus.read.compressed_files import LONGEST_MAGIC
from trainrig.corpus.read.input_files import File as File
from trainrig.corpus.read.input_files import find_files as find_files
from trainrig.corpus.read.input_files import find_inputs as find_inputs
from trainrig.corpus.read.input_files import read_first_bytes
from trainrig.corpus.read.input_pieces import InputPiece as InputPiece
from trainrig.corpus.read.input_pieces import cut_pieces as cut_pieces
from trainrig.corpus.read.input_pieces import from_json as from_json
from trainrig.corpus.read.input_pieces import serialise_piece as serialise_piece
from trainrig.corpus.read.raw_pages import Fields as Fields
from trainrig.corpus.read.raw_pages import RawPage as RawPage
from trainrig.corpus.read.raw_pages import ReadSettings as ReadSettings
from trainrig.corpus.read.raw_pages import Unreadable as Unreadable
from trainrig.corpus.read.text_files import read_json, read_jsonl, read_page, read_text


def read(piece: InputPiece, reading: ReadSettings) -> Iterator[RawPage | Unreadable]:
    """Read the pages of `piece` in order, and Unreadable records with a reason to count them by.

    Raises DataError if a Parquet file lacks a column named in `reading`, FileNotFoundError, and
    ClusterError if storage stays unreachable.
    """
    begin = piece.begin
    end = piece.end
    with storage.open_read(piece.path) as stream:
        if piece.format in ("warc", "arc"):
            grammar: ArchiveGrammar = (
                warc_and_arc.WARC_GRAMMAR if piece.format == "warc" else warc_and_arc.ARC_GRAMMAR
            )
            magic = read_first_bytes(piece.path, LONGEST_MAGIC)
            yield from read_archive(stream, piece.name, grammar, magic, begin, end)
        elif piece.format == "jsonl":
            yield from read_jsonl(stream, piece.name, reading.fields, begin, end)
        elif piece.format == "json":
            yield from read_json(stream, piece.name, reading.fields)
        elif piece.format == "parquet":
            # Imported here because it loads pyarrow, which callers that only extract pages do not
            # need.
            from trainrig.corpus.read.parquet_files import read_parquet

            yield from read_parquet(stream, piece.name, reading.fields, begin, end)
        elif piece.format == "text":
            yield from read_text(stream, piece.name, reading, begin, end)
        else:
            yield from read_page(stream, piece.name, reading.base_url)
