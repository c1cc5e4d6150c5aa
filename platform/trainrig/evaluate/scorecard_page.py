"""The HTML report of an evaluation: scores with errors, samples of rows, and calibration."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.evaluate.score_statistics import Calibration, calibrate
from trainrig.evaluate.scorecards import MetricScore, Scorecard, TaskScore
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts

SHOWN = 3  # number of right rows, and of wrong rows, shown for each task
Rows = Sequence[Mapping[str, Any]]


def build_scorecard_page(card: Scorecard, rows: Mapping[str, Rows]) -> str:
    """Return the page of `card` as HTML; `rows` are the scored rows of its tasks, by task."""
    tasks = card.tasks
    return page_rendering.render_page(
        __name__,
        card=card,
        warnings=_list_warnings(tasks),
        key_figures=_list_key_figures(card),
        format_score=format_score,
        scores=[
            (name, metric, one.value, one.error, one.low, one.high, score.rows, score.groups)
            for name, score in tasks.items()
            for metric, one in score.metrics.items()
        ],
        chart=_draw_scores(
            {n: s for n, s in tasks.items() if s.higher_is_better and s.headline.value <= 1}
        ),
        held_out=[
            (name, s.loss, s.perplexity, s.bits_per_byte, s.tokens, s.bytes, s.accuracy)
            for name, s in card.scores.items()
        ],
        samples={name: _choose_samples(score, rows[name]) for name, score in tasks.items()},
        calibrations={
            name: _draw_calibration(found)
            for name, score in tasks.items()
            if (found := calibrate(rows[name], score.metric))
        },
    )


def _list_warnings(tasks: Mapping[str, TaskScore]) -> list[str]:
    said = []
    for name, score in tasks.items():
        if score.shuffled and score.shuffled[0] <= score.headline.value <= score.shuffled[1]:
            low, high = map(format_share, score.shuffled)
            said.append(
                f"{name}: {format_score(score.headline)} is not better than chance: with "
                f"shuffled labels, 99% of the scores of the same answers lie between {low} and "
                f"{high}"
            )
        if score.truncated:
            said.append(
                f"{name}: {score.truncated:,} of {score.rows:,} prompts are longer than the "
                "model's context and are truncated at their start"
            )
        if score.contamination and score.contamination.seen:
            said.append(
                f"{name}: the training corpus contains {score.contamination.seen:,} of "
                f"{score.rows:,} rows, so its score may be too high"
            )
    return said


def _list_key_figures(card: Scorecard) -> list[tuple[str, ...]]:
    """Return four to six key figures: tasks, then held-out sources, then general figures."""
    found: list[tuple[str, ...]] = [
        (name, format_share(score.headline.value, score), score.metric, _format_note(score))
        for name, score in card.tasks.items()
    ]
    found += [
        (name, f"{score.bits_per_byte:.4g}", "bits per byte", f"{score.tokens:,} tokens")
        for name, score in card.scores.items()
    ]
    rows = sum(score.rows for score in card.tasks.values())
    tokens = sum(score.tokens for score in card.scores.values())
    general = [
        ("Rows", f"{rows:,}", "rows", "in all tasks"),
        ("Held-out text", f"{tokens:,}", "tokens", "in all sources"),
        ("Step", f"{card.step:,}", "updates", "of the checkpoint"),
        ("Tasks", str(len(card.tasks)), "tasks", "each has a section below"),
    ]
    return [*found[:6], *general[: max(0, 4 - len(found))]]


def _format_note(score: TaskScore) -> str:
    error = "" if score.headline.error is None else f"± {format_share(score.headline.error, score)}"
    chance = "" if score.chance is None else f"guessing: {format_share(score.chance)}"
    return ", ".join(filter(None, (error, chance))) or f"{score.rows:,} rows"


def _draw_scores(tasks: Mapping[str, TaskScore]) -> ChartFacts:
    """Draw the headline scores with their intervals, and the scores of guessing."""
    rows = [
        (n, s.headline.value, s.headline.low, s.headline.high, s.chance) for n, s in tasks.items()
    ]
    x = plots.Axis("score", low=0, high=1)
    intervals = [plots.IntervalRow(*row) for row in rows]
    return {
        "plot": plots.Intervals(intervals, x, ("score", "guessing")),
        "columns": ("task", "score", "from", "to", "guessing"),
        "rows": rows,
    }


def _choose_samples(score: TaskScore, rows: Rows) -> list[tuple[str, int, Rows]]:
    """Return "right" and "wrong" with their number of rows, and a few of the rows.

    All rows are "right" for perplexity, which has no right or wrong ones.
    """
    by_title: dict[str, list[Mapping[str, Any]]] = {"right": [], "wrong": []}
    for row in rows:
        is_right = not score.higher_is_better or row["scores"][score.metric] >= 1
        by_title["right" if is_right else "wrong"].append(row)
    return [
        (title, len(chosen), choose_rows(chosen)) for title, chosen in by_title.items() if chosen
    ]


def choose_rows(rows: Rows) -> Rows:
    """Choose a few of `rows` with a fixed seed, and keep their order."""
    chosen = random.Random(0).sample(range(len(rows)), min(SHOWN, len(rows)))
    return [rows[number] for number in sorted(chosen)]


def _draw_calibration(found: Calibration) -> ChartFacts:
    """Draw the share of right answers against the model's confidence."""
    rows = [(entry.confidence, entry.right, entry.rows) for entry in found.bins]
    diagonal = plots.Line([0, 1], [0, 1], colour="muted", width=1)
    curve = plots.Line([row[0] for row in rows], [row[1] for row in rows], style="o-")
    x = plots.Axis("confidence", low=0, high=1)
    y = plots.Axis("share of right answers", low=0, high=1)
    return {
        "plot": plots.Plot([diagonal, curve], x, y, height=300),
        "columns": ("confidence", "share of right answers", "rows"),
        "rows": rows,
        "error": found.error,
    }


def format_share(value: float, score: TaskScore | None = None) -> str:
    """Format a score as a percentage, or as a number if the score of `score` is not a share."""
    if score is not None and not score.higher_is_better:
        return f"{value:.4g}"
    return f"{100 * value:.1f}%"


def format_score(score: MetricScore) -> str:
    """Format a share with its standard error: `62.3% ± 0.9%`."""
    error = "" if score.error is None else f" ± {format_share(score.error)}"
    return format_share(score.value) + error
