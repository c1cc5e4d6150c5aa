"""The stage `embed`: a vector for each document, in the order of the documents.

OUT/  documents-00000.parquet …  with `id`, `url`, `source` and `embedding`, float32
      duplicates/documents-00000.parquet …  clusters and semantic duplicates, if wanted
      quarantine/documents-00000.jsonl …  rows that are no documents, with the reasons

Each output file is made from one split of the documents, and splits depend only on the input files.
Within a split, pieces of text are read in batches of a fixed size. So the output is bit-identical
at any number of workers.

A finished output may be extended by other settings of semantic duplicates, which read no text.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.corpus.documents import Replacement
from trainrig.errors import DataError
from trainrig.evaluate.engine.embed_operator import TEXTS, embed_texts
from trainrig.evaluate.engine.embed_run_file import DocumentEmbedding
from trainrig.evaluate.engine.semantic_duplicates import SemanticSearch, forget_searches
from trainrig.manifest import FileSum, Manifest, Stage
from trainrig.ray_runtime.ray_session import connect, join
from trainrig.ray_runtime.split_processing import Progress, map_splits
from trainrig.splits import Phase, RecordSelection, SplitRecord, Work, sum_counts
from trainrig.tokens.document_set import (
    DocumentSet,
    RefusedRow,
    open_documents,
    write_quarantine,
)
from trainrig.tokens.left_out_documents import DUPLICATES
from trainrig.train import checkpoint


def embed(run: DocumentEmbedding, progress: Progress | None = None) -> Manifest:
    """Write the vectors of the documents that `run` names, and return the manifest of the output.

    Raises ConfigError if the model cannot embed, and DataError if there is no document to embed.
    """
    Replacement(run.output).go_on()
    documents = open_documents(run.documents)
    model = checkpoint.resolve(storage.make_absolute(run.checkpoint))
    inputs = {**documents.inputs, "checkpoint": checkpoint.compute_content_key(model)}
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        vectors = (
            _select_vectors(stage.before)
            if stage.before
            else _embed_documents(run, stage, model, documents, progress)
        )
    counts = dict(vectors.counts)
    files = dict(vectors.files)
    scratch = stage.build_path(manifest.SCRATCH)
    # A finished output stays complete until all of its other tables are written.
    target = storage.join(scratch, _NEW) if stage.before else run.output
    if run.semantic_duplicates:
        if run.workers:
            join()
        splits = sorted(name.removesuffix(".parquet") for name in files if _is_vector_file(name))
        search = SemanticSearch(
            run.semantic_duplicates, run.output, target, tuple(splits), scratch, run.workers
        )
        counts[COUNTS], found = search.run()
        files |= found
    elif not stage.before:
        forget_searches(scratch)
        storage.delete_folder(stage.build_path(DUPLICATES))
    if stage.before:
        Replacement(run.output).begin(stage.build_manifest(counts, files), target)
        return manifest.read_manifest(run.output)
    return stage.finish(counts, files)


COUNTS = "semantic_duplicates"  # key of the manifest's counts
_NEW = "new"  # folder of tables for a finished output, until all are written


def _select_vectors(before: Manifest) -> SplitRecord:
    """Return the counts and files of a finished output, except its semantic duplicates."""
    counts = {name: count for name, count in before.counts.items() if name != COUNTS}
    files = {
        name: entry for name, entry in before.files.items() if not name.startswith(f"{DUPLICATES}/")
    }
    return SplitRecord(name="vectors", counts=counts, files=files)


def _is_vector_file(name: str) -> bool:
    return name.endswith(".parquet") and "/" not in name


def _embed_documents(
    run: DocumentEmbedding,
    stage: Stage,
    model: str,
    documents: DocumentSet,
    progress: Progress | None,
) -> SplitRecord:
    """Write the vectors of all documents; return their counts and files."""
    from trainrig.evaluate.engine.text_embedder import check_embeds

    # A model that cannot embed is refused before workers start. Its weights are not read: this
    # process may run on the head of a cluster.
    config, _ = checkpoint.describe(model)
    check_embeds(config, model, run.sequence_length)
    splits = documents.cut_splits(run.shard_bytes)
    work = functools.partial(_make_work, run, model, documents)
    scratch = stage.build_path(manifest.SCRATCH)
    memory = checkpoint.estimate_worker_memory(model)
    phase = Phase(scratch, work, True, "embed: embed documents", memory)
    if run.workers:
        connect(run.workers, "workers", models=True)
    map_splits(phase, splits, run.workers, progress, models=True)
    records = phase.read_results(splits)
    counts = sum_counts(record.counts for record in records)
    if not counts["documents"]:
        raise DataError(
            f"documents: no document can be embedded ({sum_counts([counts['refused']])} "
            "refused); see quarantine/ for the reasons"
        )
    files = {name: entry for record in records for name, entry in record.files.items()}
    return SplitRecord(name="vectors", counts={**counts, "channels": config.channels}, files=files)


def _make_work(run: DocumentEmbedding, model: str, documents: DocumentSet) -> Work:
    """Return the function that a worker calls for each split of the documents."""
    import torch

    from trainrig.evaluate.engine.text_embedder import TextEmbedder

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
        records = RecordSelection(task)
        rows = documents.read_rows(task, refused.append, records)
        batches = iter(lambda: list(itertools.islice(rows, TEXTS)), [])
        embedded = (
            (batch, embed_texts(embedder, [row["text"] for row in batch], run)) for batch in batches
        )
        if records.probing:
            for _ in embedded:
                pass
            return records.build_probe_counts(), {}
        written = 0
        file = f"{task['name']}.parquet"
        path = storage.join(run.output, file)
        with storage.atomic_file(path) as local, pq.ParquetWriter(local, schema) as writer:
            for batch, vectors in embedded:
                columns = {name: [row[name] for row in batch] for name in ("id", "url", "source")}
                writer.write_table(pa.table({**columns, "embedding": vectors}, schema=schema))
                written += len(batch)
        reasons = dict(Counter(row.reason for row in refused))
        files = {file: manifest.compute_file_sum(path)}
        files |= write_quarantine(run.output, task["name"], refused)
        return {"documents": written, "refused": reasons}, files

    return work
