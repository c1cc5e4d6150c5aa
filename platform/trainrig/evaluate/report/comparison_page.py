"""The HTML page of a comparison: paired differences, and samples of rows that differ."""

import random
from collections.abc import Sequence

from matplotlib.axes import Axes

from trainrig import figures
from trainrig.evaluate.comparison import EvaluationPair, TaskComparison
from trainrig.evaluate.report.rows import build_row_sample
from trainrig.report import (
    Block,
    Chart,
    Details,
    KeyFigure,
    PageCommand,
    ReportPage,
    ReportTable,
    SampleGroup,
    Section,
    Text,
    Verdict,
)

SHOWN = 3  # number of differing rows shown for each task


def build_comparison_page(comparisons: Sequence[EvaluationPair]) -> ReportPage:
    """Build the page of all comparisons with the first evaluation, A."""
    tasks = [task for pair in comparisons for task in pair.tasks]
    clear = [task for task in tasks if not task.paired.within_noise]
    noise = tuple(
        f"{task.task}: the difference is within noise" for task in tasks if task not in clear
    )
    rows = sum(len(task.pairs) for task in tasks)
    differing = sum(len(task.differing) for task in tasks)
    first = comparisons[0]
    return ReportPage(
        title="Comparison of evaluations",
        verdict=Verdict(
            f"{len(clear)} of {len(tasks)} differences are larger than noise.",
            "warning" if noise else "done",
            noise,
        ),
        figures=(
            KeyFigure("Evaluations", str(len(comparisons) + 1), "folders", "compared with A"),
            KeyFigure("Tasks", str(len(tasks)), "tasks", "that both of a pair have"),
            KeyFigure("Rows", f"{rows:,}", "rows", "answered by both"),
            KeyFigure("Rows that differ", f"{differing:,}", "rows", "right in only one of the two"),
        ),
        sections=tuple(_build_section(n, pair) for n, pair in enumerate(comparisons)),
        commands=(
            PageCommand("trainrig leaderboard FOLDER_OF_EVALUATIONS", "Rank all evaluations:"),
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


def _build_section(number: int, found: EvaluationPair) -> Section:
    blocks: list[Block] = [_build_chart(found.tasks), _build_table(found)]
    if found.left_out:
        blocks.append(Text(f"Only in one of the two: {', '.join(found.left_out)}."))
    blocks += [_draw_samples(task) for task in found.tasks if task.differing]
    title = f"B {number + 1} ({found.b}) against A ({found.a})"
    return Section(f"against-{number + 1}", title, tuple(blocks))


def _build_chart(tasks: Sequence[TaskComparison]) -> Chart:
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

    return Chart(
        title="Differences on the same rows",
        svg=figures.draw(plot, 90 + 34 * len(names)),
        label="Paired differences as dots with 95% intervals, grey if the interval contains 0",
        caption="Each dot is the mean over rows of B's score minus A's. Lines are 95% intervals.",
        table=ReportTable(
            "Differences",
            ("task", "difference", "from", "to"),
            tuple((t.task, t.paired.difference.value, *_find_bounds(t)) for t in tasks),
        ),
    )


def _find_bounds(task: TaskComparison) -> tuple[float | None, float | None]:
    return task.paired.difference.interval or (None, None)


def _build_table(found: EvaluationPair) -> ReportTable:
    columns = ("task", "metric", "A", "B", "rows", "A alone", "B alone", "verdict")
    return ReportTable(
        "Headline scores over the rows that both answered, and the number of rows on which only "
        "one is right, or better.",
        columns,
        tuple(
            (t.task, t.metric, t.a, t.b, len(t.pairs), t.paired.a_only, t.paired.b_only, t.verdict)
            for t in found.tasks
        ),
    )


def _draw_samples(task: TaskComparison) -> Details:
    chosen = random.Random(0).sample(task.differing, min(SHOWN, len(task.differing)))
    groups = tuple(
        SampleGroup(
            (
                build_row_sample(a, f"A: {_format_score(a, task)}"),
                build_row_sample(b, f"B: {_format_score(b, task)}"),
            )
        )
        for a, b in chosen
    )
    return Details(
        f"{task.task}: {len(groups)} of {len(task.differing):,} rows that differ", groups
    )


def _format_score(row: object, task: TaskComparison) -> str:
    assert isinstance(row, dict)
    return f"{row['scores'][task.metric]:g}"
