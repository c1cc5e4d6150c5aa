"""The stage `tokenize`, which encodes documents into token shards.

TOKENS/  tokenizer.json  train/documents-00000.{bin,ends,index.parquet,json} …  train/plans/…
         held_out/…  quarantine/documents-00000.jsonl …
"""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, OUTPUT, Field, ProgressUnit, ResourceRequest, RunFile
from trainrig.errors import DataError
from trainrig.manifest import FileSum, Manifest
from trainrig.ray_runtime.ray_session import connect
from trainrig.ray_runtime.split_processing import Progress, map_splits
from trainrig.splits import Phase, RecordSelection, Work, sum_counts
from trainrig.tokens import document_set
from trainrig.tokens.left_out_documents import LEAVE_OUT, LeftOutDocuments, check_source
from trainrig.tokens.rows.packing import PackingPlan, write_plans
from trainrig.tokens.shards.shard_writer import ShardBuilder
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, EncodedDocument, ShardVocabulary
from trainrig.tokens.special_tokens import BEGIN_OF_TEXT, BROUGHT, TokenizerFiles
from trainrig.tokens.tokenize_operator import BATCH_ROWS, encode_documents
from trainrig.tokens.tokenizer import TOKENIZER_FILE
from trainrig.tokens.tokenizers.encode import Encoder

log = logging.getLogger(__name__)


class Tokenization(RunFile):
    """Run file of `trainrig tokenize`, which encodes documents into token shards."""

    verb: ClassVar[str] = "tokenize"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["tokenize"] = "tokenize"
    # Documents to encode: a folder that `curate` wrote, or files as `[[documents]]` tables.
    documents: document_set.Documents
    # Folder that `trainrig tokenizer` wrote. Alternatively a Hugging Face folder or any
    # tokenizer.json, for example from a checkpoint, which is then used unchanged.
    tokenizer: Annotated[str, NOT_IDENTITY]
    output: Annotated[str, OUTPUT]  # folder to write, on disk or in a bucket
    # Folder that `trainrig embed` wrote with [semantic_duplicates], for the same documents: its
    # duplicates are left out. None: no document is left out.
    leave_out: Annotated[str | None, NOT_IDENTITY] = None
    # Number of worker processes; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Share of documents to hold out for evaluation, selected by hash of URL or id.
    held_out: float = Field(default=0.01, ge=0, lt=1)
    # Whether each document begins with begin-of-text. Documents always end with end-of-text.
    begin_of_text: bool = False
    # Approximate bytes of text in a shard: small files share a shard, large ones are cut. One
    # worker processes a shard at a time.
    shard_bytes: int = Field(default=document_set.SPLIT_BYTES, ge=1_024)
    plans: PackingPlan = PackingPlan()  # packing plans to write beside the shards

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return a request for CPU cores, one for each worker."""
        return ResourceRequest.on_cores(self.workers)


def tokenize(run: Tokenization, progress: Progress | None = None) -> Manifest:
    """Write the token shards that `run` describes; return the manifest of their folder.

    The output is byte-identical for any number of workers: each shard is made from one split of the
    documents, and splits depend on the files alone. Raises DataError if the documents or the
    tokenizer cannot be used, or if no document is left to train on.
    """
    documents = document_set.open_documents(run.documents)
    files, content = _read_tokenizer(run.tokenizer)
    inputs = {**documents.inputs, "tokenizer": content}
    if run.leave_out:
        inputs |= check_source(run.leave_out, run.documents, documents)
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        encoder = Encoder.of(files)
        log.info("%s: encoding with %s", files.where, encoder.engine)
        splits = documents.cut_splits(run.shard_bytes)
        work = functools.partial(_make_work, run, documents, encoder, inputs.get(LEAVE_OUT))
        scratch = stage.build_path(manifest.SCRATCH)
        phase = Phase(scratch, work, divisible=True, title="tokenize: encode")
        if run.workers:
            connect(run.workers, "workers")
        map_splits(phase, splits, run.workers, progress)
        counts = sum_counts(record.counts for record in phase.iterate_results(splits))
        sums = {
            name: entry
            for record in phase.iterate_results(splits)
            for name, entry in record.files.items()
        }
        _check_counts(counts, run)
        plan_counts, plan_files = _plan_shards(run, encoder)
    storage.write(stage.build_path(TOKENIZER_FILE), encoder.text.encode())
    sums |= plan_files
    sums[TOKENIZER_FILE] = manifest.compute_file_sum(stage.build_path(TOKENIZER_FILE))
    if files.beside:
        storage.write(stage.build_path(BROUGHT), files.brought)
        sums[BROUGHT] = manifest.compute_file_sum(stage.build_path(BROUGHT))
    rest = {"vocabulary": encoder.vocabulary_size, "plans": plan_counts}
    return stage.finish(counts | rest, sums)


def _read_tokenizer(folder: str) -> tuple[TokenizerFiles, str]:
    """Return the tokenizer in `folder` and its fingerprint; raise DataError if there is none."""
    brought = storage.exists(storage.join(folder, TOKENIZER_FILE)) and not storage.exists(
        storage.join(folder, manifest.MANIFEST)
    )
    if brought or folder.endswith(".json"):
        files = TokenizerFiles.read(folder)
        return files, manifest.digest({"tokenizer": files.tokenizer, "beside": dict(files.beside)})
    made = manifest.read_input(folder, "tokenizer")
    text = manifest.read_file(folder, TOKENIZER_FILE).decode()
    return TokenizerFiles(text, where=storage.join(folder, TOKENIZER_FILE)), made.content


def _check_counts(counts: Mapping[str, Any], run: Tokenization) -> None:
    if not counts.get("train_tokens"):
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in counts.get("refused", {}).items())
        refused = f" (unusable rows: {reasons})" if reasons else ""
        raise DataError(
            f"documents: no document is left to train on{refused}; add some, or lower held_out"
        )
    if run.held_out and not counts["held_out_tokens"]:
        log.warning(
            "%s: no document is held out, because the share %g of %d documents selects none; "
            "evaluation will have nothing to read",
            run.output,
            run.held_out,
            counts["train_documents"],
        )


def _plan_shards(run: Tokenization, encoder: Encoder) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Write the packing plans of the training shards; return counts, and files by relative path."""
    padding = encoder.special_tokens.padding if run.plans.best_fit else encoder.end_of_text
    counts, files = write_plans(storage.join(run.output, TRAIN), run.plans, padding=padding)
    return counts, {f"{TRAIN}/{name}": entry for name, entry in files.items()}


def _make_work(
    run: Tokenization,
    documents: document_set.DocumentSet,
    encoder: Encoder,
    duplicates: str | None,
) -> Work:
    """Return the function that encodes one split into a training shard and a held-out shard.

    `duplicates` is the fingerprint of the folder `leave_out`.
    """
    vocabulary = ShardVocabulary(encoder.vocabulary_size, encoder.fingerprint)
    before = [encoder.find_special(BEGIN_OF_TEXT)] if run.begin_of_text else []
    left_out = None
    if run.leave_out and duplicates:
        left_out = LeftOutDocuments.read(run.leave_out, duplicates)

    def encode(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        shards = {split: ShardBuilder(vocabulary) for split in (TRAIN, HELD_OUT)}
        refused: list[document_set.RefusedRow] = []
        ids: Counter[str] = Counter()
        records = RecordSelection(task)
        rows = documents.read_rows(task, refused.append, records)
        fallen = Counter[str]()
        if left_out is not None:
            rows = _drop_rows(rows, left_out, fallen)
        for row, document in _encode_rows(rows, encoder, before):
            held = document_set.is_held_out(row["url"] or row["id"], run.held_out)
            shards[HELD_OUT if held else TRAIN].add(document)
            ids[document.id] += 1
        if records.probing:
            return records.build_probe_counts(), {}
        counts: dict[str, Any] = {
            "refused": dict(Counter(row.reason for row in refused)),
            # Only within one shard: finding all repeats is deduplication, which `curate` does.
            "repeated_ids": ids.total() - len(ids),
        }
        if left_out is not None:
            counts["left_out"] = dict(fallen)
        files = document_set.write_quarantine(run.output, task["name"], refused)
        for split, shard in shards.items():
            summary = shard.write(storage.join(run.output, split), task["name"])
            counts[f"{split}_documents"] = summary.documents
            counts[f"{split}_tokens"] = summary.tokens
            counts[f"{split}_bytes"] = summary.text_bytes
            counts[f"{split}_tokens_of"] = dict(summary.tokens_of)
            files |= {f"{split}/{name}": entry for name, entry in summary.files.items()}
        return counts, files

    return encode


def _drop_rows(
    rows: Iterator[dict[str, Any]], left_out: LeftOutDocuments, fallen: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows that are not left out, and count the others by source in `fallen`."""
    for row in rows:
        if row["id"] in left_out:
            fallen[row["source"]] += 1
        else:
            yield row


def _encode_rows(
    rows: Iterator[Mapping[str, Any]], encoder: Encoder, before: Sequence[int]
) -> Iterator[tuple[Mapping[str, Any], EncodedDocument]]:
    """Yield each row with its document: the ids `before`, the ids of the text, and end-of-text."""
    while batch := list(itertools.islice(rows, BATCH_ROWS)):
        encoded = encode_documents(encoder, [row["text"] for row in batch], before)
        for row, ids in zip(batch, encoded, strict=True):
            yield (
                row,
                EncodedDocument(
                    id=row["id"],
                    source=row["source"],
                    url=row["url"],
                    ids=ids,
                    text_bytes=row["text_bytes"],
                    corpus_file=row["file"],
                    corpus_row=row["row"],
                ),
            )
