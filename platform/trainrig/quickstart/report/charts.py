"""The quickstart's charts: each turns part of a `Story` into a finding with its drawing.

Titles are worded from the numbers, so a worse run gets a worse title.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from trainrig import figures
from trainrig.figures import C1, C2, MUTED, Curve, Interruptions, Pair, Part, Row
from trainrig.quickstart.report.results import LossPoint, Story
from trainrig.report import Cell, Chart, Table, duration, percent, short

_TABLE_ROWS = 50  # about a screenful folded below a chart; metrics.jsonl holds every step


def caught_chart(story: Story) -> Chart:
    """What became of the planted faults, by kind."""
    parts = (Part("caught", C1), Part("gone earlier", MUTED), Part("missed", C2, hatched=True))
    rows = [
        Row(
            kind.kind,
            tuple(100 * n / max(kind.planted, 1) for n in (kind.caught, kind.gone, kind.missed)),
            f"{kind.caught:,} of {kind.planted:,}",
        )
        for kind in story.planted
    ]
    planted = sum(kind.planted for kind in story.planted)
    looked_for = sum(kind.caught + kind.missed for kind in story.planted)
    caught = sum(kind.caught for kind in story.planted)
    worst = max(story.planted, key=lambda kind: kind.missed / max(kind.planted, 1))
    title = f"{percent(caught, looked_for)} of what was looked for was found"
    if worst.missed:
        title += f"; hardest: {worst.kind}"
    plot = partial(figures.plot_rows, rows=rows, parts=parts, x_label="share of planted (%)")
    return Chart(
        title,
        figures.draw(plot, 90 + 36 * len(rows)),
        label="Bars by kind of fault: the shares caught, gone earlier and missed.",
        caption=f"n = {planted:,} planted faults. Gone earlier: the page that carried the fault "
        "fell for another reason before this fault was looked for.",
        table=Table(
            "Planted faults by kind",
            ("kind", "planted", "caught", "missed", "gone earlier"),
            tuple((k.kind, k.planted, k.caught, k.missed, k.gone) for k in story.planted),
        ),
    )


def funnel_rows(story: Story) -> list[Row]:
    """The pages read, what is left and dropped at each reason in turn, and the documents kept."""
    rows = [Row("pages read", (story.documents_in, 0), f"{story.documents_in:,}")]
    left = story.documents_in
    for dropped in story.dropped:
        left -= dropped.documents
        share = percent(dropped.documents, story.documents_in)
        rows.append(
            Row(dropped.reason, (left, dropped.documents), f"−{dropped.documents:,} · {share}")
        )
    share = percent(story.documents_kept, story.documents_in)
    rows.append(Row("kept", (story.documents_kept, 0), f"{story.documents_kept:,} · {share}"))
    return rows


def funnel_chart(story: Story) -> Chart:
    """From the pages read to the documents kept, a bar after each reason to drop."""
    rows = funnel_rows(story)
    parts = (Part("left", C1), Part("dropped here", C2, hatched=True))
    most = max(story.dropped, key=lambda dropped: dropped.documents, default=None)
    plot = partial(figures.plot_rows, rows=rows, parts=parts, x_label="documents")
    return Chart(
        f"The commonest reason to fall: {most.reason}" if most else "No document fell",
        figures.draw(plot, 90 + 36 * len(rows)),
        label="Bars from the pages read to the documents kept, in the order of the pipeline.",
        caption=f"n = {story.documents_in:,} pages, in the order in which curation decides; a "
        "document counts for the first reason that it falls for. Percentages are of all pages.",
        table=Table(
            "Documents dropped, by reason",
            ("reason", "documents", "% of pages"),
            tuple(
                (d.reason, d.documents, 100 * d.documents / max(story.documents_in, 1))
                for d in story.dropped
            ),
        ),
    )


def sources_chart(story: Story) -> Chart:
    """How many tokens each source gives, largest first."""
    total = sum(story.tokens_by_source.values())
    sources = sorted(story.tokens_by_source.items(), key=lambda item: (-item[1], item[0]))
    rows = [Row(s, (n,), f"{short(n)} · {percent(n, total)}") for s, n in sources]
    plot = partial(figures.plot_rows, rows=rows, parts=(Part("tokens", C1),), x_label="tokens")
    return Chart(
        f"{percent(sources[0][1], total)} of the tokens come from {sources[0][0]}",
        figures.draw(plot, 60 + 36 * len(rows)),
        label="Bars of tokens by source.",
        caption=f"n = {total:,} tokens, of a vocabulary of {story.vocabulary:,}.",
        table=Table("Tokens by source", ("source", "tokens"), tuple(sources)),
    )


def loss_curve(story: Story) -> tuple[Curve, Interruptions]:
    """The loss by tokens of the attempts that count, and what happened along it."""
    tokens, losses, thrown = _points(story.loss)
    attempts = np.array([point.attempt for point in story.loss])
    steps = np.array([point.step for point in story.loss])
    over = mean_over(int((~thrown).sum()))
    curve = Curve(
        tokens[~thrown], losses[~thrown], over, "training tokens", "loss (nats per token)"
    )
    dead = [thrown & (attempts == attempt) for attempt in np.unique(attempts[thrown])]
    return curve, Interruptions(
        held_out=(
            np.array([point.tokens for point in story.held_out], dtype=np.float64),
            np.array([point.loss for point in story.held_out]),
        ),
        thrown_away=[(tokens[points], losses[points]) for points in dead],
        # Not every step is logged, so the place of a death may lie between two points.
        restarts=[
            float(np.interp(restart.killed_at, steps[~thrown], curve.x))
            for restart in story.restarts
        ],
    )


def loss_chart(story: Story) -> Chart:
    """The loss by tokens, through every restart: the chart that answers whether it works."""
    curve, interruptions = loss_curve(story)
    plot = partial(figures.plot_interrupted_curve, curve=curve, interruptions=interruptions)
    first, last = story.held_out[0].loss, story.held_out[-1].loss
    through = f" through {_killed(len(story.restarts))}" if story.restarts else ""
    return Chart(
        f"Held-out loss {_moved(first, last)} nats per token{through}",
        figures.draw(plot, 290),
        label="Line of the training loss against tokens, with held-out points, a numbered line at "
        "each killed worker and the steps thrown away dotted.",
        caption=f"n = {len(curve.x):,} steps, faint; bold: mean of the last {curve.mean_over} "
        f"steps; diamonds: held-out documents.{_restart_captions(story)}",
        table=_loss_table(story),
    )


def speed_chart(story: Story) -> Chart:
    """Tokens per second by step."""
    steps = np.array([point.step for point in story.speed], dtype=np.float64)
    speeds = np.array([point.tokens_per_second for point in story.speed])
    over = mean_over(len(steps))

    def plot(ax: Axes) -> None:
        figures.plot_curve(ax, Curve(steps, speeds, over, "step", "tokens per second"))
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter(EngFormatter(sep=" "))

    return Chart(
        f"Training ran at {short(float(np.median(speeds)))} tokens per second",
        figures.draw(plot, 220),
        label="Line of tokens per second against steps.",
        caption=f"n = {len(steps):,} steps, faint; bold: mean of the last {over}. All workers "
        "together; the time between attempts is not in it.",
        table=_curve_table("tokens per second", ("step", "tokens/s"), steps, speeds),
    )


def tuning_chart(story: Story) -> Chart:
    """The loss of supervised fine-tuning by step."""
    steps = np.array([point.step for point in story.tuning], dtype=np.float64)
    losses = np.array([point.loss for point in story.tuning])
    over = mean_over(len(steps))
    mean = figures.trailing_mean(losses, over)
    curve = Curve(steps, losses, over, "step", "loss (nats per trained token)")
    return Chart(
        f"Tuning loss {_moved(float(losses[:over].mean()), float(mean[-1]))} nats per token",
        figures.draw(partial(figures.plot_curve, curve=curve), 220),
        label="Line of the tuning loss against steps.",
        caption=f"n = {len(steps):,} steps, faint; bold: mean of the last {over}. Only the tokens "
        f"of answers are trained on. The title compares the first {over} steps with the last.",
        table=_curve_table("tuning loss", ("step", "nats per token"), steps, losses),
    )


def scores_chart(story: Story) -> Chart:
    """Bits per byte by domain, pretrained and tuned."""
    pairs = [
        Pair(score.domain, score.bits_per_byte_before, score.bits_per_byte_after)
        for score in story.scores
    ]
    better = sum(pair.after < pair.before for pair in pairs)
    plot = partial(
        figures.plot_pairs, pairs=pairs, x_label="bits per byte", names=("pretrained", "tuned")
    )
    return Chart(
        f"Tuning lowered bits per byte in {better} of {len(pairs)} domains",
        figures.draw(plot, 90 + 42 * len(pairs)),
        label="Paired dots by domain: bits per byte of the pretrained and of the tuned model.",
        caption=f"n = {len(pairs)} held-out domains; fewer bits are better. Perplexity is per "
        "token, so it can be compared only under this vocabulary.",
        table=Table(
            "Scores by domain",
            (
                "domain",
                "bits per byte, pretrained",
                "bits per byte, tuned",
                "perplexity, pretrained",
                "perplexity, tuned",
            ),
            tuple(
                (
                    score.domain,
                    score.bits_per_byte_before,
                    score.bits_per_byte_after,
                    score.perplexity_before,
                    score.perplexity_after,
                )
                for score in story.scores
            ),
        ),
    )


def repeated_steps(story: Story) -> tuple[int, float]:
    """How many steps were computed by two attempts, and the largest difference of their losses."""
    _, _, thrown = _points(story.loss)
    final = {p.step: p.loss for p, dead in zip(story.loss, thrown, strict=True) if not dead}
    again = [
        abs(point.loss - final[point.step])
        for point, dead in zip(story.loss, thrown, strict=True)
        if dead and point.step in final
    ]
    return len(again), max(again, default=0.0)


def mean_over(points: int) -> int:
    """Over how many points a curve of `points` is smoothed: a fortieth, so that its bends stay.

    But over four at least, where there are as many: fewer smooth nothing.
    """
    return max(1, min(points, max(4, points // 40)))


def _points(
    loss: Sequence[LossPoint],
) -> tuple[figures.Numbers, figures.Numbers, NDArray[np.bool_]]:
    tokens = np.array([point.tokens for point in loss], dtype=np.float64)
    losses = np.array([point.loss for point in loss], dtype=np.float64)
    steps = np.array([point.step for point in loss], dtype=np.int64)
    attempts = np.array([point.attempt for point in loss], dtype=np.int64)
    return tokens, losses, figures.superseded(steps, attempts)


def _moved(before: float, after: float) -> str:
    verb = "fell" if after < before else "rose"
    return f"{verb} from {before:.2f} to {after:.2f}"


def _killed(workers: int) -> str:
    return "a killed worker" if workers == 1 else f"{workers} killed workers"


def _restart_captions(story: Story) -> str:
    return "".join(
        f" {number}: process {restart.pid} killed after step {restart.killed_at:,}; training went "
        f"on from the checkpoint of step {restart.resumed_from:,}, {duration(restart.seconds)} "
        f"later; the {restart.killed_at - restart.resumed_from:,} steps thrown away are dotted."
        for number, restart in enumerate(story.restarts, 1)
    )


def _loss_table(story: Story) -> Table:
    _, _, thrown = _points(story.loss)
    held_out = {point.step: point.loss for point in story.held_out}
    every = -(-len(story.loss) // _TABLE_ROWS)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            point.step,
            point.tokens,
            point.loss,
            held_out.get(point.step),
            point.attempt,
            "thrown away" if dead else "",
        )
        for index, (point, dead) in enumerate(zip(story.loss, thrown, strict=True))
        if index % every == 0 or index == len(story.loss) - 1 or point.step in held_out
    )
    return Table(
        f"Loss in nats per token: one step in {every}, and those with a held-out loss",
        ("step", "tokens", "loss", "held-out", "attempt", ""),
        rows,
    )


def _curve_table(
    what: str, columns: tuple[str, str], x: figures.Numbers, y: figures.Numbers
) -> Table:
    every = -(-len(x) // _TABLE_ROWS)
    kept = [i for i in range(len(x)) if i % every == 0 or i == len(x) - 1]
    return Table(
        f"{what[0].upper()}{what[1:]}: one step in {every}",
        columns,
        tuple((int(x[i]), float(y[i])) for i in kept),
    )
