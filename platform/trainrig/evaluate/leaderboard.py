"""`trainrig leaderboard`: ranking of all scorecards in a folder, and its HTML page.

The page has a table of all evaluations, and plots of scores by training compute.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate import scorecards
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts
from trainrig.storage.missing_folders import describe_origin, is_missing

log = logging.getLogger(__name__)

Z_95 = 1.96  # standard errors in half of a 95% interval


@dataclass(frozen=True)
class RankedCard:
    """One evaluation of the leaderboard."""

    folder: str  # path relative to the leaderboard's folder
    card: scorecards.Scorecard
    mean: float | None  # mean headline score over the shared tasks; None: there are none
    error: float | None = None  # standard error of `mean`; None: a task's error is unknown


@dataclass(frozen=True)
class Leaderboard:
    """Ranked evaluations, the best first."""

    tasks: tuple[str, ...]  # tasks of any evaluation
    shared: tuple[str, ...]  # tasks of the mean: all evaluations have them, higher is better
    rows: tuple[RankedCard, ...]

    def describe_best(self) -> tuple[bool, str]:
        """Return whether one evaluation is clearly best, and a sentence that says so or why not.

        The best mean must exceed every other mean by more than the 95% interval of the difference.
        The intervals take the rows of two evaluations as independent; `compare` pairs them.
        """
        first, *others = self.rows
        if not others:
            return False, "There is one evaluation, so nothing is compared."
        if first.mean is None:
            reason = "No task is common to all evaluations, so none is the best"
            bits = any(row.card.scores for row in self.rows)
            return False, f"{reason}; they are sorted by bits per byte." if bits else f"{reason}."
        close = [row for row in others if not _is_clearly_below(row, first)]
        if close:
            named = f"{first.folder} and {close[0].folder}"
            more = f" (and {len(close) - 1} more)" if len(close) > 1 else ""
            return False, f"No evaluation is clearly the best: {named}{more} differ within noise."
        return True, f"{first.folder} has the best mean of {len(self.rows)} evaluations."

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
        clear, verdict = self.describe_best()
        return {
            "shared": list(self.shared),
            "best": self.rows[0].folder if clear else None,
            "verdict": verdict,
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
    files = storage.list_files(folder)
    there = set(files)
    places = []
    for path in files:
        place = path.removesuffix(f"/{scorecards.SCORECARD}")
        if place == path:
            continue
        if storage.join(place, manifest.MANIFEST) in there:
            places.append(place)
        else:
            log.warning(
                "%s: this evaluation is not finished; resume it with `trainrig evaluate`", place
            )
    names = [place.removeprefix(folder.rstrip("/")).strip("/") or place for place in places]
    found = list(zip(names, storage.map_files(scorecards.read_scorecard, places), strict=True))
    if not found:
        if is_missing(folder):
            raise DataError(f"{folder}: no such folder{describe_origin(folder)}")
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
    rows = [
        RankedCard(name, card, _compute_mean(card, shared), _compute_error(card, shared))
        for name, card in found
    ]
    # Evaluations without a shared task are ranked by bits per byte, the lowest first.
    rows.sort(key=lambda row: (-(row.mean or 0.0), _average_bits(row.card), row.folder))
    return Leaderboard(tuple(tasks), tuple(shared), tuple(rows))


def _compute_mean(card: scorecards.Scorecard, shared: list[str]) -> float | None:
    if not shared:
        return None
    return sum(card.tasks[name].headline.value for name in shared) / len(shared)


def _compute_error(card: scorecards.Scorecard, shared: list[str]) -> float | None:
    """Return the standard error of the mean over `shared`, whose rows are independent samples."""
    errors = [_find_error(card.tasks[name].headline) for name in shared]
    known = [error for error in errors if error is not None]
    if not shared or len(known) < len(errors):
        return None
    return math.sqrt(sum(error**2 for error in known)) / len(known)


def _find_error(score: scorecards.MetricScore) -> float | None:
    """Return the standard error; of rows that are all right or all wrong, by their interval."""
    if score.error == 0 and score.low is not None and score.high is not None:
        return (score.high - score.low) / Z_95
    return score.error


def _is_clearly_below(row: RankedCard, best: RankedCard) -> bool:
    if row.mean is None or best.mean is None or row.error is None or best.error is None:
        return False
    return best.mean - row.mean > Z_95 * math.hypot(row.error, best.error)


def _average_bits(card: scorecards.Scorecard) -> float:
    if not card.scores:
        return float("inf")
    return sum(score.bits_per_byte for score in card.scores.values()) / len(card.scores)


def build_leaderboard_page(board: Leaderboard, folder: str) -> str:
    """Return the page of all evaluations in `folder` as HTML."""
    columns, rows = list_board_cells(board)
    return page_rendering.render_page(
        __name__,
        board=board,
        folder=folder,
        verdict=board.describe_best()[1],
        columns=columns,
        rows=rows,
        charts={name: _draw_scores(board, name) for name in board.sort_by_flops()},
    )


def _draw_scores(board: Leaderboard, task: str) -> ChartFacts:
    """Draw the scores of a task with their intervals against training compute."""
    points = board.sort_by_flops()[task]
    rows = [(flops, score.value, score.low, score.high) for flops, score in points]
    chance = next(row.card.tasks[task].chance for row in board.rows if task in row.card.tasks)
    marks: list[plots.Mark] = [
        plots.Line([flops, flops], [low, high], width=1.5)
        for flops, _, low, high in rows
        if low is not None and high is not None
    ]
    marks.append(plots.Line([row[0] for row in rows], [row[1] for row in rows], style="o"))
    if chance is not None:
        marks.append(plots.Rule(chance))
    x = plots.Axis("training compute (FLOPs, 6ND)", "power", log=True)
    return {
        "plot": plots.Plot(marks, x, plots.Axis("score"), height=230),
        "columns": ("operations", "score", "from", "to"),
        "rows": rows,
        "chance": chance,
    }


def list_board_cells(board: Leaderboard) -> tuple[tuple[str, ...], list[plots.Row]]:
    """Return the columns, one for each task, and the rows, one for each evaluation.

    Without a shared task, the column of the mean has bits per byte instead: the order of the rows.
    """
    ordered_by = "mean" if board.shared else "bits per byte"
    return ("evaluation", "step", ordered_by, *board.tasks), [
        (
            row.folder,
            row.card.step,
            row.mean if board.shared else _round_bits(row.card),
            *(_format_cell(row.card.tasks.get(name)) for name in board.tasks),
        )
        for row in board.rows
    ]


def _round_bits(card: scorecards.Scorecard) -> float | None:
    return round(_average_bits(card), 4) if card.scores else None


def _format_cell(score: scorecards.TaskScore | None) -> str:
    if score is None:
        return "–"
    error = "" if score.headline.error is None else f" ± {score.headline.error:.4f}"
    return f"{score.headline.value:.4f}{error}"
