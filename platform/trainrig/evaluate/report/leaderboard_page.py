"""leaderboard.html: all evaluations of a folder in one table."""

from trainrig.evaluate.leaderboard import Leaderboard
from trainrig.evaluate.scores.task_score import TaskScore
from trainrig.report import KeyFigure, PageCommand, ReportPage, ReportTable, Section, Verdict


def leaderboard_page(board: Leaderboard, folder: str) -> ReportPage:
    """The page of all evaluations in `folder`."""
    best = board.rows[0]
    mean = "–" if best.mean is None else f"{best.mean:.4f}"
    return ReportPage(
        title="Leaderboard",
        verdict=Verdict(f"{best.folder} leads {len(board.rows)} evaluations."),
        figures=(
            KeyFigure("Evaluations", str(len(board.rows)), "folders", "finished"),
            KeyFigure("Best mean", mean, "score", best.folder),
            KeyFigure("Tasks", str(len(board.tasks)), "tasks", "of any evaluation"),
            KeyFigure("In the mean", str(len(board.shared)), "tasks", "that all have"),
        ),
        sections=(Section("table", "All evaluations, the best first", (board_table(board),)),),
        commands=(PageCommand("trainrig compare A B", "See whether two differ at all:"),),
        provenance={"Where": {"folder": folder}},
    )


def board_table(board: Leaderboard) -> ReportTable:
    """One row an evaluation, one column a task."""
    return ReportTable(
        "Headline scores ± standard errors; the mean is over tasks that all evaluations have.",
        ("evaluation", "step", "mean", *board.tasks),
        tuple(
            (
                row.folder,
                row.card.step,
                row.mean,
                *(_cell(row.card.tasks.get(name)) for name in board.tasks),
            )
            for row in board.rows
        ),
    )


def _cell(score: TaskScore | None) -> str:
    if score is None:
        return "–"
    error = "" if score.headline.error is None else f" ± {score.headline.error:.4f}"
    return f"{score.headline.value:.4f}{error}"
