"""The stage `score`: rows in their order, with what a reward model gives for their answers.

OUT/  rows-00000.jsonl or .parquet …  quarantine/rows-00000.jsonl …

A file is made from one split of the rows, and splits depend on the files alone; within a split,
answers are scored in batches of a fixed size. So the bytes are the same at any number of workers.
"""

import datetime
import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.chat_source import open_chat_tokenizer
from trainrig.posttrain.classification.encoding import TEXT_ROWS
from trainrig.posttrain.conversation_run import RowFiles
from trainrig.posttrain.conversations import (
    QUARANTINE,
    QuarantinedRow,
    split_rows,
    warn_of_unread,
)
from trainrig.posttrain.score.run_file import AnswerScoring
from trainrig.ray_runtime.ray_session import Progress, connect, map_splits
from trainrig.splits import Phase, Work, sum_counts
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.chat.messages import BadRow
from trainrig.tokens.chat.rendering import ChatRenderer, Rendered
from trainrig.tokens.chat.rows import parse_example
from trainrig.tokens.chat.samples import render_example
from trainrig.tokens.chat_template import DATE
from trainrig.tokens.documents.files import find_paths, name_files
from trainrig.tokens.documents.formats import (
    FORMATS,
    Row,
    StagePart,
    iterate_rows,
    read_parquet_batches,
)
from trainrig.tokens.permutation import Integers
from trainrig.train import checkpoint

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.posttrain.score.answer_scorer import AnswerScorer, Scores

ENDINGS = {"JSONL": "jsonl", "Parquet": "parquet"}


def score_rows(run: AnswerScoring, progress: Progress | None = None) -> Manifest:
    """Write the rows that `run` names with their scores; the manifest of their folder.

    A row that can't be scored keeps its place, with null as its score, and is in quarantine with
    the reason. Raises ConfigError for a model that scores nothing and for a template that cannot
    work; DataError for what is no file of rows, a row that has such a column already, and if not
    one row could be scored.
    """
    paths = tuple(find_paths(run.kind, run.paths))
    files = RowFiles(kind=run.kind, paths=paths, source="rows")
    model = checkpoint.resolve(storage.make_absolute(run.checkpoint))
    texts, inputs = run.rows in TEXT_ROWS, {"checkpoint": checkpoint.compute_content_key(model)}
    chat = None
    if not texts:
        variables = {**run.variables, DATE: datetime.date.fromisoformat(run.date)}
        chat = open_chat_tokenizer(model, run.template, variables)
        inputs["template"] = chat.fingerprint
    keys = zip(name_files(paths), map(storage.compute_content_key, paths), strict=True)
    inputs["rows"] = manifest.digest([list(each) for each in keys])
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        labels = _check_model(run, model)  # one that can't is refused before workers start
        splits = split_rows((files,), run.shard_bytes)
        make = functools.partial(_make_work, run, model, chat)
        phase = Phase(stage.build_path(manifest.SCRATCH), make)
        if run.workers:
            connect(run.workers, "workers")
        map_splits(phase, splits, run.workers, progress)
        records = phase.read_results(splits)
        counts = sum_counts(record.counts for record in records)
        if not counts["scored"]:
            told = ", ".join(f"{why} {n:,}" for why, n in counts["quarantined"].items())
            raise DataError(f"paths: not one row to score, of {counts['rows']:,}: {told or 'none'}")
        warn_of_unread(run.output, counts)
    if labels:
        counts["labels"] = list(labels)  # in the order of their probabilities
    return stage.finish(counts, {n: entry for each in records for n, entry in each.files.items()})


def _check_model(run: AnswerScoring, model: str) -> tuple[str, ...]:
    """The names of its classes, if it is a classifier. Raises as `score_rows`."""
    if run.rows in TEXT_ROWS:
        from trainrig.posttrain.classification.predictor import TextPredictor

        return TextPredictor.open(model, run.rows, run.too_long == "cut").labels
    from trainrig.posttrain.score.answer_scorer import AnswerScorer

    AnswerScorer.open(model)
    return ()


@dataclass
class _ScoredRows:
    """The rows of a split in their order, and what came of each."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    scores: list[tuple[Any, ...] | None] = field(default_factory=list)  # by new column
    bad: list[QuarantinedRow] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)  # what rows say that is not read
    unreadable: int = 0  # of `bad`: lines that are no rows, and so are not among `rows`
    tables: list[Any] = field(default_factory=list)  # Arrow's batches, of Parquet


@dataclass(frozen=True)
class _Waiting:
    """What of a row is yet to be scored."""

    row: int  # its number in the split
    asked: Any


class _Asked(Protocol):
    """A model that gives the new columns of rows."""

    def read(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> Any:
        """What is asked of `row`. Raises BadRow."""
        ...

    def list_unread(self, asked: Any) -> tuple[str, ...]:
        """Return what the row of `asked` says that is not read."""
        ...

    def tell(self, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        """What the new columns of each hold, by one forward pass."""
        ...


@dataclass(frozen=True)
class _AskedAnswers:
    """The answers of a row, and what it says that is not read."""

    answers: list[tuple[Rendered, Integers]]
    unread: tuple[str, ...]


@dataclass(frozen=True)
class _AskedScorer:
    """A reward model; what is asked of a row are its answers, two of a pair."""

    run: AnswerScoring
    chat: ChatTokenizer
    scorer: "AnswerScorer"

    def read(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> _AskedAnswers:
        run, steps = self.run, self.run.rows == "steps"
        assert run.rows not in TEXT_ROWS
        example = parse_example(row, columns, run.rows, run.format, run.kind == "Parquet")
        example = example.adapt_roles(self.chat.template)
        rendered = [render_example(self.renderer, example, each) for each in example.chats]
        answers = [(each, self.scorer.find_places(each, steps)) for each in rendered]
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
    """The work on one split of the rows; `chat`: of conversations."""
    from trainrig.posttrain.classification.predictor import TextPredictor
    from trainrig.posttrain.score.answer_scorer import AnswerScorer, use_threads

    asked: _Asked
    if chat is None:
        asked = TextPredictor.open(model, run.rows, run.too_long == "cut")
    else:
        asked = _AskedScorer(run, chat, AnswerScorer.open(model))

    def score(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        done = _ScoredRows()
        waiting = _read(run, [StagePart(**each) for each in task["parts"]], asked, done)
        with use_threads(run.threads):
            while together := list(islice(waiting, run.batch)):
                told = asked.tell([each.asked for each in together])
                for each, values in zip(together, told, strict=True):
                    done.scores[each.row] = values
        return _write_rows(run, task["name"], done)

    return score


def _build_columns(run: AnswerScoring, scores: "Sequence[Scores]") -> tuple[Any, ...]:
    """What the new columns of a row hold, by the scores of its answers."""
    return (scores[0],) if run.rows == "steps" else tuple(each[0] for each in scores)


def _read(
    run: AnswerScoring,
    parts: Sequence[StagePart],
    asked: _Asked,
    done: _ScoredRows,
) -> Iterator[_Waiting]:
    """The rows of `parts` that can be scored; all are entered in `done`."""
    for part in parts:
        for place, row in _read_rows(run, part, done):
            if isinstance(row, str):  # not even one that could be written again
                done.bad.append(QuarantinedRow(part.file, place, row, ""))
                done.unreadable += 1
                continue
            if there := [name for name in run.new_columns if name in row]:
                raise DataError(
                    f"{part.path}, row {place}: has a column {there[0]!r} already; choose another "
                    "`name`"
                )
            done.rows.append(row)
            done.scores.append(None)
            try:
                wanted = asked.read(row, run.columns)
            except BadRow as why:
                done.bad.append(QuarantinedRow(part.file, place, why.reason, why.detail))
                continue
            done.unread.update(asked.list_unread(wanted))
            yield _Waiting(len(done.rows) - 1, wanted)


def _read_rows(run: AnswerScoring, part: StagePart, done: _ScoredRows) -> Iterable[tuple[int, Row]]:
    if run.kind != "Parquet":
        yield from FORMATS[run.kind].read(part, ())
        return
    for first, batch in read_parquet_batches(part):
        done.tables.append(batch)
        yield from enumerate(iterate_rows(batch, part.path), first)


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
    scored = [each for each in done.scores if each]
    counts: dict[str, Any] = {
        "rows": len(done.rows) + done.unreadable,
        "scored": len(scored),
        "quarantined": dict(Counter(each.reason for each in done.bad)),
    }
    if done.unread:
        counts["unread"] = dict(sorted(done.unread.items()))
    if run.rows == "pairs":
        counts["chosen_higher"] = sum(chosen > rejected for chosen, rejected in scored)
    return counts, {
        each: manifest.compute_file_sum(storage.join(run.output, each)) for each in written
    }


def _build_empty(run: AnswerScoring) -> tuple[None, ...]:
    return (None,) * len(run.new_columns)


def _encode_line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a pair of surrogates, which only an escape can tell
        return json.dumps(row).encode() + b"\n"


def _write_parquet(run: AnswerScoring, path: str, done: _ScoredRows) -> None:
    """The rows as they came, in all their types, with the new columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_batches(done.tables)
    one, each = pa.float64(), pa.list_(pa.float64())
    kinds = {
        "steps": (each,),
        "classified": (pa.string(), each),
        "questions": (pa.string(), one),
    }.get(run.rows, (one, one))
    for number, (name, kind) in enumerate(zip(run.new_columns, kinds, strict=False)):
        column = [None if scores is None else scores[number] for scores in done.scores]
        table = table.append_column(name, pa.array(column, type=kind))
    with storage.atomic_file(path) as local:
        pq.write_table(table, local)
