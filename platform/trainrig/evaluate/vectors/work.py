"""Embedding tasks, each computed by one worker, which embeds the texts and scores the rows.

Scored rows are written like those of other tasks: one for each classified text or each query.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine.shards import ROWS
from trainrig.evaluate.run_file import Evaluation
from trainrig.evaluate.tasks.rows import TaskRow, read_rows
from trainrig.evaluate.vectors.definition import FILES, LinearProbe, Retrieval, load_vector_task
from trainrig.evaluate.vectors.probe import fit_classifier
from trainrig.evaluate.vectors.ranking import compute_ranks, score_ranks
from trainrig.manifest import FileSum
from trainrig.splits import Split, Work
from trainrig.tokens.permutation import Integers

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.evaluate.embed.embedder import TextEmbedder

Task = LinearProbe | Retrieval
Rows = list[dict[str, Any]]


def load_vector_tasks(run: Evaluation) -> tuple[Task, ...]:
    """Read the embedding tasks of `run`. Raises ConfigError if a file is missing or invalid."""
    return tuple(load_vector_task(path, run.task_rows) for path in run.vector_tasks)


def list_content_keys(task: Task) -> list[str]:
    """Return content keys of everything but the model that the scored rows depend on.

    Raises DataError if a file of the task is missing.
    """
    files = [getattr(task, name) for name in FILES[task.kind]]
    for path in files:
        if not storage.exists(path):
            raise DataError(f"{path}: no such file; task '{task.name}' reads its rows from there")
    said = task.model_dump_json(exclude=set(FILES[task.kind]))
    return [said, *map(storage.compute_content_key, files)]


@dataclass(frozen=True)
class VectorPlan:
    """The embedding tasks of an evaluation, as plain data that can be sent to workers."""

    run: Evaluation
    tasks: tuple[Task, ...]

    def list_splits(self) -> list[Split]:
        """Return one split for each task."""
        return [Split(task.name, {"task": n}) for n, task in enumerate(self.tasks)]

    def make_work(self) -> Work:
        """Return the function that a worker calls for each split."""
        import torch

        torch.set_num_threads(self.run.threads)
        return functools.partial(_do, self)


def _do(plan: VectorPlan, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
    import torch

    from trainrig.evaluate.embed.embedder import TextEmbedder

    if plan.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda', but this machine has no GPU; leave `device` out")
    task = plan.tasks[given["task"]]
    embedder = TextEmbedder.open(plan.run.checkpoint, task.sequence_length, plan.run.device)
    rows = _probe(task, embedder) if isinstance(task, LinearProbe) else _retrieve(task, embedder)
    name = f"{ROWS}/{task.name}/00000.jsonl"
    path = storage.join(plan.run.output, name)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    storage.write(path, lines.encode("utf-8", "surrogatepass"))
    return {"rows": len(rows)}, {name: manifest.compute_file_sum(path)}


def _probe(task: LinearProbe, embedder: "TextEmbedder") -> Rows:
    fitted = read_rows(task.train)
    measured = read_rows(task.rows)
    labels = sorted({_read_label(row, task, task.train) for row in fitted})
    if len(labels) < 2:
        raise DataError(
            f"{task.train}: all rows have the label {labels[0]!r}; at least two labels are needed"
        )
    numbers = {label: number for number, label in enumerate(labels)}
    right = [_read_label(row, task, task.rows) for row in measured]
    for row, label in zip(measured, right, strict=True):
        if label not in numbers:
            raise DataError(
                f"{task.rows}: row {row.number}: the label {label!r} is in no row of {task.train}"
            )
    train_NC = _embed(embedder, [_read_text(row, task.text, task.train) for row in fitted], task)
    texts = [_read_text(row, task.text, task.rows) for row in measured]
    test_NC = _embed(embedder, texts, task)
    classes_N = np.array([numbers[_read_label(row, task, task.train)] for row in fitted])
    classifier = fit_classifier(
        train_NC.astype(np.float64), classes_N, len(labels), task.penalty, task.standardise
    )
    predicted = [labels[number] for number in classifier.tell(test_NC.astype(np.float64)).tolist()]
    return [
        {
            "row": row.number,
            "prompt": text,
            "expected": wanted,
            "given": said,
            "scores": {"accuracy": float(said == wanted)},
        }
        for row, text, wanted, said in zip(measured, texts, right, predicted, strict=True)
    ]


def _retrieve(task: Retrieval, embedder: "TextEmbedder") -> Rows:
    queries, documents = (_index_by_name(task, path) for path in (task.queries, task.documents))
    belong = _read_grades(task, queries, documents)
    if not belong:
        raise DataError(f"{task.relevance}: no row relates a document to a query of {task.queries}")
    asked = [name for name in queries if name in belong]
    numbers = {name: number for number, name in enumerate(documents)}
    names = list(documents)
    wanted: list[Integers] = [np.array([numbers[d] for d in belong[q]]) for q in asked]
    texts = [_read_text(queries[name], task.text, task.queries) for name in asked]
    queries_QC = _embed(embedder, texts, task)
    all_texts = [_read_text(row, task.text, task.documents) for row in documents.values()]
    documents_DC = _embed(embedder, all_texts, task)
    ranks = compute_ranks(queries_QC, documents_DC, wanted)
    rows: Rows = []
    for name, text, ranks_R, numbers_R in zip(asked, texts, ranks, wanted, strict=True):
        grades = list(belong[name].values())
        best = int(ranks_R.argmin())
        rows.append(
            {
                "row": queries[name].number,
                "prompt": text,
                "expected": ", ".join(belong[name]),
                "given": f"{names[int(numbers_R[best])]} at place {int(ranks_R[best])}",
                "ranks": ranks_R.tolist(),
                "scores": score_ranks(ranks_R, grades, task.recall_at),
            }
        )
    return rows


def _index_by_name(task: Retrieval, path: str) -> dict[str, TaskRow]:
    """Return the rows of a file by name. Raises DataError if a name is missing or repeated."""
    found: dict[str, TaskRow] = {}
    for row in read_rows(path):
        name = row.fields.get(task.id)
        if name is None or str(name) in found:
            what = (
                f"the field `{task.id}` is missing"
                if name is None
                else f"`{task.id}` {name!r} is repeated"
            )
            raise DataError(f"{path}: row {row.number}: {what}")
        found[str(name)] = row
    return found


def _read_grades(
    task: Retrieval, queries: Mapping[str, TaskRow], documents: Mapping[str, TaskRow]
) -> dict[str, dict[str, float]]:
    """Return the grades above 0 of each query's documents, for queries that have any.

    Raises DataError for an unknown query or document, a repeated pair, or a grade that is not a
    number.
    """
    found: dict[str, dict[str, float]] = {}
    for row in read_rows(task.relevance):
        where = f"{task.relevance}: row {row.number}"
        query, document = (str(row.fields.get(name)) for name in (task.query, task.document))
        if query not in queries:
            raise DataError(f"{where}: query {query!r} is not in {task.queries}")
        if document not in documents:
            raise DataError(f"{where}: document {document!r} is not in {task.documents}")
        grade = row.fields.get(task.grade, 1)
        if isinstance(grade, bool) or not isinstance(grade, int | float) or grade != grade:
            raise DataError(f"{where}: `{task.grade}` must be a number, but is {grade!r}")
        if document in found.get(query, {}):
            raise DataError(f"{where}: query {query!r} with document {document!r} is repeated")
        if grade > 0:
            found.setdefault(query, {})[document] = float(grade)
    return found


def _read_text(row: TaskRow, field: str, path: str) -> str:
    value = row.fields.get(field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{path}: row {row.number}: `{field}` must be a text, but is {value!r}")
    return value


def _read_label(row: TaskRow, task: LinearProbe, path: str) -> str:
    value = row.fields.get(task.label)
    if isinstance(value, float) or not isinstance(value, str | int):
        raise DataError(
            f"{path}: row {row.number}: `{task.label}` must be a text or a whole number, but is "
            f"{value!r}"
        )
    return str(value)


def _embed(embedder: "TextEmbedder", texts: Sequence[str], task: Task) -> NDArray[np.float32]:
    vectors = embedder.embed(texts, task)
    if not np.isfinite(vectors).all():  # NaN products would rank every document first
        raise DataError(f"task '{task.name}': the checkpoint's vectors are not finite numbers")
    return vectors
