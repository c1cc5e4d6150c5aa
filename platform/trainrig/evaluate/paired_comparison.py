"""`trainrig compare`: paired comparison of evaluations on the same rows, and its HTML page.

The page shows the paired differences, and samples of rows that differ.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from trainrig import figures, manifest, report
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine.shards import read_scored
from trainrig.evaluate.score_statistics import PairedDifference, estimate_paired_difference
from trainrig.evaluate.scorecard_page import build_row_sample
from trainrig.evaluate.scorecards import Scorecard, read_scorecard

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


def build_comparison_page(comparisons: Sequence[EvaluationPair]) -> report.ReportPage:
    """Build the page of all comparisons with the first evaluation, A."""
    tasks = [task for pair in comparisons for task in pair.tasks]
    clear = [task for task in tasks if not task.paired.within_noise]
    noise = tuple(
        f"{task.task}: the difference is within noise" for task in tasks if task not in clear
    )
    rows = sum(len(task.pairs) for task in tasks)
    differing = sum(len(task.differing) for task in tasks)
    first = comparisons[0]
    return report.ReportPage(
        title="Comparison of evaluations",
        verdict=report.Verdict(
            f"{len(clear)} of {len(tasks)} differences are larger than noise.",
            "warning" if noise else "done",
            noise,
        ),
        figures=(
            report.KeyFigure(
                "Evaluations", str(len(comparisons) + 1), "folders", "compared with A"
            ),
            report.KeyFigure("Tasks", str(len(tasks)), "tasks", "that both of a pair have"),
            report.KeyFigure("Rows", f"{rows:,}", "rows", "answered by both"),
            report.KeyFigure(
                "Rows that differ", f"{differing:,}", "rows", "right in only one of the two"
            ),
        ),
        sections=tuple(_build_section(n, pair) for n, pair in enumerate(comparisons)),
        commands=(
            report.PageCommand(
                "trainrig leaderboard FOLDER_OF_EVALUATIONS", "Rank all evaluations:"
            ),
        ),
        provenance={
            "Compared": {
                "A": f"{first.a_card.checkpoint} in {first.a}",
                **{
                    f"B {n + 1}": f"{c.b_card.checkpoint} in {c.b}"
                    for n, c in enumerate(comparisons)
                },
            }
        },
    )


def _build_section(number: int, found: EvaluationPair) -> report.Section:
    blocks: list[report.Block] = [_build_chart(found.tasks), _build_table(found)]
    if found.left_out:
        blocks.append(report.Text(f"Only in one of the two: {', '.join(found.left_out)}."))
    blocks += [_draw_samples(task) for task in found.tasks if task.differing]
    title = f"B {number + 1} ({found.b}) against A ({found.a})"
    return report.Section(f"against-{number + 1}", title, tuple(blocks))


def _build_chart(tasks: Sequence[TaskComparison]) -> report.Chart:
    names = [task.task for task in tasks]

    def plot(axes: Axes) -> None:
        axes.axvline(0, color=figures.MUTED, linewidth=1)
        for place, task in enumerate(reversed(tasks)):
            found = task.paired.difference
            color = figures.MUTED if task.paired.within_noise else figures.C1
            if found.interval:
                axes.plot(list(found.interval), [place, place], color=color, linewidth=2)
            axes.plot([found.value], [place], "o", color=color)
        axes.set_yticks(range(len(names)), list(reversed(names)))
        axes.set_xlabel("B − A")

    return report.Chart(
        title="Differences on the same rows",
        svg=figures.draw(plot, 90 + 34 * len(names)),
        label="Paired differences as dots with 95% intervals, grey if the interval contains 0",
        caption="Each dot is the mean over rows of B's score minus A's. Lines are 95% intervals.",
        table=report.ReportTable(
            "Differences",
            ("task", "difference", "from", "to"),
            tuple((t.task, t.paired.difference.value, *_find_bounds(t)) for t in tasks),
        ),
    )


def _find_bounds(task: TaskComparison) -> tuple[float | None, float | None]:
    return task.paired.difference.interval or (None, None)


def _build_table(found: EvaluationPair) -> report.ReportTable:
    columns = ("task", "metric", "A", "B", "rows", "A alone", "B alone", "verdict")
    return report.ReportTable(
        "Headline scores over the rows that both answered, and the number of rows on which only "
        "one is right, or better.",
        columns,
        tuple(
            (t.task, t.metric, t.a, t.b, len(t.pairs), t.paired.a_only, t.paired.b_only, t.verdict)
            for t in found.tasks
        ),
    )


def _draw_samples(task: TaskComparison) -> report.Details:
    chosen = random.Random(0).sample(task.differing, min(SHOWN, len(task.differing)))
    groups = tuple(
        report.SampleGroup(
            (
                build_row_sample(a, f"A: {_format_score(a, task)}"),
                build_row_sample(b, f"B: {_format_score(b, task)}"),
            )
        )
        for a, b in chosen
    )
    return report.Details(
        f"{task.task}: {len(groups)} of {len(task.differing):,} rows that differ", groups
    )


def _format_score(row: object, task: TaskComparison) -> str:
    assert isinstance(row, dict)
    return f"{row['scores'][task.metric]:g}"
