"""The stage `conversations`: it encodes rows as token shards with a loss weight for each token.

OUT/  tokenizer.json  brought.json  train/rows-00000.{bin,weights,ends,…} …  train/plans/…
      held_out/…  quarantine/rows-00000.jsonl …

One split of the rows makes one shard, and splits depend on the files alone. So the bytes are the
same at any number of workers.
"""

import datetime
import functools
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.classified_rows import TEXT_ROWS, TextRows, count_labels, settle_labels
from trainrig.posttrain.model_source import find_tokenizer_files, open_chat_tokenizer
from trainrig.posttrain.row_run_files import ConversationEncoding, RowFiles
from trainrig.ray_runtime.ray_session import connect
from trainrig.ray_runtime.split_processing import Progress, map_splits
from trainrig.splits import CRASHED, Phase, RecordSelection, Split, Work, sum_counts
from trainrig.tokens.chat.chat_messages import BadRow
from trainrig.tokens.chat.chat_samples import SampleRules, Samples, build_samples
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.chat.example_rows import Example, parse_example
from trainrig.tokens.chat.rendering import ChatRenderer, Rendered
from trainrig.tokens.chat_template import DATE
from trainrig.tokens.document_formats import FORMATS, StagePart, name_place
from trainrig.tokens.document_set import OPENERS, find_paths, group_parts, is_held_out, name_files
from trainrig.tokens.rows.whole_rows import write_whole_plan
from trainrig.tokens.shards import token_shards
from trainrig.tokens.shards.shard_writer import ShardBuilder
from trainrig.tokens.special_tokens import BROUGHT, TOKENIZER

QUARANTINE = "quarantine"
# Manifest counts of rows whose earlier turns the chat template later renders differently.
_SAMPLE_COUNTS = ("rows_split", "samples_of_split_rows", "tokens_repeated", "answers_left_out")
_UNREAD = "unread: "  # Prefix of the counts of fields that the encoding ignores.
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QuarantinedRow:
    """A row that could not be encoded, with the reason."""

    file: str
    # Number of the row in the file, from 0. For JSON lines: the uncompressed byte offset of the
    # line.
    place: int
    reason: str  # One of a few fixed reasons, by which rows are counted.
    detail: str

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{name_place(self.file, self.place)}: {self.reason}{detail}"


def encode_conversations(run: ConversationEncoding, progress: Progress | None = None) -> Manifest:
    """Write the shards that `run` describes and return the manifest of their folder.

    Raises ConfigError if the template is not valid Jinja or leaves its sandbox. Raises DataError if
    a source is not a file of rows, or if no row is left to train on.
    """
    sources = tuple(_find_files(source) for source in run.sources)
    chat = _open_tokenizer(run)
    inputs = {"tokenizer": chat.encoder.fingerprint}
    if run.rows not in TEXT_ROWS:
        inputs["template"] = chat.fingerprint
    for number, source in enumerate(sources):
        keys = storage.compute_content_keys(source.paths)
        named_keys = zip(name_files(source.paths), keys, strict=True)
        inputs[f"sources[{number}]"] = manifest.digest([list(pair) for pair in named_keys])
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        splits = split_rows(sources, run.shard_bytes)
        if run.workers:
            connect(run.workers, "workers")
        labels = _find_labels(run, sources, stage.build_path(manifest.SCRATCH), splits)
        phase = Phase(
            stage.build_path(manifest.SCRATCH),
            functools.partial(_make_work, run, sources, chat, labels),
            divisible=True,
            title="conversations: encode",
        )
        map_splits(phase, splits, run.workers, progress)
        records = phase.read_results(splits)
        counts = sum_counts(record.counts for record in records)
        _check(counts, run, [record.files for record in records])
        plans, plan_files = _write_plan(run)
    files = {name: entry for record in records for name, entry in record.files.items()}
    files |= plan_files
    texts = {TOKENIZER: chat.files.tokenizer.encode()}
    if chat.files.beside:
        texts[BROUGHT] = chat.files.brought
    for name, data in texts.items():
        storage.write(stage.build_path(name), data)
        files[name] = manifest.compute_file_sum(stage.build_path(name))
    rest = {"vocabulary": chat.encoder.vocabulary_size, "plans": plans}
    if run.rows == "classified":
        rest["labels"] = list(labels)
    return stage.finish(counts | rest, files)


def _open_tokenizer(run: ConversationEncoding) -> ChatTokenizer:
    if run.rows in TEXT_ROWS:  # The tokenizer of a model for texts may have no chat template.
        return ChatTokenizer(find_tokenizer_files(run.tokenizer))
    variables = {**run.variables, DATE: datetime.date.fromisoformat(run.date)}
    found = open_chat_tokenizer(run.tokenizer, run.template, variables)
    if not found.build_renderer().ends_turns():
        raise ConfigError(
            f"{run.template or run.tokenizer}: the chat template writes no special token at "
            "the end of the assistant's turns, so the model would not learn to stop; set "
            "`template` to a template that writes one after the content, such as {{ eos_token "
            "}}"
        )
    return found


def _find_labels(
    run: ConversationEncoding, sources: Sequence[RowFiles], scratch: str, splits: Sequence[Split]
) -> tuple[str, ...]:
    """Return the class names from the run file, or collect them in a pass over all rows."""
    if run.labels or run.rows != "classified":
        return run.labels
    work = functools.partial(count_labels, sources)
    phase = Phase(storage.join(scratch, "labels"), work, title="conversations: count labels")
    map_splits(phase, splits, run.workers, None)
    counts = sum_counts(record.counts for record in phase.read_results(splits))
    return settle_labels(counts.get("numbers", {}), counts.get("names", {}))


def _find_files(source: RowFiles) -> RowFiles:
    return source.model_copy(update={"paths": tuple(find_paths(source.kind, source.paths))})


def split_rows(sources: Sequence[RowFiles], split_bytes: int) -> list[Split]:
    """Split the rows, in order, into parts of about `split_bytes` bytes.

    The result depends on the files alone, not on the number of workers.
    """
    with ThreadPoolExecutor(OPENERS) as threads:
        cuts = [
            threads.submit(_cut_parts, number, source, path, name, split_bytes)
            for number, source in enumerate(sources)
            for path, name in zip(source.paths, name_files(source.paths), strict=True)
        ]
        parts = [part for cut in cuts for part in cut.result()]
    return [
        Split(name, {"name": name, "parts": [asdict(part) for part in dealt]})
        for number, dealt in enumerate(group_parts(parts, split_bytes))
        for name in [f"rows-{number:05d}"]
    ]


def _cut_parts(number: int, source: RowFiles, path: str, name: str, size: int) -> list[StagePart]:
    return [
        StagePart(number, path, name, cut.begin, cut.end, cut.weight, cut.whole)
        for cut in FORMATS[source.kind].cut(path, (), size)
    ]


def _make_work(
    run: ConversationEncoding,
    sources: Sequence[RowFiles],
    chat: ChatTokenizer,
    labels: tuple[str, ...],
) -> Work:
    """Return the function that encodes one split as a training and a held-out shard."""
    rows: TextRows | _ChatRows
    if run.rows in TEXT_ROWS:
        rows = TextRows.make(run, chat.encoder, labels)
    else:
        rows = _ChatRows(run, chat.build_renderer(), chat.template)
    vocabulary = token_shards.ShardVocabulary(
        chat.encoder.vocabulary_size, chat.encoder.fingerprint
    )

    def encode(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        shards = {
            split: ShardBuilder(vocabulary, run.rows)
            for split in (token_shards.TRAIN, token_shards.HELD_OUT)
        }
        bad: list[QuarantinedRow] = []
        counts: Counter[str] = Counter()
        records = RecordSelection(task)
        for part in (StagePart(**fields) for fields in task["parts"]):
            source = sources[part.table]
            for (place, row), crashed in records.choose(FORMATS[source.kind].read(part, ())):
                counts["rows"] += 1
                try:
                    if crashed:
                        raise BadRow(CRASHED, "encoding it killed the process")
                    if isinstance(row, str):
                        raise BadRow(row)
                    split, documents, counted = rows.encode_row(row, source, part, place)
                except BadRow as why:
                    bad.append(QuarantinedRow(part.file, place, why.reason, why.detail))
                    continue
                counts.update(counted)
                for document in documents:
                    shards[split].add(document)
        if records.probing:
            return records.build_probe_counts(), {}
        return _write_shards(run, task["name"], shards, bad, counts)

    return encode


@dataclass(frozen=True)
class _ChatRows:
    """Encoder of rows of conversations, pairs and labelled answers."""

    run: ConversationEncoding
    renderer: ChatRenderer
    template: str  # Jinja source of the chat template that `renderer` uses.

    def encode_row(
        self, row: Mapping[str, Any], source: RowFiles, part: StagePart, place: int
    ) -> tuple[str, list[token_shards.EncodedDocument], Mapping[str, int]]:
        """Return the split that `row` belongs to, its documents, and its counts.

        Raises BadRow for a row that cannot be encoded.
        """
        example = _read_example(row, source, self.run).adapt_roles(self.template)
        rules = SampleRules(
            longest=self.run.sequence_length + 1,
            drop_turns=self.run.too_long == "drop_turns",
            split=self.run.rewritten_turns == "split",
        )
        samples = build_samples(self.renderer, example, rules)
        if example.kind == "pairs":
            _check_pair(samples)
        split = source.split or _choose_split(example, self.run.held_out)
        documents = list(_build_documents(example, samples.rendered, source, part, place))
        unread = {f"{_UNREAD}{name}": 1 for name in example.unread}
        return split, documents, _count_samples(example, samples) | unread


def _read_example(row: Mapping[str, Any], source: RowFiles, run: ConversationEncoding) -> Example:
    assert run.rows not in TEXT_ROWS
    parquet = source.kind == "Parquet"
    example = parse_example(row, source.columns, run.rows, source.format, parquet)
    if run.rows == "steps" and not example.step_labels:
        raise BadRow(
            "missing_field", 'the row has no labels for its steps, which rows = "steps" needs'
        )
    if run.train_on == "last" and run.rows == "conversations":
        chats = tuple(chat.train_on_last() for chat in example.chats)
        example = replace(example, chats=chats)
    return example


def _count_samples(example: Example, samples: Samples) -> dict[str, int]:
    """Return the manifest counts of one example."""
    counts = {"turns_dropped": samples.turns_dropped, "answers_left_out": samples.answers_left_out}
    if example.kind == "conversations" and len(samples.rendered) > 1:
        counts["rows_split"] = 1
        counts["samples_of_split_rows"] = len(samples.rendered)
        counts["tokens_repeated"] = samples.tokens_repeated
    return counts


def _check_pair(samples: Samples) -> None:
    """Raise BadRow if both answers of a pair have the same tokens."""
    chosen, rejected = samples.rendered
    if np.array_equal(chosen.ids, rejected.ids):
        dropped = samples.turns_dropped
        why = (
            f"{dropped} turns were left out"
            if dropped
            else "the template leaves out a part of the row"
        )
        detail = f"chosen and rejected differ, but their {len(chosen.ids)} tokens are equal: {why}"
        raise BadRow("pair_becomes_equal", detail)


def _choose_split(example: Example, share: float) -> str:
    """Return the split of an example, by its prompt alone.

    Two answers to one prompt are therefore never in different splits.
    """
    return (
        token_shards.HELD_OUT
        if is_held_out(f"prompt:{example.prompt}", share)
        else token_shards.TRAIN
    )


def _build_documents(
    example: Example,
    rendered: Sequence[Rendered],
    source: RowFiles,
    part: StagePart,
    place: int,
) -> Iterator[token_shards.EncodedDocument]:
    text = "\0".join(sample.text for sample in rendered).encode()
    key = hashlib.blake2b(source.source.encode() + b"\0" + text, digest_size=16).hexdigest()
    for sample in rendered:
        yield token_shards.EncodedDocument(
            id=key,
            source=source.source,
            url="",
            ids=sample.ids,
            text_bytes=len(sample.text.encode()),
            corpus_file=part.file,
            corpus_row=place,
            weights=sample.weights,
            label=example.label,
        )


def _write_shards(
    run: ConversationEncoding,
    name: str,
    shards: Mapping[str, ShardBuilder],
    bad: Sequence[QuarantinedRow],
    counted: Mapping[str, int],
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    counts: dict[str, Any] = {
        "rows": counted.get("rows", 0),
        "turns_dropped": counted.get("turns_dropped", 0),
        "quarantined": dict(Counter(row.reason for row in bad)),
    }
    if run.rows not in TEXT_ROWS:
        counts |= {name: counted.get(name, 0) for name in _SAMPLE_COUNTS}
    if unread := {n.removeprefix(_UNREAD): k for n, k in counted.items() if n.startswith(_UNREAD)}:
        counts["unread"] = dict(sorted(unread.items()))
    files: dict[str, FileSum] = {}
    if bad:
        lines = [json.dumps(vars(row), ensure_ascii=False) + "\n" for row in bad]
        below = f"{QUARANTINE}/{name}.jsonl"
        storage.write(storage.join(run.output, below), "".join(lines).encode("utf-8", "replace"))
        files[below] = manifest.compute_file_sum(storage.join(run.output, below))
    each_row = 2 if run.rows == "pairs" else 1
    for split, shard in shards.items():
        summary = shard.write(storage.join(run.output, split), name)
        counts[f"{split}_{run.rows}"] = summary.documents // each_row
        counts[f"{split}_tokens"] = summary.tokens
        counts[f"{split}_tokens_of"] = dict(summary.tokens_of)
        files |= {f"{split}/{file}": entry for file, entry in summary.files.items()}
    return counts, files


def _check(
    counts: Mapping[str, Any], run: ConversationEncoding, files: Sequence[Mapping[str, FileSum]]
) -> None:
    bad = counts.get("quarantined", {})
    kept = counts.get(f"train_{run.rows}", 0)
    places = [name for shard_files in files for name in shard_files if name.startswith(QUARANTINE)]
    first = ""
    if places:
        line = storage.read(storage.join(run.output, places[0])).splitlines()[0]
        first = str(QuarantinedRow(**json.loads(line)))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(bad.items()))
    if not kept:
        why = f": {reasons}; the first, {first}" if bad else ""
        raise DataError(f"sources: none of {counts.get('rows', 0):,} rows can be trained on{why}")
    if bad:
        log.warning(
            "%s: refused %d of %d rows, which are in %s (%s); the first, %s",
            run.output,
            sum(bad.values()),
            counts["rows"],
            storage.join(run.output, QUARANTINE),
            reasons,
            first,
        )
    _report_split(counts, run)
    warn_of_unread(run.output, counts)
    if run.held_out and not counts[f"{token_shards.HELD_OUT}_{run.rows}"]:
        log.warning(
            "%s: none of %d rows is held out; raise held_out to evaluate the run on held-out rows",
            run.output,
            counts["rows"],
        )


def _report_split(counts: Mapping[str, Any], run: ConversationEncoding) -> None:
    """Log how many rows the chat template turned into several samples, or lost answers."""
    why = "the chat template changes earlier turns when later turns follow"
    if split := counts.get("rows_split", 0):
        tokens = counts[f"{token_shards.TRAIN}_tokens"] + counts[f"{token_shards.HELD_OUT}_tokens"]
        repeated = counts["tokens_repeated"]
        log.warning(
            "%s: %s, so %s rows became %s samples, which repeat %s of %s tokens; set "
            'rewritten_turns = "last" to train on the last of these samples alone',
            run.output,
            why,
            f"{split:,}",
            f"{counts['samples_of_split_rows']:,}",
            f"{repeated:,}",
            f"{tokens:,}",
        )
    if left_out := counts.get("answers_left_out", 0):
        log.warning(
            "%s: %s, so %s answers before the last one give context and are not trained on",
            run.output,
            why,
            f"{left_out:,}",
        )


def warn_of_unread(output: str, counts: Mapping[str, Any]) -> None:
    """Log a warning that names the meaningful fields that the encoding ignored."""
    if unread := counts.get("unread", {}):
        fields = ", ".join(f"{name} in {count:,}" for name, count in unread.items())
        log.warning(
            "%s: of %d rows, some have fields that are not used: %s", output, counts["rows"], fields
        )


def _write_plan(run: ConversationEncoding) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Write the packing plan; return its counts and its files by path below the output.

    Only conversations share rows: other kinds of rows have no plan.
    """
    if run.rows != "conversations":
        return {}, {}
    shards = token_shards.TokenShards.open(storage.join(run.output, token_shards.TRAIN))
    counts, files = write_whole_plan(shards, run.sequence_length)
    return counts, {f"{token_shards.TRAIN}/{name}": entry for name, entry in files.items()}
