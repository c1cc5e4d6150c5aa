"""`trainrig compare`: paired comparison of evaluations on the same rows, and its HTML page.

The page shows the paired differences, and samples of rows that differ.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import manifest
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.score_statistics import PairedDifference, estimate_paired_difference
from trainrig.evaluate.scorecards import Scorecard, read_scorecard, read_scored
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TaskComparison:
    """The comparison of two evaluations, A and B, on one task."""

    task: str
    metric: str
    a: float
    b: float
    paired: PairedDifference
    better: float  # 1 if higher scores are better, -1 if lower scores are
    pairs: tuple[tuple[Row, Row], ...]  # scored rows of A and B

    @property
    def differing(self) -> tuple[tuple[Row, Row], ...]:
        """The rows on which the scores of A and B differ."""
        return tuple(
            (a, b) for a, b in self.pairs if a["scores"][self.metric] != b["scores"][self.metric]
        )

    @property
    def verdict(self) -> str:
        """One of "A is better", "B is better" and "within noise"."""
        if self.paired.within_noise:
            return "within noise"
        return "B is better" if self.paired.difference.value * self.better > 0 else "A is better"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON, without the rows."""
        found = self.paired.difference
        low, high = found.interval or (None, None)
        return {
            "task": self.task,
            "metric": self.metric,
            "a": self.a,
            "b": self.b,
            "difference": found.value,
            "error": found.error,
            "low": low,
            "high": high,
            "rows": found.rows,
            "a_only": self.paired.a_only,
            "b_only": self.paired.b_only,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class EvaluationPair:
    """The comparison of two evaluations, A and B, on all common tasks."""

    a: str  # folder of A
    b: str  # folder of B
    a_card: Scorecard
    b_card: Scorecard
    tasks: tuple[TaskComparison, ...]
    left_out: tuple[str, ...]  # tasks in only one of the two

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON, without the rows."""
        tasks = [task.to_json() for task in self.tasks]
        return {"a": self.a, "b": self.b, "tasks": tasks, "left_out": list(self.left_out)}


def compare(folders: Sequence[str]) -> list[EvaluationPair]:
    """Compare each of `folders`, which `evaluate` wrote, with the first.

    Raises ConfigError for fewer than two folders, and DataError if evaluations have no common task,
    or have different rows for one.
    """
    if len(folders) < 2:
        raise ConfigError(
            "compare: needs at least two evaluations; name folders that `evaluate` wrote"
        )
    first, *others = [folder.rstrip("/") for folder in folders]
    return [_compare_scorecards(first, other) for other in others]


def _compare_scorecards(a: str, b: str) -> EvaluationPair:
    a_card = read_scorecard(a)
    b_card = read_scorecard(b)
    shared = [name for name in a_card.tasks if name in b_card.tasks]
    if not shared:
        raise DataError(f"{a} and {b} have no task in common; evaluate both on the same tasks")
    a_inputs = manifest.read_manifest(a).inputs
    b_inputs = manifest.read_manifest(b).inputs
    for name in shared:
        key = f"task '{name}'"
        if a_inputs.get(key) != b_inputs.get(key):
            raise DataError(
                f"{a} and {b}: {key} has different rows or a different task file in the two; "
                "evaluate both with the same"
            )
    left_out = sorted(set(a_card.tasks) ^ set(b_card.tasks))
    tasks = tuple(_compare_task(name, a, b, a_card, b_card) for name in shared)
    return EvaluationPair(a, b, a_card, b_card, tasks, tuple(left_out))


def _compare_task(
    name: str, a: str, b: str, a_card: Scorecard, b_card: Scorecard
) -> TaskComparison:
    mine = a_card.tasks[name]
    other = b_card.tasks[name]
    others = {row["row"]: row for row in read_scored(b, name)}
    # One of the evaluations may have a row limit.
    pairs = [(row, others[row["row"]]) for row in read_scored(a, name) if row["row"] in others]
    metric = mine.metric
    a_scores, b_scores = ([p[side]["scores"][metric] for p in pairs] for side in (0, 1))
    groups = [pair[0].get("group") for pair in pairs]
    return TaskComparison(
        task=name,
        metric=metric,
        a=sum(a_scores) / len(pairs),
        b=sum(b_scores) / len(pairs),
        paired=estimate_paired_difference(a_scores, b_scores, groups),
        better=1.0 if other.higher_is_better else -1.0,
        pairs=tuple(pairs),
    )


SHOWN = 3  # number of differing rows shown for each task


def build_comparison_page(comparisons: Sequence[EvaluationPair]) -> str:
    """Return the page of all comparisons with the first evaluation, A, as HTML."""
    tasks = [task for pair in comparisons for task in pair.tasks]
    return page_rendering.render_page(
        __name__,
        comparisons=comparisons,
        tasks=tasks,
        warnings=[
            f"{task.task}: the difference is within noise"
            for task in tasks
            if task.paired.within_noise
        ],
        charts=[_draw_differences(pair.tasks) for pair in comparisons],
        choose=_choose_differing,
    )


def _draw_differences(tasks: Sequence[TaskComparison]) -> ChartFacts:
    """Draw the paired difference of each task with its interval."""
    rows = [
        (t.task, t.paired.difference.value, *(t.paired.difference.interval or (None, None)))
        for t in tasks
    ]
    intervals = [
        plots.IntervalRow(name, value, low, high, faint=task.paired.within_noise)
        for (name, value, low, high), task in zip(rows, tasks, strict=True)
    ]
    return {
        "plot": plots.Intervals(intervals, plots.Axis("B − A"), zero=True),
        "columns": ("task", "difference", "from", "to"),
        "rows": rows,
    }


def _choose_differing(task: TaskComparison) -> list[tuple[Row, Row]]:
    return random.Random(0).sample(task.differing, min(SHOWN, len(task.differing)))
