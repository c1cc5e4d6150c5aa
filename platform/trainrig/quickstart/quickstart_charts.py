"""Charts of the quickstart's report, each with a finding as its title.

Titles are worded from the numbers, so a worse run gets a worse title.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from trainrig import figures
from trainrig.figures import C1, C2, MUTED, BarPart, BarRow, BeforeAfter, Interruptions, NoisyCurve
from trainrig.quickstart.quickstart_results import MODELS, LossPoint, QuickstartResults
from trainrig.report import Cell, Chart, ReportTable, format_duration, format_percent, format_short

_TABLE_ROWS = 50  # About a screenful, folded below a chart; metrics.jsonl holds every step.


def draw_caught_chart(results: QuickstartResults) -> Chart:
    """Draw the shares of injected faults that were caught, missed or gone, by kind."""
    parts = (
        BarPart("caught", C1),
        BarPart("dropped earlier", MUTED),
        BarPart("missed", C2, hatched=True),
    )
    rows = [
        BarRow(
            kind.kind,
            tuple(100 * n / max(kind.planted, 1) for n in (kind.caught, kind.gone, kind.missed)),
            f"{kind.caught:,} of {kind.planted:,}",
        )
        for kind in results.planted
    ]
    planted = sum(kind.planted for kind in results.planted)
    looked_for = sum(kind.caught + kind.missed for kind in results.planted)
    caught = sum(kind.caught for kind in results.planted)
    worst = max(results.planted, key=lambda kind: kind.missed / max(kind.planted, 1))
    title = (
        f"{format_percent(caught, looked_for)} of the injected faults that were searched for "
        "were caught"
    )
    if worst.missed:
        title += f"; hardest: {worst.kind}"
    plot = partial(
        figures.plot_rows, rows=rows, parts=parts, x_label="share of injected faults (%)"
    )
    return Chart(
        title,
        figures.draw(plot, 90 + 36 * len(rows)),
        label="Bars by kind of fault: the shares caught, dropped earlier and missed.",
        caption=(
            f"n = {planted:,} injected faults. Dropped earlier: the page with the fault was "
            "dropped for another reason before this fault was searched for."
        ),
        table=ReportTable(
            "Injected faults by kind",
            ("kind", "injected", "caught", "missed", "dropped earlier"),
            tuple((k.kind, k.planted, k.caught, k.missed, k.gone) for k in results.planted),
        ),
    )


def build_funnel_rows(results: QuickstartResults) -> list[BarRow]:
    """Build the rows from the pages read, through each reason to drop, to the documents kept."""
    rows = [BarRow("pages read", (results.documents_in, 0), f"{results.documents_in:,}")]
    left = results.documents_in
    for dropped in results.dropped:
        left -= dropped.documents
        share = format_percent(dropped.documents, results.documents_in)
        rows.append(
            BarRow(dropped.reason, (left, dropped.documents), f"−{dropped.documents:,} · {share}")
        )
    share = format_percent(results.documents_kept, results.documents_in)
    rows.append(
        BarRow("kept", (results.documents_kept, 0), f"{results.documents_kept:,} · {share}")
    )
    return rows


def draw_funnel_chart(results: QuickstartResults) -> Chart:
    """Draw the number of documents that remain after each reason to drop."""
    rows = build_funnel_rows(results)
    parts = (BarPart("left", C1), BarPart("dropped here", C2, hatched=True))
    most = max(results.dropped, key=lambda dropped: dropped.documents, default=None)
    plot = partial(figures.plot_rows, rows=rows, parts=parts, x_label="documents")
    return Chart(
        f"Most common reason to drop a document: {most.reason}"
        if most
        else "No documents were dropped",
        figures.draw(plot, 90 + 36 * len(rows)),
        label="Bars from the pages read to the documents kept, in the order of the pipeline.",
        caption=(
            f"n = {results.documents_in:,} pages. Reasons are in the order in which curation "
            "decides, and a document counts for the first reason that applies. Percentages "
            "are of all pages."
        ),
        table=ReportTable(
            "Documents dropped, by reason",
            ("reason", "documents", "% of pages"),
            tuple(
                (d.reason, d.documents, 100 * d.documents / max(results.documents_in, 1))
                for d in results.dropped
            ),
        ),
    )


def draw_sources_chart(results: QuickstartResults) -> Chart:
    """Draw the number of tokens of each source, largest first."""
    total = sum(results.tokens_by_source.values())
    sources = sorted(results.tokens_by_source.items(), key=lambda item: (-item[1], item[0]))
    rows = [BarRow(s, (n,), f"{format_short(n)} · {format_percent(n, total)}") for s, n in sources]
    plot = partial(figures.plot_rows, rows=rows, parts=(BarPart("tokens", C1),), x_label="tokens")
    return Chart(
        f"{format_percent(sources[0][1], total)} of the tokens come from {sources[0][0]}",
        figures.draw(plot, 60 + 36 * len(rows)),
        label="Bars of tokens by source.",
        caption=f"n = {total:,} tokens, from a vocabulary of {results.vocabulary:,}.",
        table=ReportTable("Tokens by source", ("source", "tokens"), tuple(sources)),
    )


def build_loss_curve(results: QuickstartResults) -> tuple[NoisyCurve, Interruptions]:
    """Build the loss curve of the surviving attempts, with restarts and discarded steps."""
    tokens, losses, thrown = _list_points(results.loss)
    attempts = np.array([point.attempt for point in results.loss])
    steps = np.array([point.step for point in results.loss])
    over = choose_mean_over(int((~thrown).sum()))
    curve = NoisyCurve(
        tokens[~thrown], losses[~thrown], over, "training tokens", "loss (nats per token)"
    )
    dead = [thrown & (attempts == attempt) for attempt in np.unique(attempts[thrown])]
    return curve, Interruptions(
        held_out=(
            np.array([point.tokens for point in results.held_out], dtype=np.float64),
            np.array([point.loss for point in results.held_out]),
        ),
        thrown_away=[(tokens[points], losses[points]) for points in dead],
        # Not every step is logged, so a worker may have died between two points.
        restarts=[
            float(np.interp(restart.killed_at, steps[~thrown], curve.x))
            for restart in results.restarts
        ],
    )


def draw_loss_chart(results: QuickstartResults) -> Chart:
    """Draw the loss by training tokens, through all restarts."""
    curve, interruptions = build_loss_curve(results)
    plot = partial(figures.plot_interrupted_curve, curve=curve, interruptions=interruptions)
    first = results.held_out[0].loss
    last = results.held_out[-1].loss
    through = f" despite {_describe_kills(len(results.restarts))}" if results.restarts else ""
    return Chart(
        f"Held-out loss {_describe_change(first, last)} nats per token{through}",
        figures.draw(plot, 290),
        label=(
            "Line of the training loss against tokens, with held-out points, a numbered line "
            "at each killed worker and dotted lines for discarded steps."
        ),
        caption=(
            f"n = {len(curve.x):,} steps, faint; bold: mean of the last {curve.mean_over} "
            f"steps; diamonds: held-out documents.{_restart_captions(results)}"
        ),
        table=_build_loss_table(results),
    )


def draw_speed_chart(results: QuickstartResults) -> Chart:
    """Draw the tokens per second by step."""
    steps = np.array([point.step for point in results.speed], dtype=np.float64)
    speeds = np.array([point.tokens_per_second for point in results.speed])
    over = choose_mean_over(len(steps))

    def plot(ax: Axes) -> None:
        figures.plot_curve(ax, NoisyCurve(steps, speeds, over, "step", "tokens per second"))
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter(EngFormatter(sep=" "))

    return Chart(
        f"Training throughput: {format_short(float(np.median(speeds)))} tokens per second",
        figures.draw(plot, 220),
        label="Line of tokens per second against steps.",
        caption=(
            f"n = {len(steps):,} steps, faint; bold: mean of the last {over}. It is the "
            "throughput of all workers together, without the time between attempts."
        ),
        table=_build_curve_table("tokens per second", ("step", "tokens/s"), steps, speeds),
    )


def draw_tuning_chart(results: QuickstartResults) -> Chart:
    """Draw the loss of supervised fine-tuning by step."""
    steps = np.array([point.step for point in results.tuning], dtype=np.float64)
    losses = np.array([point.loss for point in results.tuning])
    over = choose_mean_over(len(steps))
    mean = figures.compute_trailing_mean(losses, over)
    curve = NoisyCurve(steps, losses, over, "step", "loss (nats per trained token)")
    return Chart(
        f"Tuning loss {_describe_change(float(losses[:over].mean()), float(mean[-1]))}"
        " nats per token",
        figures.draw(partial(figures.plot_curve, curve=curve), 220),
        label="Line of the tuning loss against steps.",
        caption=f"n = {len(steps):,} steps, faint; bold: mean of the last {over}. Only the tokens "
        f"of answers are trained on. The title compares the first {over} steps with the last.",
        table=_build_curve_table("tuning loss", ("step", "nats per token"), steps, losses),
    )


def draw_preferences_chart(results: QuickstartResults) -> Chart:
    """Draw the margin between the rewards of right and wrong answers, by step."""
    learnt = results.preferences
    steps = np.array([point.step for point in learnt.steps], dtype=np.float64)
    margins = np.array([point.right_reward - point.wrong_reward for point in learnt.steps])
    over = choose_mean_over(len(steps))
    curve = NoisyCurve(steps, margins, over, "step", "reward of right answers minus wrong answers")
    drifts = [
        f"{what} answers {abs(drift):.1f} nats {'more likely' if drift > 0 else 'less likely'}"
        for what, drift in (("right", learnt.right_drift), ("wrong", learnt.wrong_drift))
    ]
    return Chart(
        "The right answer has the higher reward in "
        f"{format_percent(learnt.held_out.accuracy, 1)} of held-out pairs",
        figures.draw(partial(figures.plot_curve, curve=curve), 220),
        label="Line of the reward margin against steps.",
        caption=(
            f"n = {len(steps):,} steps, faint; bold: mean of the last {over}. "
            f"{learnt.held_out_pairs:,} pairs with names that training never saw are held "
            "out; chance is 50 %. On them, compared with the tuned model: "
            f"{', '.join(drifts)}."
        ),
        table=ReportTable(
            "Rewards by step, and at the end on held-out pairs",
            ("step", "right", "wrong", "share of pairs ranked correctly", ""),
            tuple(
                (point.step, point.right_reward, point.wrong_reward, point.accuracy, of)
                for point, of in (
                    *((point, "") for point in learnt.steps[-_TABLE_ROWS:]),
                    (learnt.held_out, "held out"),
                )
            ),
        ),
    )


def draw_scores_chart(results: QuickstartResults) -> Chart:
    """Draw the bits per byte by domain, of the first model and of the last."""
    pairs = [
        BeforeAfter(score.domain, score.bits_per_byte[0], score.bits_per_byte[-1])
        for score in results.scores
    ]
    better = sum(pair.after < pair.before for pair in pairs)
    first = MODELS[0]
    last = MODELS[-1]
    plot = partial(figures.plot_pairs, pairs=pairs, x_label="bits per byte", names=(first, last))
    return Chart(
        f"Tuning and preferences lowered bits per byte in {better} of {len(pairs)} domains",
        figures.draw(plot, 90 + 42 * len(pairs)),
        label=f"Paired dots by domain: bits per byte of the {first} and of the {last} model.",
        caption=(
            f"n = {len(pairs)} held-out domains; fewer bits are better. Perplexity is per "
            "token, so compare it only between models with this vocabulary."
        ),
        table=ReportTable(
            "Scores by domain",
            (
                "domain",
                *(f"bits per byte, {model}" for model in MODELS),
                *(f"perplexity, {model}" for model in MODELS),
            ),
            tuple(
                (score.domain, *score.bits_per_byte, *score.perplexity) for score in results.scores
            ),
        ),
    )


def compare_repeated_steps(results: QuickstartResults) -> tuple[int, float]:
    """Return how many steps two attempts computed, and their largest loss difference."""
    _, _, thrown = _list_points(results.loss)
    final = {p.step: p.loss for p, dead in zip(results.loss, thrown, strict=True) if not dead}
    again = [
        abs(point.loss - final[point.step])
        for point, dead in zip(results.loss, thrown, strict=True)
        if dead and point.step in final
    ]
    return len(again), max(again, default=0.0)


def choose_mean_over(points: int) -> int:
    """Return over how many points to smooth a curve of `points` points.

    It is a fortieth, so that bends stay visible, but at least four if there are as many points.
    """
    return max(1, min(points, max(4, points // 40)))


def _list_points(
    loss: Sequence[LossPoint],
) -> tuple[figures.Numbers, figures.Numbers, NDArray[np.bool_]]:
    tokens = np.array([point.tokens for point in loss], dtype=np.float64)
    losses = np.array([point.loss for point in loss], dtype=np.float64)
    steps = np.array([point.step for point in loss], dtype=np.int64)
    attempts = np.array([point.attempt for point in loss], dtype=np.int64)
    return tokens, losses, figures.find_superseded(steps, attempts)


def _describe_change(before: float, after: float) -> str:
    verb = "fell" if after < before else "rose"
    return f"{verb} from {before:.2f} to {after:.2f}"


def _describe_kills(workers: int) -> str:
    return "a killed worker" if workers == 1 else f"{workers} killed workers"


def _restart_captions(results: QuickstartResults) -> str:
    return "".join(
        f" {number}: process {restart.pid} was killed after step {restart.killed_at:,}; "
        f"training resumed from the checkpoint of step {restart.resumed_from:,}, "
        f"{format_duration(restart.seconds)} later; the "
        f"{restart.killed_at - restart.resumed_from:,} discarded steps are dotted."
        for number, restart in enumerate(results.restarts, 1)
    )


def _build_loss_table(results: QuickstartResults) -> ReportTable:
    _, _, thrown = _list_points(results.loss)
    held_out = {point.step: point.loss for point in results.held_out}
    every = -(-len(results.loss) // _TABLE_ROWS)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            point.step,
            point.tokens,
            point.loss,
            held_out.get(point.step),
            point.attempt,
            "discarded" if dead else "",
        )
        for index, (point, dead) in enumerate(zip(results.loss, thrown, strict=True))
        if index % every == 0 or index == len(results.loss) - 1 or point.step in held_out
    )
    return ReportTable(
        f"Loss in nats per token: one step in {every}, and the steps with a held-out loss",
        ("step", "tokens", "loss", "held-out", "attempt", ""),
        rows,
    )


def _build_curve_table(
    what: str, columns: tuple[str, str], x: figures.Numbers, y: figures.Numbers
) -> ReportTable:
    every = -(-len(x) // _TABLE_ROWS)
    kept = [i for i in range(len(x)) if i % every == 0 or i == len(x) - 1]
    return ReportTable(
        f"{what[0].upper()}{what[1:]}: one step in {every}",
        columns,
        tuple((int(x[i]), float(y[i])) for i in kept),
    )
