"""`trainrig leaderboard`: ranking of all scorecards in a folder, and its HTML page.

The page has a table of all evaluations, and plots of scores by training compute.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from trainrig import figures, manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate import scorecards
from trainrig.report import Chart, KeyFigure, PageCommand, ReportPage, ReportTable, Section, Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankedCard:
    """One evaluation of the leaderboard."""

    folder: str  # path relative to the leaderboard's folder
    card: scorecards.Scorecard
    mean: float | None  # mean headline score over the shared tasks; None: there are none


@dataclass(frozen=True)
class Leaderboard:
    """Ranked evaluations, the best first."""

    tasks: tuple[str, ...]  # tasks of any evaluation
    shared: tuple[str, ...]  # tasks of the mean: all evaluations have them, higher is better
    rows: tuple[RankedCard, ...]

    def sort_by_flops(self) -> dict[str, list[tuple[float, scorecards.MetricScore]]]:
        """Return (training operations, headline score) pairs by task, with the fewest first.

        Tasks with fewer than two different numbers of operations are left out.
        """
        found = {}
        for name in self.tasks:
            points = [
                (row.card.training_flops, row.card.tasks[name].headline)
                for row in self.rows
                if row.card.training_flops and name in row.card.tasks
            ]
            if len({flops for flops, _ in points}) > 1:
                found[name] = sorted(points, key=lambda point: point[0])
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the leaderboard as plain JSON."""
        return {
            "shared": list(self.shared),
            "evaluations": [
                {
                    "folder": row.folder,
                    "checkpoint": row.card.checkpoint,
                    "step": row.card.step,
                    "mean": row.mean,
                    "training_flops": row.card.training_flops,
                    "tasks": {
                        name: {"metric": s.metric} | s.headline.model_dump()
                        for name, s in row.card.tasks.items()
                    },
                    "bits_per_byte": {n: s.bits_per_byte for n, s in row.card.scores.items()},
                }
                for row in self.rows
            ],
        }


def read_leaderboard(folder: str) -> Leaderboard:
    """Rank all finished evaluations at or below `folder`. Raises DataError if there is none."""
    found = []
    for path in storage.list_files(folder, f"/{scorecards.SCORECARD}"):
        place = path.removesuffix(f"/{scorecards.SCORECARD}")
        if not storage.exists(storage.join(place, manifest.MANIFEST)):
            log.warning(
                "%s: this evaluation is not finished; resume it with `trainrig evaluate`", place
            )
            continue
        name = place.removeprefix(folder.rstrip("/")).strip("/") or place
        found.append((name, scorecards.read_scorecard(place)))
    if not found:
        raise DataError(
            f"{folder}: the folder has no finished evaluation; name one that `trainrig evaluate` "
            "wrote to"
        )
    cards = [card for _, card in found]
    tasks = list(dict.fromkeys(name for card in cards for name in card.tasks))
    shared = [
        name
        for name in tasks
        if all(name in card.tasks and card.tasks[name].higher_is_better for card in cards)
    ]
    rows = [RankedCard(name, card, _compute_mean(card, shared)) for name, card in found]
    # Evaluations without a shared task are ranked by bits per byte, the lowest first.
    rows.sort(key=lambda row: (-(row.mean or 0.0), _average_bits(row.card), row.folder))
    return Leaderboard(tuple(tasks), tuple(shared), tuple(rows))


def _compute_mean(card: scorecards.Scorecard, shared: list[str]) -> float | None:
    if not shared:
        return None
    return sum(card.tasks[name].headline.value for name in shared) / len(shared)


def _average_bits(card: scorecards.Scorecard) -> float:
    if not card.scores:
        return float("inf")
    return sum(score.bits_per_byte for score in card.scores.values()) / len(card.scores)


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


def _format_cell(score: scorecards.TaskScore | None) -> str:
    if score is None:
        return "–"
    error = "" if score.headline.error is None else f" ± {score.headline.error:.4f}"
    return f"{score.headline.value:.4f}{error}"
