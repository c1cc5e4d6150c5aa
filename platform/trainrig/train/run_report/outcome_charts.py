"""Charts of a run's outcome: loss against its prediction, scores, and answers before and after."""

from collections.abc import Sequence

import numpy as np

from trainrig.report import plots
from trainrig.report.number_formats import format_short
from trainrig.report.plots import ChartFacts, Numbers
from trainrig.train.evaluations import ModelView, ScoredCheckpoint
from trainrig.train.run.planned_loss import Prediction
from trainrig.train.run_report.run_charts import LAST_ROWS, RunReportData, list_values


def _measure_loss(run_data: RunReportData) -> tuple[Numbers, Numbers, bool]:
    """Return tokens and loss: held out, to which laws are fitted, or else of training."""
    tokens_at = {line["step"]: float(line["train/tokens"]) for line in run_data.updates}
    lines = [line for line in run_data.held_out if line["step"] in tokens_at]
    if lines:
        tokens = np.array([tokens_at[line["step"]] for line in lines])
        return tokens, list_values(lines, "eval/loss"), True
    return np.array(list(tokens_at.values())), list_values(run_data.updates, "train/loss"), False


def draw_prediction(run_data: RunReportData, prediction: Prediction) -> ChartFacts:
    """Draw the predicted loss with its interval, and the measured loss."""
    tokens, losses, held_out = _measure_loss(run_data)
    what = "held-out loss" if held_out else "training loss"
    x = np.asarray(prediction.tokens)
    marks: list[plots.Mark] = [
        plots.Line(x, prediction.loss, "predicted, if ended", "c2", "--", width=2),
        plots.Line(tokens, losses, what, style="D-" if held_out else "-", width=1.4, size=4),
    ]
    if not np.isnan(prediction.low).any():
        marks.append(plots.Band(x, prediction.low, prediction.high, "c2"))
    predicted, low, high = prediction.interpolate(float(tokens[-1]))
    axes = (
        plots.Axis("tokens trained on", "short", low=0),
        plots.Axis("loss (nats per token)"),
    )
    return {
        "plot": plots.Plot(marks, *axes, height=270),
        "columns": ("tokens", what, "predicted"),
        "rows": [
            (format_short(tokens[i]), losses[i], prediction.interpolate(float(tokens[i]))[0])
            for i in plots.choose_evenly(len(losses), LAST_ROWS)
        ],
        "what": what,
        "law": prediction.law,
        "actual": float(losses[-1]),
        "predicted": predicted,
        "interval": "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]",
        "error": float(losses[-1]) / predicted - 1,
    }


def draw_scores(scored: Sequence[ScoredCheckpoint]) -> ChartFacts:
    """Draw the headline scores of one evaluation by step.

    `scored`: at least one scored checkpoint, in order of steps.
    """
    last = scored[-1]
    tasks = sorted(name for name in last.scores if "/" not in name)
    lines = []
    for task, colour in zip(tasks, plots.SERIES, strict=False):
        found = [(c.step, c.scores[task]) for c in scored if task in c.scores]
        steps, values = ([step for step, _ in found], [score.value for _, score in found])
        errors = [score.error or 0.0 for _, score in found]
        lines.append(plots.Line(steps, values, task, colour, "o-", error=errors))
    first = scored[0].scores.get(tasks[0]) if tasks else None
    axes = (plots.Axis("step", whole=True), plots.Axis("score"))
    return {
        "plot": plots.Plot(lines, *axes, height=260),
        "columns": ("score", "value", "standard error"),
        "rows": [
            (name, score.value, score.error)
            for name, score in sorted(last.scores.items())
            if "/" in name
        ],
        "evaluation": last.evaluation,
        "step": last.step,
        "tasks": tasks,
        "ends": (first.value, last.scores[tasks[0]].value) if first else None,
        "checkpoints": len(scored),
    }


def draw_comparison(views: Sequence[ModelView]) -> ChartFacts:
    """Draw the held-out loss before the first step and after the last, by pretraining source.

    Returns {} unless both were recorded. `answers` are the pairs of answers to the same prompts,
    and `lengths` the mean numbers of their tokens.
    """
    if len(views) < 2:
        return {}
    before = views[0]
    after = views[-1]
    pairs = [
        plots.BeforeAfter(name, loss, after.losses[name])
        for name, loss in before.losses.items()
        if name in after.losses
    ]
    worst = max(pairs, key=lambda pair: pair.after - pair.before, default=None)
    answered = before.answers and after.answers
    views = (before, after) if answered else ()
    return {
        "plot": plots.Pairs(pairs, plots.Axis("nats per token")),
        "columns": ("source", "before", "after"),
        "rows": [(pair.name, pair.before, pair.after) for pair in pairs],
        "worst": worst,
        "rise": worst.after - worst.before if worst else 0.0,
        "answers": list(zip(before.answers, after.answers, strict=True)) if answered else [],
        "lengths": [sum(a.tokens for a in v.answers) / len(v.answers) for v in views],
        "ended": sum(answer.stopped == "end" for answer in after.answers),
    }
