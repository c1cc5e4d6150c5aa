"""Embedding tasks: their task files, and the work of a worker that embeds texts and scores rows.

A task file is TOML that names the texts to embed and how they are scored. Scored rows are written
like those of other tasks: one for each classified text or each query.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from trainrig import config, manifest, storage
from trainrig.config import Settings
from trainrig.corpus.array_types import Float32s
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine.vector_scores import compute_ranks, fit_classifier, score_ranks
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.scorecards import ROWS
from trainrig.evaluate.tasks.task_prompts import TaskRow, read_rows
from trainrig.manifest import FileSum
from trainrig.splits import Split, Work
from trainrig.tokens.permutation import Integers

if TYPE_CHECKING:
    from trainrig.evaluate.engine.text_embedder import TextEmbedder


class _VectorTask(Settings):
    """Keys of both kinds of tasks: the name, and how a text becomes a vector, as in `embed`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")  # name of the task in scorecards
    description: str = ""  # description of the task, for reports
    source: str = ""  # paper of the task, or its publisher's page
    # How the last hidden states become one vector: their mean over the text, or the first token's.
    pooling: Literal["mean", "first"] = "mean"
    normalise: bool = True  # scale vectors to length 1, so that products are cosines
    # Tokens of one piece; longer texts are read in several pieces. None: all positions of the
    # model.
    sequence_length: int | None = Field(default=None, ge=2)
    # Most pieces of one text to read, from its beginning; None: all.
    pieces: int | None = Field(default=None, ge=1)
    # Pieces in one forward pass. Changing it may change the last digits of vectors.
    batch: int = Field(default=16, ge=1)


class LinearProbe(_VectorTask):
    """A linear probe: the accuracy of logistic regression on frozen vectors.

    It is fitted on `train` and measured on `rows` (Alain and Bengio 2016, arXiv:1610.01644).
    """

    kind: Literal["LinearProbe"] = "LinearProbe"
    train: str  # file of the rows to fit; JSON Lines (plain or .gz) or Parquet
    rows: str  # file of the rows to measure
    text: str = "text"  # field of a row with its text
    label: str = "label"  # field with its label: a text or a whole number
    # L2 penalty: half the squared coefficients times this is added to the sum of the losses. It
    # equals 1 / C in scikit-learn, and 2 / C for two classes.
    penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Scale each channel to mean 0 and standard deviation 1 over the rows to fit.
    standardise: bool = True


class Retrieval(_VectorTask):
    """A retrieval task: the ranks of a query's relevant documents, by the product of vectors."""

    kind: Literal["Retrieval"] = "Retrieval"
    queries: str  # file of queries; JSON Lines (plain or .gz) or Parquet
    documents: str  # file of documents
    # File of relevance judgements: a row for a query and a document, with a grade above 0 if the
    # document is relevant to the query.
    relevance: str
    id: str = "id"  # field of queries and documents with their names
    text: str = "text"  # field with their texts
    query: str = "query"  # field of `relevance` with the query's name
    document: str = "document"  # field of `relevance` with the document's name
    grade: str = "relevance"  # field of `relevance` with the grade; rows without it have 1
    # Numbers of documents from the top at which recall is measured.
    recall_at: tuple[Annotated[int, Field(ge=1)], ...] = (1, 10, 100)


FILES = {"LinearProbe": ("train", "rows"), "Retrieval": ("queries", "documents", "relevance")}


def load_vector_task(path: str, folder: str | None) -> LinearProbe | Retrieval:
    """Read the embedding task in the task file at `path`; relative row files are below `folder`.

    Raises ConfigError if the file is missing, or is not an embedding task.
    """
    text = config.read_text(path, "task file")
    tables = dict(config.parse(text, path))
    kind = tables.get("kind")
    task: LinearProbe | Retrieval
    if kind == "LinearProbe":
        task = config.build(LinearProbe, tables, path, text)
    elif kind == "Retrieval":
        task = config.build(Retrieval, tables, path, text)
    else:
        raise ConfigError(
            f"{path}: kind is {kind!r}, but a task of vectors must be {' or '.join(FILES)}"
        )
    placed = {name: _place_file(getattr(task, name), folder, path) for name in FILES[task.kind]}
    return task.model_copy(update=placed)


def _place_file(file: str, folder: str | None, where: str) -> str:
    if storage.is_absolute(file):
        return file
    if folder is None:
        raise ConfigError(f"{where}: the path {file} is relative; set `task_rows` to its folder")
    return storage.join(folder, file)


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

    from trainrig.evaluate.engine.text_embedder import TextEmbedder

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


def _embed(embedder: "TextEmbedder", texts: Sequence[str], task: Task) -> Float32s:
    vectors = embedder.embed(texts, task)
    if not np.isfinite(vectors).all():  # NaN products would rank every document first
        raise DataError(f"task '{task.name}': the checkpoint's vectors are not finite numbers")
    return vectors
