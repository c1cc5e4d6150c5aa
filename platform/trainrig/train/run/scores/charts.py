"""The chart of a run's scores for each evaluation."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from trainrig import figures
from trainrig.figures import C1, C2, C3, C4
from trainrig.report import Chart, ReportTable, escape_invisible
from trainrig.train.evaluations.decisions import ScoredCheckpoint

COLOURS = (C1, C2, C3, C4)  # more lines would be hard to tell apart


def build_score_chart(scored: Sequence[ScoredCheckpoint]) -> Chart:
    """Plot the headline scores of one evaluation by step.

    `scored`: at least one scored checkpoint, in order of steps.
    """
    first = scored[0]
    last = scored[-1]
    tasks = sorted(name for name in last.scores if "/" not in name)
    steps = [checkpoint.step for checkpoint in scored]

    def plot(ax: Axes) -> None:
        for task, colour in zip(tasks, COLOURS, strict=False):
            found = [checkpoint.scores[task] for checkpoint in scored if task in checkpoint.scores]
            at = [checkpoint.step for checkpoint in scored if task in checkpoint.scores]
            values = [s.value for s in found]
            errors = [s.error or 0.0 for s in found]
            ax.errorbar(
                at,
                values,
                yerr=errors,
                fmt="o-",
                color=colour,
                label=escape_invisible(task)[:24],
                capsize=2,
            )
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="score")

    shown = tasks[0] if tasks else ""
    begun = first.scores.get(shown)
    ended = last.scores.get(shown)
    evaluation = escape_invisible(last.evaluation)
    title = f"{evaluation}: no tasks"
    if begun and ended:
        title = f"{evaluation}: {escape_invisible(shown)} {begun.value:.3f} → {ended.value:.3f}"
    return Chart(
        title,
        figures.draw(plot, 260),
        label="Lines of scores against steps, one per task, with standard errors.",
        caption=f"n = {len(steps):,} checkpoints. Bars show one standard error."
        + (f" The first {len(COLOURS)} tasks are drawn." if len(tasks) > len(COLOURS) else ""),
        table=ReportTable(
            f"Scores of {last.evaluation} at step {last.step:,}",
            ("score", "value", "standard error"),
            tuple(
                (name, score.value, score.error)
                for name, score in sorted(last.scores.items())
                if "/" in name
            ),
        ),
    )
