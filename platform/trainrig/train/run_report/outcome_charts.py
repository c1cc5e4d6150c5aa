"""Charts of a run's outcome: loss against its prediction, scores, and answers before and after."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from trainrig import figures, report
from trainrig.figures import C1, C2, C3, C4, BeforeAfter, Numbers, thin
from trainrig.report import Block, Chart, ReportTable, Section, Text, escape_invisible, format_short
from trainrig.train.evaluations import GivenAnswer, ModelView, ScoredCheckpoint
from trainrig.train.run.loss_prediction import Prediction
from trainrig.train.run_report.run_charts import TABLE_ROWS, RunReportData, list_values

BAND = 0.22  # opacity


@dataclass(frozen=True)
class MeasuredLoss:
    """Measured loss by the tokens trained on."""

    tokens: Numbers
    loss: Numbers  # nats per token
    held_out: bool  # otherwise of the training batches

    @property
    def what(self) -> str:
        """Name of the loss."""
        return "held-out loss" if self.held_out else "training loss"


def measure_loss(run_data: RunReportData) -> MeasuredLoss:
    """Return the held-out loss, which laws are fitted to, or else the training loss."""
    tokens_at = {line["step"]: float(line["train/tokens"]) for line in run_data.updates}
    lines = [line for line in run_data.held_out if line["step"] in tokens_at]
    if lines:
        tokens = np.array([tokens_at[line["step"]] for line in lines])
        return MeasuredLoss(tokens, list_values(lines, "eval/loss"), True)
    tokens = np.array(list(tokens_at.values()))
    return MeasuredLoss(tokens, list_values(run_data.updates, "train/loss"), False)


def compare_prediction(
    run_data: RunReportData, prediction: Prediction
) -> tuple[float, float, float, float]:
    """Return the last loss, and the predicted value, low and high for its number of tokens."""
    came = measure_loss(run_data)
    return float(came.loss[-1]), *prediction.interpolate(float(came.tokens[-1]))


def build_prediction_chart(run_data: RunReportData, prediction: Prediction) -> Chart:
    """Plot the predicted loss with its interval, and the measured loss."""
    came = measure_loss(run_data)
    actual, predicted, low, high = compare_prediction(run_data, prediction)
    sure = "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
    ended = run_data.updates[-1]["step"] >= run_data.steps
    title = (
        f"{came.what.capitalize()} {actual:.3f}{'' if ended else ' so far'}; law "
        f"{prediction.law} predicted {predicted:.3f}{sure}: {actual / predicted - 1:+.1%}"
    )
    at = np.unique(np.linspace(0, len(came.loss) - 1, min(TABLE_ROWS, len(came.loss))).astype(int))
    rows = tuple(
        (
            format_short(came.tokens[i]),
            came.loss[i],
            prediction.interpolate(float(came.tokens[i]))[0],
        )
        for i in at
    )
    return Chart(
        title,
        figures.draw(partial(plot_prediction, measured=came, prediction=prediction), 270),
        label="The predicted loss against tokens with its interval, and the measured loss.",
        caption=(
            "The prediction for each number of tokens is the loss of a run that ends there "
            "with a decayed learning rate. The loss of an unfinished run therefore lies "
            "above the prediction."
        ),
        table=ReportTable("Loss, nats per token", ("tokens", came.what, "predicted"), rows),
    )


def plot_prediction(ax: Axes, measured: MeasuredLoss, prediction: Prediction) -> Axes:
    """Plot the predicted loss as a dashed line with its band, and the measured loss as points."""
    ax.plot(
        prediction.tokens, prediction.loss, "--", color=C2, linewidth=2, label="predicted, if ended"
    )
    if not np.isnan(prediction.low).any():
        ax.fill_between(
            prediction.tokens, prediction.low, prediction.high, color=C2, alpha=BAND, linewidth=0
        )
    style = "D-" if measured.held_out else "-"
    line = thin(measured.tokens, measured.loss)
    ax.plot(*line, style, color=C1, markersize=4, linewidth=1.4, label=measured.what)
    ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
    ax.set(xlabel="tokens trained on", ylabel="loss (nats per token)")
    ax.set_xlim(left=0)
    ax.legend(loc="upper right")
    return ax


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


def build_comparison_section(views: Sequence[ModelView]) -> Section | None:
    """Build the section that compares the model before the first step and after the last.

    Returns None unless both were recorded.
    """
    if len(views) < 2:
        return None
    before = views[0]
    after = views[-1]
    blocks: list[Block] = []
    if shared := [source for source in before.losses if source in after.losses]:
        blocks.append(_build_forgetting_chart(before, after, shared))
    if before.answers and after.answers:
        blocks.append(_describe_lengths(before, after))
        for first, last in zip(before.answers, after.answers, strict=True):
            samples = (
                report.TextSample("Prompt", first.prompt),
                report.TextSample("Before", first.text, _describe_end(first)),
                report.TextSample("After", last.text, _describe_end(last)),
            )
            blocks.append(report.SampleGroup(samples))
    return Section("comparison", "Before and after", tuple(blocks)) if blocks else None


def _build_forgetting_chart(before: ModelView, after: ModelView, sources: Sequence[str]) -> Chart:
    """Plot the loss on held-out pretraining text before and after training, by source."""
    pairs = [BeforeAfter(name, before.losses[name], after.losses[name]) for name in sources]
    worst = max(pairs, key=lambda pair: pair.after - pair.before)
    rise = worst.after - worst.before
    what = f"{abs(rise):.3f} nats per token {'more' if rise > 0 else 'less'}"
    plot = partial(figures.plot_pairs, pairs=pairs, x_label="nats per token")
    return Chart(
        f"Held-out text of '{report.escape_invisible(worst.name)}' costs {what} than before"
        + (", and no other source rose more" if len(pairs) > 1 else ""),
        figures.draw(plot, 90 + 42 * len(pairs)),
        label="Paired dots by source: the loss on held-out text before and after.",
        caption=(
            f"n = {len(pairs)} pretraining sources, the same rows before and after. A higher "
            "loss afterwards means forgetting."
        ),
        table=ReportTable(
            "Loss on held-out text",
            ("source", "before", "after"),
            tuple((pair.name, pair.before, pair.after) for pair in pairs),
        ),
    )


def _describe_lengths(before: ModelView, after: ModelView) -> Text:
    first, last = (sum(a.tokens for a in v.answers) / len(v.answers) for v in (before, after))
    ended = sum(answer.stopped == "end" for answer in after.answers)
    return Text(
        f"Answers to {len(after.answers)} held-out prompts, always with the most likely "
        f"token: {first:.1f} tokens on average before, {last:.1f} after, of which {ended} "
        "ended by themselves."
    )


def _describe_end(answer: GivenAnswer) -> str:
    return f"{answer.tokens} tokens, ended by: {answer.stopped}"
