"""The stage `embed`: documents in their order, each with a vector that a model gives it.

OUT/  documents-00000.parquet …  with `id`, `url`, `source` and `embedding`, float32

A file is made from one split of the documents, and splits depend on the files alone; within a
split, pieces of text are read in batches of a fixed size. So the bytes are the same at any number
of workers.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate.embed.run_file import DocumentEmbedding
from trainrig.manifest import FileSum, Manifest
from trainrig.ray_runtime.ray_session import Progress, connect, map_splits
from trainrig.splits import Phase, Work, sum_counts
from trainrig.tokens.documents.document_set import DocumentSet, RefusedRow, open_documents
from trainrig.train import checkpoint

TEXTS = 256  # embedded at a time: batches begin anew with each so many


def embed(run: DocumentEmbedding, progress: Progress | None = None) -> Manifest:
    """Write the vectors of the documents that `run` names; the manifest of their folder.

    Raises ConfigError for a model that cannot do it, DataError for what is no document, and if
    there is not one.
    """
    documents = open_documents(run.documents)
    model = checkpoint.resolve(storage.make_absolute(run.checkpoint))
    inputs = {**documents.inputs, "checkpoint": checkpoint.compute_content_key(model)}
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        from trainrig.evaluate.embed.embedder import TextEmbedder

        # A model that cannot do it is refused before workers start.
        channels = TextEmbedder.open(model, run.sequence_length).channels
        splits = documents.cut_splits(run.shard_bytes)
        phase = Phase(
            stage.build_path(manifest.SCRATCH), functools.partial(_make_work, run, model, documents)
        )
        if run.workers:
            connect(run.workers, "workers")
        map_splits(phase, splits, run.workers, progress)
        records = phase.read_results(splits)
        counts = sum_counts(record.counts for record in records)
        if not counts["documents"]:
            raise DataError(
                f"documents: not one to embed ({sum_counts([counts['refused']])} refused)"
            )
    files = {name: entry for each in records for name, entry in each.files.items()}
    return stage.finish({**counts, "channels": channels}, files)


def _make_work(run: DocumentEmbedding, model: str, documents: DocumentSet) -> Work:
    """The work on one split of the documents."""
    import torch

    from trainrig.evaluate.embed.embedder import TextEmbedder

    torch.set_num_threads(run.threads)
    embedder = TextEmbedder.open(model, run.sequence_length)
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("url", pa.string()),
            ("source", pa.string()),
            ("embedding", pa.list_(pa.float32(), embedder.channels)),
        ]
    )

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        refused: list[RefusedRow] = []
        rows, written = documents.read_rows(task, refused.append), 0
        file = f"{task['name']}.parquet"
        path = storage.join(run.output, file)
        with storage.atomic_file(path) as local, pq.ParquetWriter(local, schema) as writer:
            while batch := list(itertools.islice(rows, TEXTS)):
                vectors = embedder.embed([row["text"] for row in batch], run)
                columns = {name: [row[name] for row in batch] for name in ("id", "url", "source")}
                flat = pa.array(vectors.reshape(-1), type=pa.float32())
                column = pa.FixedSizeListArray.from_arrays(flat, embedder.channels)
                writer.write_table(pa.table({**columns, "embedding": column}, schema=schema))
                written += len(batch)
        reasons = dict(Counter(each.reason for each in refused))
        return {"documents": written, "refused": reasons}, {file: manifest.compute_file_sum(path)}

    return work
