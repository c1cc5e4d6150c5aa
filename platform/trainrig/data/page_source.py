"""Pages of input files as a dataset of Ray Data, with a read task for each split."""

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import ray.data
from pydantic import Field
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from trainrig import config, storage
from trainrig.corpus.operators import page_tables
from trainrig.corpus.read import InputPiece, ReadSettings
from trainrig.errors import ConfigError

_UNPACKED = 5  # bytes of pages in a byte of a compressed archive, to tell Ray a size before reading

AnyPath = str | os.PathLike[str]


class _PageSource(config.Settings):
    """Arguments of `read_pages`."""

    source: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    paths: Annotated[tuple[str, ...], config.NOT_IDENTITY] = Field(min_length=1)
    reading: ReadSettings = ReadSettings()


def read_pages(
    paths: AnyPath | Sequence[AnyPath],
    *,
    source: str = "pages",
    reading: ReadSettings | Mapping[str, Any] | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Open WARC, WET, ARC, JSON lines, Parquet, text or HTML files as a dataset of their records.

    Files are grouped and cut into splits as `curate` does, by their sizes alone, and each split is
    read by one task. A row has the page (`url`, `body`, `content_type`, `charset`, `date`,
    `record_id`, `metadata`), its `source`, its `split`, and its number there, `row`. A record that
    could not be read has no `body`: `reason` and `where` say why, and `Extract` drops it.

    Args:
        paths: files, folders and patterns (with * and ?), on disk or in buckets.
        source: name of the pages in the columns `source` and `split`; part of a document's id.
        reading: settings as in the table `reading` of a source of `curate`, such as
            `{"fields": {"text": "content"}}`.
        options: passed to `ray.data.read_datasource`, such as `concurrency` and `num_cpus`.

    Raises ConfigError for an unknown option, and DataError if a pattern matches no file, or if a
    file has an unknown format.

    >>> pages = trainrig.data.read_pages("crawl/*.warc.gz", source="crawl")
    """
    known = inspect.signature(ray.data.read_datasource).parameters  # Ray ignores other options
    for name in options:
        if name not in known:
            hint = config.suggest_choice(name, known)
            raise ConfigError(f"read_pages: no option '{name}'{hint}")
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    keys = {
        "source": source,
        "paths": tuple(storage.make_absolute(os.fspath(path)) for path in named),
        **({} if reading is None else {"reading": reading}),
    }
    given = config.build(_PageSource, keys, "read_pages")
    found, splits = page_tables.cut_source(given.source, given.paths, given.reading)
    sizes = {file.path: file.bytes for file in found.files}
    tasks = [
        _build_task(given, name, pieces, _estimate_bytes(pieces, sizes)) for name, pieces in splits
    ]
    # As many blocks as tasks; with more, Ray would split the output of each task.
    options = {"override_num_blocks": len(tasks), **options}
    dataset: ray.data.Dataset = ray.data.read_datasource(_PagesDatasource(tasks), **options)
    return dataset


class _PagesDatasource(Datasource):
    """Read tasks that are known already."""

    def __init__(self, tasks: Sequence[ReadTask]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tasks = tasks

    def get_name(self) -> str:
        """Return the name of the operator in Ray's progress and statistics, after "Read"."""
        return "Pages"

    def estimate_inmemory_data_size(self) -> int:
        """Return the approximate bytes of all pages."""
        return sum(task.metadata.size_bytes or 0 for task in self._tasks)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each split, whatever `parallelism` is."""
        return [
            ReadTask(task.read_fn, task.metadata, task.schema, per_task_row_limit)
            for task in self._tasks
        ]


def _build_task(
    given: _PageSource, split: str, pieces: Sequence[InputPiece], size: int
) -> ReadTask:
    task = split, given.source, tuple(pieces), given.reading  # not the paths of all splits

    def read_split() -> Iterator[pa.Table]:  # Ray asks for its name if the task is large
        return page_tables.read_pages(*task)

    paths = tuple(dict.fromkeys(piece.path for piece in pieces))
    metadata = BlockMetadata(num_rows=None, size_bytes=size, input_files=paths, exec_stats=None)
    return ReadTask(read_split, metadata, schema=page_tables.PAGE)


def _estimate_bytes(pieces: Sequence[InputPiece], sizes: Mapping[str, int]) -> int:
    """Return the approximate bytes of the pages in `pieces`, from the sizes of their files."""
    stored = 0
    for piece in pieces:
        size = sizes[piece.path]
        if piece.format != "parquet":  # there, `begin` and `end` count row groups
            size = (size if piece.end is None else piece.end) - piece.begin
        stored += size
    return _UNPACKED * stored
