"""The HTML report of an evaluation: scores with errors, samples of rows, and calibration."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from trainrig import figures, report
from trainrig.evaluate.score_statistics import Calibration, calibrate
from trainrig.evaluate.scorecards import MetricScore, Scorecard, TaskScore

LONGEST = 1200  # most characters shown of a prompt or an answer


def build_row_sample(row: Mapping[str, Any], label: str) -> report.TextSample:
    """Build a sample with the prompt of a row, and the expected and the given answer."""
    parts = [shorten_middle(str(row["prompt"]))]
    if choices := row.get("choices"):
        nats = row["log_likelihoods"]
        parts += [
            f"({n:.2f}) {shorten_middle(text)}" for n, text in zip(nats, choices, strict=True)
        ]
    else:
        parts.append(f"→ {shorten_middle(str(row.get('written', row['given'])))}")
    expected, given = (shorten_middle(str(row[name])) for name in ("expected", "given"))
    note = f"expected: {expected}; given: {given}"
    if "outcome" in row:
        note = f"the program {row['outcome']}"
    return report.TextSample(f"row {row['row']}, {label}", "\n".join(parts), note)


def shorten_middle(text: str) -> str:
    """Return `text`, without its middle if it is longer than `LONGEST`."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} […] {text[-half:]}"


SHOWN = 3  # number of right rows, and of wrong rows, shown for each task
Rows = Sequence[Mapping[str, Any]]


def build_scorecard_page(card: Scorecard, rows: Mapping[str, Rows]) -> report.ReportPage:
    """Build the page of `card`; `rows` are the scored rows of its tasks, by task."""
    sections = []
    if card.tasks:
        sections.append(_build_scores_section(card.tasks))
    if card.scores:
        sections.append(_show_held_out(card))
    sections += [_build_task_section(name, card.tasks[name], rows[name]) for name in card.tasks]
    return report.ReportPage(
        title=f"Evaluation of step {card.step}",
        verdict=_build_verdict(card),
        figures=_build_key_figures(card),
        sections=tuple(sections),
        commands=(
            report.PageCommand(
                "trainrig compare THIS_FOLDER OTHER_FOLDER", "Compare with another evaluation:"
            ),
            report.PageCommand(
                "trainrig leaderboard FOLDER_OF_EVALUATIONS", "Rank all evaluations:"
            ),
        ),
        provenance={"What was evaluated": {"checkpoint": card.checkpoint, "step": str(card.step)}},
    )


def _build_verdict(card: Scorecard) -> report.Verdict:
    tasks = card.tasks
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
    parts = [f"{len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}"] if tasks else []
    parts += (
        [f"{len(card.scores)} held-out {'source' if len(card.scores) == 1 else 'sources'}"]
        if card.scores
        else []
    )
    sentence = f"{' and '.join(parts)} scored at step {card.step:,}."
    return report.Verdict(sentence, "warning" if said else "done", tuple(said))


def _build_key_figures(card: Scorecard) -> tuple[report.KeyFigure, ...]:
    """Build four to six key figures: tasks, then held-out sources, then general figures."""
    found = [
        report.KeyFigure(
            name, format_share(score.headline.value, score), score.metric, _format_note(score)
        )
        for name, score in card.tasks.items()
    ]
    found += [
        report.KeyFigure(
            name, f"{score.bits_per_byte:.4g}", "bits per byte", f"{score.tokens:,} tokens"
        )
        for name, score in card.scores.items()
    ]
    rows = sum(score.rows for score in card.tasks.values())
    tokens = sum(score.tokens for score in card.scores.values())
    found = found[:6]
    for extra in (
        report.KeyFigure("Rows", f"{rows:,}", "rows", "in all tasks"),
        report.KeyFigure("Held-out text", f"{tokens:,}", "tokens", "in all sources"),
        report.KeyFigure("Step", f"{card.step:,}", "updates", "of the checkpoint"),
        report.KeyFigure("Tasks", str(len(card.tasks)), "tasks", "each has a section below"),
    ):
        if len(found) < 4:
            found.append(extra)
    return tuple(found)


def _format_note(score: TaskScore) -> str:
    error = "" if score.headline.error is None else f"± {format_share(score.headline.error, score)}"
    chance = "" if score.chance is None else f"guessing: {format_share(score.chance)}"
    return ", ".join(filter(None, (error, chance))) or f"{score.rows:,} rows"


def _build_scores_section(tasks: Mapping[str, TaskScore]) -> report.Section:
    table = report.ReportTable(
        (
            "Metrics of each task with standard errors and 95% intervals; the headline metric is "
            "first."
        ),
        ("task", "metric", "score", "standard error", "from", "to", "rows", "groups"),
        tuple(
            (name, metric, one.value, one.error, one.low, one.high, score.rows, score.groups)
            for name, score in tasks.items()
            for metric, one in score.metrics.items()
        ),
    )
    shares = {n: s for n, s in tasks.items() if s.higher_is_better and s.headline.value <= 1}
    blocks: tuple[report.Block, ...] = (_build_scores_chart(shares), table) if shares else (table,)
    return report.Section("scores", "Scores and their uncertainty", blocks)


def _build_scores_chart(tasks: Mapping[str, TaskScore]) -> report.Chart:
    names = list(tasks)

    def plot(axes: Axes) -> None:
        for place, score in enumerate(reversed(list(tasks.values()))):
            main = score.headline
            if main.low is not None and main.high is not None:
                axes.plot([main.low, main.high], [place, place], color=figures.C1, linewidth=2)
            axes.plot([main.value], [place], "o", color=figures.C1)
            if score.chance is not None:
                axes.plot([score.chance], [place], "|", color=figures.C2, markersize=16)
        axes.set_yticks(range(len(names)), list(reversed(names)))
        axes.set_xlim(0, 1)
        axes.set_xlabel("score; bar: score of guessing")

    rows = tuple(
        (n, s.headline.value, s.headline.low, s.headline.high, s.chance) for n, s in tasks.items()
    )
    return report.Chart(
        title="Headline score of each task",
        svg=figures.draw(plot, 90 + 34 * len(names)),
        label="Scores as dots with 95% intervals, and scores of guessing as bars",
        caption="Lines are 95% intervals for other samples of rows from the same task.",
        table=report.ReportTable(
            "Headline scores", ("task", "score", "from", "to", "guessing"), rows
        ),
    )


def _show_held_out(card: Scorecard) -> report.Section:
    columns: tuple[str, ...] = ("source", "loss (nats per token)", "perplexity", "bits per byte")
    columns += ("tokens", "bytes")
    rows: list[tuple[report.Cell, ...]] = [
        (name, s.loss, s.perplexity, s.bits_per_byte, s.tokens, s.bytes)
        for name, s in card.scores.items()
    ]
    accuracies = [score.accuracy for score in card.scores.values()]
    if any(accuracy is not None for accuracy in accuracies):  # only encoders have an accuracy
        columns += ("accuracy",)
        rows = [
            (*row, "" if accuracy is None else accuracy)
            for row, accuracy in zip(rows, accuracies, strict=True)
        ]
    table = report.ReportTable("Text held out of training, by source.", columns, tuple(rows))
    return report.Section("held-out", "Held-out text", (table,))


def _build_task_section(name: str, score: TaskScore, rows: Rows) -> report.Section:
    said = f"{score.rows:,} rows, {score.few_shot}-shot"
    said += ", in the chat format." if score.chat else "."
    if score.groups != score.rows:
        said += f" They form {score.groups:,} groups; standard errors are clustered by group."
    blocks: list[report.Block] = [report.Text(said)]
    if score.contamination is not None:
        blocks.append(report.Text(_describe_contamination(score)))
    right = [row for row in rows if row["scores"][score.metric] >= 1]
    wrong = [row for row in rows if row["scores"][score.metric] < 1]
    if not score.higher_is_better:  # perplexity has no right or wrong rows
        right = list(rows)
        wrong = []
    for title, chosen in (("right", right), ("wrong", wrong)):
        if drawn := _draw_rows(chosen):
            samples = tuple(build_row_sample(row, title) for row in drawn)
            shown = f"{len(drawn)} of {len(chosen):,} rows that are {title}"
            shown = shown if score.higher_is_better else f"{len(drawn)} of {len(chosen):,} rows"
            blocks.append(report.Details(shown, (report.SampleGroup(samples),)))
    if found := calibrate(rows, score.metric):
        blocks.append(_build_calibration_chart(found))
    anchor = "task-" + "".join(c if c.isalnum() else "-" for c in name.lower())
    return report.Section(anchor, name, tuple(blocks))


def _describe_contamination(score: TaskScore) -> str:
    seen = score.contamination
    if seen is None:
        return ""
    said = (
        f"The training corpus contains {seen.seen:,} of the {seen.looked_for:,} rows that are "
        "long enough "
    )
    said += "to search for (70% of their 8-grams)."
    if seen.without is not None:
        said += f" Without them the score is {format_score(seen.without)}."
    return said


def _draw_rows(rows: Rows) -> Rows:
    """Draw a few of `rows` with a fixed seed, and keep their order."""
    chosen = random.Random(0).sample(range(len(rows)), min(SHOWN, len(rows)))
    return [rows[number] for number in sorted(chosen)]


def _build_calibration_chart(found: Calibration) -> report.Chart:
    def plot(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=figures.MUTED, linewidth=1)
        sure = [entry.confidence for entry in found.bins]
        axes.plot(sure, [entry.right for entry in found.bins], "o-", color=figures.C1)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share of right answers")

    return report.Chart(
        title=f"Confidence and accuracy differ by {found.error:.3f} on average",
        svg=figures.draw(plot, 300),
        label="Share of right answers against the model's confidence, with the diagonal of perfect "
        "calibration",
        caption="Rows by tenths of confidence, the probability of the chosen answer among all "
        "choices.",
        table=report.ReportTable(
            "Calibration",
            ("confidence", "share of right answers", "rows"),
            tuple((entry.confidence, entry.right, entry.rows) for entry in found.bins),
        ),
    )


def format_share(value: float, score: TaskScore | None = None) -> str:
    """Format a score as a percentage, or as a number if the score of `score` is not a share."""
    if score is not None and not score.higher_is_better:
        return f"{value:.4g}"
    return f"{100 * value:.1f}%"


def format_score(score: MetricScore) -> str:
    """Format a share with its standard error: `62.3% ± 0.9%`."""
    error = "" if score.error is None else f" ± {format_share(score.error)}"
    return format_share(score.value) + error
