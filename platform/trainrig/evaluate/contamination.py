"""Contamination of tasks: the rows that the training corpus contains, and scores without them.

The documents that `curate` kept are searched for each row's prompt and right answer, with the index
and the rule of decontamination. The rule is PaLM's: a row is seen if the corpus contains at least
70% of its 8-grams.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from trainrig import storage
from trainrig.corpus.curate import KEPT
from trainrig.corpus.decontaminate import Benchmark, Decontamination, Index, PaLM, match, merge
from trainrig.corpus.decontaminate.benchmark_index import Examples
from trainrig.corpus.decontaminate.benchmark_overlap import find_unit_thresholds
from trainrig.evaluate.engine.shards import TaskRun, load_questions
from trainrig.evaluate.scorecards import RowsSeen, compute_headline_score
from trainrig.evaluate.tasks.task_prompts import Question
from trainrig.manifest import FileSum
from trainrig.splits import Phase, Split, Work

STYLE = PaLM()
Do = Callable[[Phase, Sequence[Split]], None]
"""Function that computes the unfinished splits of a phase."""


def find_seen(
    corpus: str, tasks: Sequence[TaskRun], scratch: str, do: Do
) -> dict[str, dict[int, bool]]:
    """Return whether the corpus contains each row, by task and row number.

    Rows too short for the rule are left out. `corpus` is a folder that `curate` wrote, and
    `scratch` a folder for temporary files. `do` computes the splits.
    """
    questions = {run.task.name: load_questions(run) for run in tasks}
    path = storage.join(scratch, "tasks.index")
    if not storage.exists(path):
        _index(tasks, questions).save(path)
    files = storage.list_files(storage.join(corpus, KEPT), ".parquet")
    splits = [Split(f"{n:05d}", {"number": n, "file": file}) for n, file in enumerate(files)]
    matches = [storage.join(scratch, "matches", f"{split.name}.npz") for split in splits]
    work = functools.partial(_make_work, path, matches)
    phase = Phase(storage.join(scratch, "matched"), work, title="evaluate: search the corpus")
    do(phase, splits)
    index = Index.load(path)
    found = merge(index, matches).unit_documents > 0
    examples = len(index.lines_E)
    held_E = np.bincount(index.examples_B[found], minlength=examples)
    words_E = np.bincount(index.examples_B, minlength=examples)
    dirty_E = (held_E > 0) & (held_E >= find_unit_thresholds(index, STYLE))
    seen: dict[str, dict[int, bool]] = {}
    for number, name in enumerate(index.names):
        own = range(*index.firsts[number : number + 2])
        seen[name] = {
            int(index.lines_E[e]): bool(dirty_E[e]) for e in own if words_E[e] >= STYLE.words
        }
    return seen


def join_seen(seen: Mapping[int, bool], rows: Sequence[Mapping[str, Any]], metric: str) -> RowsSeen:
    """Count the scored `rows` that were seen, and compute the score of the others."""
    checked = [row for row in rows if row["row"] in seen]
    fresh = [row for row in rows if not seen.get(row["row"], False)]
    dirty = len(rows) - len(fresh)
    without = compute_headline_score(fresh, metric) if dirty and fresh else None
    return RowsSeen(looked_for=len(checked), seen=dirty, without=without)


def _index(tasks: Sequence[TaskRun], questions: Mapping[str, Sequence[Question]]) -> Index:
    settings = Decontamination(
        benchmarks=tuple(
            Benchmark(name=run.task.name, path=run.rows, fields=("text",)) for run in tasks
        ),
        style=STYLE,
    )
    examples = []
    for run in tasks:
        asked = questions[run.task.name]
        texts = tuple((_build_text(run, question),) for question in asked)
        examples.append(Examples(run.task.name, tuple(q.row for q in asked), texts))
    return Index.from_examples(settings, examples)


def _build_text(run: TaskRun, question: Question) -> str:
    """Return the text to search for: the prompt of a row with its right answer."""
    if question.contexts:
        return question.contexts[question.gold or 0] + run.task.delimiter + question.answers[0]
    return question.prompt + run.task.delimiter + question.expected


def _make_work(index_path: str, matches: Sequence[str]) -> Work:
    index = Index.load(index_path)

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        texts = pq.read_table(storage.fetch_local_path(task["file"]), columns=["text"])["text"]
        match(index, texts.to_pylist()).save(matches[task["number"]])
        return {"documents": len(texts)}, {}

    return work
