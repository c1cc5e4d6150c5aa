"""The stage `score`: it writes the input rows, in order, with the scores of a model.

OUT/  rows-00000.jsonl or .parquet …  quarantine/rows-00000.jsonl …

One split of the rows makes one file, and splits depend on the files alone. Within a split, answers
are scored in batches of a fixed size. So the bytes are the same at any number of workers.
"""

import datetime
import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.classified_rows import TEXT_ROWS
from trainrig.posttrain.conversations import QUARANTINE, QuarantinedRow, split_rows, warn_of_unread
from trainrig.posttrain.model_source import open_chat_tokenizer
from trainrig.posttrain.row_run_files import AnswerScoring, RowFiles
from trainrig.posttrain.stages.model_pass import map_with_model
from trainrig.ray_runtime.split_processing import Progress
from trainrig.splits import Work
from trainrig.tokens import document_formats
from trainrig.tokens.chat.chat_messages import BadRow
from trainrig.tokens.chat.chat_samples import render_example
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.chat.example_rows import parse_example
from trainrig.tokens.chat.rendering import ChatRenderer, Rendered
from trainrig.tokens.chat_template import DATE
from trainrig.tokens.document_set import find_paths, name_files
from trainrig.tokens.permutation import Integers
from trainrig.train import checkpoint

if TYPE_CHECKING:
    from trainrig.posttrain.row_scorers import AnswerScorer, Scores, TextPredictor


ENDINGS = {"JSONL": "jsonl", "Parquet": "parquet"}


def score_rows(run: AnswerScoring, progress: Progress | None = None) -> Manifest:
    """Write the rows that `run` names with their scores; return the manifest of the folder.

    A row that can't be scored keeps its place, with null as its score; quarantine lists it with the
    reason. Raises ConfigError for a model that has no scores and for an invalid template. Raises
    DataError for a file that cannot be read as rows, for a row that already has such a column, and
    if no row can be scored.
    """
    paths = tuple(find_paths(run.kind, run.paths))
    files = RowFiles(kind=run.kind, paths=paths, source="rows")
    model = checkpoint.resolve(storage.make_absolute(run.checkpoint))
    texts = run.rows in TEXT_ROWS
    inputs = {"checkpoint": checkpoint.compute_content_key(model)}
    chat = None
    if not texts:
        variables = {**run.variables, DATE: datetime.date.fromisoformat(run.date)}
        chat = open_chat_tokenizer(model, run.template, variables)
        inputs["template"] = chat.fingerprint
    keys = zip(name_files(paths), map(storage.compute_content_key, paths), strict=True)
    inputs["rows"] = manifest.digest([list(file_key) for file_key in keys])
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        # Refuses a model without scores before any worker starts.
        labels = _check_model(run, model)
        splits = split_rows((files,), run.shard_bytes)
        make = functools.partial(_make_work, run, model, chat)
        counts, written = map_with_model(
            stage, model, run.workers, make, splits, "score: score answers", progress
        )
        if not counts["scored"]:
            reasons = ", ".join(f"{why} {n:,}" for why, n in counts["quarantined"].items())
            raise DataError(
                f"paths: none of {counts['rows']:,} rows can be scored: "
                f"{reasons or 'the files are empty'}"
            )
        warn_of_unread(run.output, counts)
    if labels:
        counts["labels"] = list(labels)  # In the order of their probabilities.
    return stage.finish(counts, written)


def _check_model(run: AnswerScoring, model: str) -> tuple[str, ...]:
    """Raise as `score_rows` does for an unfit model; return its class names, if any.

    Reads no weights: this process may run on the head of a cluster.
    """
    from trainrig.posttrain import row_scorers

    config, _ = checkpoint.describe(model)
    if run.rows in TEXT_ROWS:
        row_scorers.check_predictor(config, model, run.rows)
        return config.labels
    row_scorers.check_scorer(config, model)
    return ()


@dataclass
class _ScoredRows:
    """The rows of a split in order, with their scores and their faults."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    # One tuple a row, with a value for each new column.
    scores: list[tuple[Any, ...] | None] = field(default_factory=list)
    bad: list[QuarantinedRow] = field(default_factory=list)
    # Counts of meaningful fields that the model ignores.
    unread: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0  # Number of `bad` lines that cannot be parsed; they are not in `rows`.
    # Arrow record batches, if the input is Parquet.
    tables: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Waiting:
    """A row that waits to be scored."""

    row: int  # Number of the row in the split.
    asked: Any


@dataclass(frozen=True)
class _AskedAnswers:
    """The encoded answers of a row, and its fields that the model ignores."""

    answers: list[tuple[Rendered, Integers]]
    unread: tuple[str, ...]


@dataclass(frozen=True)
class _AskedScorer:
    """A reward model that scores the answers of a row; a pair has two."""

    run: AnswerScoring
    chat: ChatTokenizer
    scorer: "AnswerScorer"

    def read(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> _AskedAnswers:
        run = self.run
        steps = self.run.rows == "steps"
        assert run.rows not in TEXT_ROWS
        example = parse_example(row, columns, run.rows, run.format, run.kind == "Parquet")
        example = example.adapt_roles(self.chat.template)
        rendered = [render_example(self.renderer, example, chat) for chat in example.chats]
        answers = [(answer, self.scorer.find_places(answer, steps)) for answer in rendered]
        return _AskedAnswers(answers, example.unread)

    @functools.cached_property
    def renderer(self) -> ChatRenderer:
        return self.chat.build_renderer()

    def list_unread(self, asked: _AskedAnswers) -> tuple[str, ...]:
        return asked.unread

    def tell(self, rows: Sequence[_AskedAnswers]) -> list[tuple[Any, ...]]:
        found = iter(self.scorer.score([answer for row in rows for answer in row.answers]))
        return [_build_columns(self.run, [next(found) for _ in row.answers]) for row in rows]


def _make_work(run: AnswerScoring, model: str, chat: ChatTokenizer | None) -> Work:
    """Return the function that scores one split.

    `chat` is the chat tokenizer of conversations; None for texts.
    """
    from trainrig.posttrain.row_scorers import AnswerScorer, TextPredictor, use_threads

    asked: TextPredictor | _AskedScorer
    if chat is None:
        asked = TextPredictor.open(model, run.rows, run.too_long == "cut")
    else:
        asked = _AskedScorer(run, chat, AnswerScorer.open(model))

    def score(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        done = _ScoredRows()
        waiting = _read(
            run, [document_formats.StagePart(**fields) for fields in task["parts"]], asked, done
        )
        with use_threads(run.threads):
            while together := list(islice(waiting, run.batch)):
                columns = asked.tell([row.asked for row in together])
                for row, values in zip(together, columns, strict=True):
                    done.scores[row.row] = values
        return _write_rows(run, task["name"], done)

    return score


def _build_columns(run: AnswerScoring, scores: "Sequence[Scores]") -> tuple[Any, ...]:
    """Return the values of the new columns of a row, from the scores of its answers."""
    return (
        (scores[0],) if run.rows == "steps" else tuple(answer_scores[0] for answer_scores in scores)
    )


def _read(
    run: AnswerScoring,
    parts: Sequence[document_formats.StagePart],
    asked: "TextPredictor | _AskedScorer",
    done: _ScoredRows,
) -> Iterator[_Waiting]:
    """Yield the rows of `parts` that can be scored; enter all rows in `done`."""
    for part in parts:
        for place, row in _read_rows(run, part, done):
            # The line cannot be parsed, so it cannot be written again either.
            if isinstance(row, str):
                done.bad.append(QuarantinedRow(part.file, place, row, ""))
                done.unreadable += 1
                continue
            if there := [name for name in run.new_columns if name in row]:
                raise DataError(
                    f"{part.path}, row {place}: the row has a column {there[0]!r} already; "
                    "choose another `name`"
                )
            done.rows.append(row)
            done.scores.append(None)
            try:
                wanted: Any = asked.read(row, run.columns)
            except BadRow as why:
                done.bad.append(QuarantinedRow(part.file, place, why.reason, why.detail))
                continue
            done.unread.update(asked.list_unread(wanted))
            yield _Waiting(len(done.rows) - 1, wanted)


def _read_rows(
    run: AnswerScoring, part: document_formats.StagePart, done: _ScoredRows
) -> Iterable[tuple[int, document_formats.Row]]:
    if run.kind != "Parquet":
        yield from document_formats.FORMATS[run.kind].read(part, ())
        return
    for first, batch in document_formats.read_parquet_batches(part):
        done.tables.append(batch)
        yield from enumerate(document_formats.iterate_rows(batch, part.path), first)


def _write_rows(
    run: AnswerScoring, name: str, done: _ScoredRows
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    file = f"{name}.{ENDINGS[run.kind]}"
    if run.kind == "Parquet":
        _write_parquet(run, storage.join(run.output, file), done)
    else:
        lines = [
            _encode_line(
                {**row, **dict(zip(run.new_columns, scores or _build_empty(run), strict=True))}
            )
            for row, scores in zip(done.rows, done.scores, strict=True)
        ]
        storage.write(storage.join(run.output, file), b"".join(lines))
    written = [file]
    if done.bad:
        below = f"{QUARANTINE}/{name}.jsonl"
        storage.write(
            storage.join(run.output, below), b"".join(_encode_line(vars(e)) for e in done.bad)
        )
        written.append(below)
    scored = [scores for scores in done.scores if scores]
    counts: dict[str, Any] = {
        "rows": len(done.rows) + done.unreadable,
        "scored": len(scored),
        "quarantined": dict(Counter(row.reason for row in done.bad)),
    }
    if done.unread:
        counts["unread"] = dict(sorted(done.unread.items()))
    if run.rows == "pairs":
        counts["chosen_higher"] = sum(chosen > rejected for chosen, rejected in scored)
    return counts, {
        path: manifest.compute_file_sum(storage.join(run.output, path)) for path in written
    }


def _build_empty(run: AnswerScoring) -> tuple[None, ...]:
    return (None,) * len(run.new_columns)


def _encode_line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # A lone surrogate, which JSON can only express as an escape.
        return json.dumps(row).encode() + b"\n"


def _write_parquet(run: AnswerScoring, path: str, done: _ScoredRows) -> None:
    """Write the rows with all their original types and the new columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_batches(done.tables)
    one = pa.float64()
    numbers = pa.list_(pa.float64())
    kinds = {
        "steps": (numbers,),
        "classified": (pa.string(), numbers),
        "questions": (pa.string(), one),
    }.get(run.rows, (one, one))
    for number, (name, kind) in enumerate(zip(run.new_columns, kinds, strict=False)):
        column = [None if scores is None else scores[number] for scores in done.scores]
        table = table.append_column(name, pa.array(column, type=kind))
    with storage.atomic_file(path) as local:
        pq.write_table(table, local)
