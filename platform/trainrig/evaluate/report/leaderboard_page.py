"""The HTML page of a leaderboard: a table of all evaluations, and scores by training compute."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from trainrig import figures
from trainrig.evaluate.leaderboard import Leaderboard
from trainrig.evaluate.scores.task_score import TaskScore
from trainrig.report import (
    Chart,
    KeyFigure,
    PageCommand,
    ReportPage,
    ReportTable,
    Section,
    Verdict,
)


def build_leaderboard_page(board: Leaderboard, folder: str) -> ReportPage:
    """Build the page of all evaluations in `folder`."""
    best = board.rows[0]
    mean = "–" if best.mean is None else f"{best.mean:.4f}"
    return ReportPage(
        title="Leaderboard",
        verdict=Verdict(f"{best.folder} has the best mean of all evaluations ({len(board.rows)})."),
        figures=(
            KeyFigure("Evaluations", str(len(board.rows)), "folders", "finished"),
            KeyFigure("Best mean", mean, "score", best.folder),
            KeyFigure("Tasks", str(len(board.tasks)), "tasks", "of any evaluation"),
            KeyFigure("In the mean", str(len(board.shared)), "tasks", "that all evaluations have"),
        ),
        sections=(
            Section("table", "All evaluations, best first", (build_board_table(board),)),
            *_build_flops_sections(board),
        ),
        commands=(
            PageCommand(
                "trainrig compare A B", "See whether two evaluations differ significantly:"
            ),
        ),
        provenance={"Where": {"folder": folder}},
    )


def _build_flops_sections(board: Leaderboard) -> tuple[Section, ...]:
    """Build charts of task scores by training operations, if any task has two or more."""
    charts = tuple(_build_chart(board, name) for name in board.sort_by_flops())
    return (Section("compute", "Scores against training compute", charts),) if charts else ()


def _build_chart(board: Leaderboard, task: str) -> Chart:
    points = board.sort_by_flops()[task]
    flops = np.array([operations for operations, _ in points])
    scores = np.array([score.value for _, score in points])
    chance = next(row.card.tasks[task].chance for row in board.rows if task in row.card.tasks)

    def plot(axes: Axes) -> None:
        for at, score in points:
            if score.low is not None and score.high is not None:
                axes.plot([at, at], [score.low, score.high], color=figures.C1, linewidth=1.5)
        axes.plot(flops, scores, "o", color=figures.C1)
        if chance is not None:
            axes.axhline(chance, color=figures.MUTED, linewidth=1, linestyle="--")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        # Matplotlib's own formatter would write powers as TeX.
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0e}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="training compute (FLOPs, 6ND)", ylabel="score")

    first = scores[0]
    last = scores[-1]
    return Chart(
        f"{task}: {first:.3f} at {flops[0]:.2g} FLOPs, {last:.3f} at {flops[-1]:.2g} FLOPs",
        figures.draw(plot, 230),
        label=f"Score of {task} against training compute, as dots with 95% intervals.",
        caption=f"n = {len(points)} checkpoints; lines are 95% intervals"
        + ("." if chance is None else f"; dashed: chance, {chance:.3f}."),
        table=ReportTable(
            f"{task} by training compute",
            ("operations", "score", "from", "to"),
            tuple((at, score.value, score.low, score.high) for at, score in points),
        ),
    )


def build_board_table(board: Leaderboard) -> ReportTable:
    """Build the table with a row for each evaluation and a column for each task."""
    return ReportTable(
        "Headline scores ± standard errors. The mean is over the tasks that all evaluations have.",
        ("evaluation", "step", "mean", *board.tasks),
        tuple(
            (
                row.folder,
                row.card.step,
                row.mean,
                *(_format_cell(row.card.tasks.get(name)) for name in board.tasks),
            )
            for row in board.rows
        ),
    )


def _format_cell(score: TaskScore | None) -> str:
    if score is None:
        return "–"
    error = "" if score.headline.error is None else f" ± {score.headline.error:.4f}"
    return f"{score.headline.value:.4f}{error}"
