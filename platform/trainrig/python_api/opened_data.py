"""Opened data: documents of `curate`, token shards, and the index of `trainrig index`."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainrig import storage
from trainrig.attribution import corpus_index
from trainrig.attribution.corpus_index import CorpusIndex
from trainrig.config import suggest_choice
from trainrig.corpus.documents import DROPPED, KEPT, read_column_names, read_columns
from trainrig.errors import ConfigError
from trainrig.manifest import Manifest, read_input
from trainrig.python_api.html_tables import render_html_table
from trainrig.tokens.inspection import Inspection, SourceCounts
from trainrig.tokens.shards.token_shards import TRAIN
from trainrig.tokens.tokenizers.encode import Encoder


@dataclass(frozen=True)
class OpenedDocuments:
    """The documents of a curation, kept and dropped ones.

    The files are Parquet, so `ray.data.read_parquet`, DuckDB and `datasets` read them too: see
    `list_files`.
    """

    path: str  # folder that `curate` wrote
    manifest: Manifest  # content of `manifest.json`

    @property
    def counts(self) -> dict[str, Any]:
        """The counts of the curation, as in `manifest.json`."""
        return self.manifest.counts

    def list_files(self, part: str = KEPT) -> list[str]:
        """Return the paths of the Parquet files of a part: "kept" or "dropped".

        >>> documents = trainrig.open_documents("documents")
        >>> ray.data.read_parquet(documents.list_files())
        """
        if part not in (KEPT, DROPPED):
            raise ConfigError(
                f"no part '{part}' of documents{suggest_choice(part, (KEPT, DROPPED))}"
            )
        names = sorted(name for name in self.manifest.files if name.startswith(f"{part}/"))
        return [storage.join(self.path, name) for name in names]

    def kept(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the kept documents; `columns` limits them to these columns.

        >>> trainrig.open_documents("documents").kept(["url", "text"]).to_pandas()
        """
        return self._read(KEPT, columns)

    def dropped(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the dropped documents; the column `dropped_by` names the rule.

        >>> trainrig.open_documents("documents").dropped(["url", "dropped_by"]).to_pandas()
        """
        return self._read(DROPPED, columns)

    def iterate(self, part: str = KEPT, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the documents of one file after another, for data that exceed the memory.

        Raises ConfigError for a column that the files do not have.
        """
        for path in self.list_files(part):
            there = read_column_names(path)
            for name in columns or ():
                if name not in there:
                    raise ConfigError(f"{path}: no column '{name}'{suggest_choice(name, there)}")
            yield read_columns(path, columns or there)

    def _read(self, part: str, columns: Sequence[str] | None) -> pa.Table:
        tables = list(self.iterate(part, columns))
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def _repr_html_(self) -> str:
        return render_html_table(self.path, self.counts)


@dataclass(frozen=True)
class OpenedTokens:
    """Token shards with the tokenizer that made them, by split ("train", "held_out") and source."""

    path: str  # folder of the shards, or one split in it
    inspection: Inspection  # the object behind the command `tokens inspect`

    @property
    def tokenizer(self) -> Encoder:
        """The tokenizer: `encode_batch(["a text"])` and `decode(ids)`."""
        return self.inspection.encoder

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that are there."""
        return tuple(self.inspection.splits)

    def list_sources(self, split: str = TRAIN) -> tuple[str, ...]:
        """Return the names of the sources of a split."""
        return self.inspection.find_split(split).sources

    def count(self) -> dict[str, dict[str, SourceCounts]]:
        """Return exact counts of documents and tokens by split, then by source.

        >>> trainrig.open_tokens("tokens").count()["train"]["web"].tokens
        """
        return self.inspection.count_sources()

    def documents(self, source: str, split: str = TRAIN) -> Iterator[dict[str, Any]]:
        """Yield the documents of a source, in order, with `id`, `url`, `tokens`, `ids` and `text`.

        >>> next(trainrig.open_tokens("tokens").documents("web"))["text"]
        """
        yield from self.inspection.iterate_documents(split, source)

    def read(self, source: str, start: int, length: int, split: str = TRAIN) -> NDArray[Any]:
        """Return `length` ids of a source from position `start` on, end-of-text ids included.

        >>> tokens = trainrig.open_tokens("tokens")
        >>> tokens.tokenizer.decode(tokens.read("web", 0, 100))
        """
        shards = self.inspection.find_split(split, source)
        return np.asarray(shards.read_window(source, start, length))

    def _repr_html_(self) -> str:
        rows = {
            f"{split} · {source}": f"{found.documents:,} documents, {found.tokens:,} tokens"
            for split, by_source in self.count().items()
            for source, found in by_source.items()
        }
        return render_html_table(self.path, rows)


def open_documents(path: str | os.PathLike[str]) -> OpenedDocuments:
    """Open a folder that `curate` wrote. Raises DataError for another folder, or a missing file.

    >>> documents = trainrig.open_documents("documents")
    >>> documents.counts["documents_kept"]
    """
    folder = os.fspath(path).rstrip("/")
    return OpenedDocuments(folder, read_input(folder, "curate"))


def open_tokens(path: str | os.PathLike[str]) -> OpenedTokens:
    """Open token shards that `tokenize` or `encode_conversations` wrote.

    Raises DataError if `path` is no such folder, or if a file is missing.

    >>> tokens = trainrig.open_tokens("tokens")
    >>> tokens.splits
    """
    folder = os.fspath(path).rstrip("/")
    return OpenedTokens(folder, Inspection.open(folder))


def open_index(path: str | os.PathLike[str], verify: bool = False) -> CorpusIndex:
    """Open the index that `trainrig index` wrote, to find the training documents of a text.

    `verify` reads all files of the index and of its tokens, and compares them with their sums.
    Raises DataError if the index is unfinished or damaged. `trainrig.attribution` has its classes.

    >>> index = trainrig.open_index("quickstart/index")
    >>> index.count(index.encode("the standard library"))
    >>> index.predict_next(index.encode("import")).total
    """
    return corpus_index.open_index(path, verify)
