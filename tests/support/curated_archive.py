"""A curation of one archive, `pages.warc.gz` in a folder, and the rows that it wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from trainrig import config
from trainrig.corpus.curation_settings import Curation


def build_curation(folder: Path, source: Mapping[str, Any]) -> Curation:
    """Return a run on the archive in `folder` into `folder/out`, with further keys of its source.

    Only equal texts are near-duplicates.
    """
    given = {"name": "web", "paths": [str(folder / "pages.warc.gz")], **source}
    others = {"near_duplicates": {"threshold": 1.0}, "workers": 0, "sources": [given]}
    return config.build(Curation, {"stage": "curate", "output": str(folder / "out"), **others}, "r")


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return all rows of `folder/out`, kept and dropped, by the last part of their URL."""
    tables = [pq.read_table(path) for path in folder.glob("out/*/*.parquet") if "web" in path.name]
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["url"].rpartition("/")[2]: row for row in rows}
