"""The two stages between documents and batches: `tokenizer` trains one, `tokenize` applies it.

TOKENIZER/  tokenizer.json
TOKENS/     tokenizer.json  train/documents-00000.{bin,index.parquet} …  held_out/…
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from trainrig import manifest, storage
from trainrig.config import PLACE, RunFile
from trainrig.corpus.curate import KEPT
from trainrig.errors import DataError
from trainrig.manifest import FileSum, Manifest
from trainrig.ray_session import Progress, connect, map_splits
from trainrig.splits import Phase, Split, Work, total
from trainrig.tokens.encode import Encoder
from trainrig.tokens.held_out import held_out
from trainrig.tokens.sample import draw_sample
from trainrig.tokens.shards import (
    HELD_OUT,
    INDEX,
    TOKENS,
    TRAIN,
    EncodedDocument,
    Vocabulary,
    write_shard,
)
from trainrig.tokens.train import ByteLevelBPE, Tokenizer, train_tokenizer

TOKENIZER_FILE = "tokenizer.json"
BATCH_ROWS = 256  # documents encoded at a time: enough to keep the tokenizer's loop in Rust


class TokenizerTraining(RunFile):
    """`trainrig tokenizer`: a tokenizer from a sample of curated documents."""

    verb: ClassVar[str] = "tokenizer"

    stage: Literal["tokenizer"] = "tokenizer"
    documents: Annotated[str, PLACE]  # folder that `curate` wrote
    output: Annotated[str, PLACE]
    tokenizer: Tokenizer = ByteLevelBPE()


class Tokenization(RunFile):
    """`trainrig tokenize`: curated documents to token shards."""

    verb: ClassVar[str] = "tokenize"

    stage: Literal["tokenize"] = "tokenize"
    documents: Annotated[str, PLACE]  # folder that `curate` wrote
    tokenizer: Annotated[str, PLACE]  # folder that `tokenizer` wrote
    output: Annotated[str, PLACE]
    workers: Annotated[int, PLACE] = Field(default=2, ge=0)  # 0: in this process, without Ray
    held_out: float = Field(default=0.01, ge=0, lt=1)  # share of documents, by hash of URL, or id


def make_tokenizer(run: TokenizerTraining) -> Manifest:
    """Train the tokenizer that `run` describes; the manifest of its folder."""
    documents = manifest.read_input(run.documents, "curate")
    stage = manifest.claim(run.output, run, {"documents": documents.content})
    if stage.finished:
        return stage.finished
    texts = draw_sample(
        ((row["id"], row["text"]) for path in _kept(run.documents) for row in _rows(path)),
        run.tokenizer.sample_bytes,
    )
    with stage.undone_if_refused():
        trained = train_tokenizer(run.tokenizer, texts)
    path = stage.path(TOKENIZER_FILE)
    storage.write(path, trained)
    counts = {
        "vocabulary": Encoder.load(path).vocabulary_size,
        "sampled_documents": len(texts),
        "sampled_bytes": sum(len(text.encode()) for text in texts),
    }
    return stage.finish(counts, {TOKENIZER_FILE: manifest.file_sum(path)})


def tokenize(run: Tokenization, progress: Progress | None = None) -> Manifest:
    """Write the token shards that `run` describes; the manifest of their folder.

    The same bytes at any number of workers: a shard is made from one file of documents.
    """
    documents = manifest.read_input(run.documents, "curate")
    tokenizer = manifest.read_input(run.tokenizer, "tokenizer")
    inputs = {"documents": documents.content, "tokenizer": tokenizer.content}
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    path = storage.join(run.tokenizer, TOKENIZER_FILE)
    encoder = Encoder.load(path)
    splits = [
        Split(
            name=f"documents-{number:05d}", task={"name": f"documents-{number:05d}", "path": path}
        )
        for number, path in enumerate(_kept(run.documents))
    ]
    phase = Phase(stage.path(manifest.SCRATCH), functools.partial(_encoding, run, encoder))
    with stage.undone_if_refused():
        if run.workers:
            connect(run.workers, "workers")
        map_splits(phase, splits, run.workers, progress)
        records = phase.results(splits)
        counts = total(record.counts for record in records)
        if not counts.get("train_tokens"):
            raise DataError(
                f"{run.documents}: not one document to train on; curate more, or hold out less"
            )
    storage.write(stage.path(TOKENIZER_FILE), storage.read(path))
    files = {name: entry for record in records for name, entry in record.files.items()}
    files[TOKENIZER_FILE] = manifest.file_sum(stage.path(TOKENIZER_FILE))
    return stage.finish(counts | {"vocabulary": encoder.vocabulary_size}, files)


def _encoding(run: Tokenization, encoder: Encoder) -> Work:
    """The work on one file of documents: a shard of each split of the data."""
    vocabulary = Vocabulary(encoder.vocabulary_size, encoder.fingerprint)

    def encode(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        rows = list(_rows(task["path"]))
        counts: dict[str, Any] = {}
        files: dict[str, FileSum] = {}
        for split in (TRAIN, HELD_OUT):
            chosen = [
                row
                for row in rows
                if held_out(row["url"] or row["id"], run.held_out) == (split == HELD_OUT)
            ]
            documents = _encoded(chosen, encoder, task["path"].rpartition("/")[2])
            summary = write_shard(
                storage.join(run.output, split), task["name"], vocabulary, documents
            )
            counts[f"{split}_documents"] = summary.documents
            counts[f"{split}_tokens"] = summary.tokens
            counts[f"{split}_bytes"] = summary.text_bytes
            counts[f"{split}_tokens_of"] = dict(summary.tokens_of)
            for ending in (TOKENS, INDEX):
                name = f"{split}/{task['name']}{ending}"
                files[name] = manifest.file_sum(storage.join(run.output, name))
        return counts, files

    return encode


def _encoded(
    rows: Sequence[Mapping[str, Any]], encoder: Encoder, corpus_file: str
) -> Iterator[EncodedDocument]:
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS]
        encoded = encoder.encode_batch([row["text"] for row in batch])
        for row, ids in zip(batch, encoded, strict=True):
            yield EncodedDocument(
                id=row["id"],
                source=row["source"],
                url=row["url"],
                ids=np.append(ids, np.uint32(encoder.end_of_text)),
                text_bytes=len(row["text"].encode()),
                corpus_file=corpus_file,
                corpus_row=row["row"],
            )


def _kept(documents: str) -> list[str]:
    return storage.list_files(storage.join(documents, KEPT), ".parquet")


def _rows(path: str) -> Iterator[dict[str, Any]]:
    """Id, URL, source, text and row number of each document of one Parquet file."""
    with storage.open_read(path) as stream:
        table = pq.read_table(stream, columns=["id", "url", "source", "text"])
    for number, row in enumerate(table.to_pylist()):
        yield row | {"row": number}
