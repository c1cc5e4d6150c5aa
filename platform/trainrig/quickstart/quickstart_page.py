"""The quickstart's report page.

Its order: verdict, stages, injected faults and their outcomes, the loss through a killed worker,
tuning, preferences, scores before and after both, generations, next commands.
"""

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from trainrig.quickstart.quickstart_results import MODELS, LossPoint, QuickstartResults, Scaling
from trainrig.report import page_rendering, plots
from trainrig.report.number_formats import format_percent, format_short
from trainrig.report.plots import BarPart, BarRow, ChartFacts, Line, Numbers
from trainrig.scaling import law_plots

_NUMERALS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
_TABLE_ROWS = 50  # About a screenful, folded below a chart; metrics.jsonl holds every step.
_EXCERPT = 400  # Characters of a dropped text to show: enough to see why it was dropped.


def build_quickstart_page(results: QuickstartResults) -> str:
    """Render the page as HTML; the result depends on `results` alone."""
    astray = results.samples_lost + results.samples_repeated
    again, difference = compare_repeated_steps(results)
    warnings = []
    if astray:
        warnings.append(
            f"Of {results.samples_checked:,} samples, {astray:,} were not used for "
            "training exactly once."
        )
    if not results.restarts:
        warnings.append("No worker was killed, so this run does not show that training recovers.")
    if difference:
        warnings.append(
            f"Losses of repeated steps differ by up to {difference:.2g} nats per token, "
            "so training was not bit-exact on this machine."
        )
    return page_rendering.render_page(
        __name__,
        results=results,
        state="failed" if astray else "warning" if warnings else "done",
        warnings=warnings,
        astray=astray,
        again=again,
        difference=difference,
        numeral=_count,
        excerpt=_cut_excerpt,
        models=MODELS,
        guess=math.log(results.vocabulary),
        speed=median([speed for _, speed in results.speed]),
        seconds=sum(stage.seconds for stage in results.stages),
        planted=sum(kind.planted for kind in results.planted),
        caught=sum(kind.caught for kind in results.planted),
        missed=sum(kind.missed for kind in results.planted),
        faults=draw_caught(results),
        funnel=draw_funnel(results),
        sources=draw_sources(results),
        loss=draw_loss(results),
        speeds=draw_speed(results),
        tuning=draw_tuning(results),
        preferences=draw_preferences(results),
        scores=draw_scores(results),
        agreement=_draw_law(results.scaling) if results.scaling else {},
    )


def _draw_law(found: Scaling) -> ChartFacts:
    """Draw the losses that the law predicts for the sweep's runs, if there is a law."""
    columns = ("parameters", "tokens", "loss", "predicted")
    rows = [(p.parameters, p.tokens, p.loss, p.predicted) for p in found.points]
    sizes = {"sizes": len({point.parameters for point in found.points})}
    if found.plan is None:
        return sizes | {"columns": columns[:3], "rows": [row[:3] for row in rows]}
    actual = np.array([point.loss for point in found.points])
    predicted = np.array([point.predicted for point in found.points])
    return sizes | {
        "plot": law_plots.draw_agreement(predicted, actual),
        "columns": columns,
        "rows": rows,
        "worst": float(np.abs(predicted / actual - 1).max()),
    }


def _count(number: int, noun: str) -> str:
    """Format a number with its noun, in words up to ten: `Six stages`, `1,204 samples`."""
    numeral = _NUMERALS[number] if number < len(_NUMERALS) else f"{number:,}"
    return f"{numeral} {noun}{'' if number == 1 else 's'}"


def _cut_excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT else text[:_EXCERPT].rstrip() + " …"


def draw_caught(results: QuickstartResults) -> ChartFacts:
    """Draw the shares of injected faults that were caught, missed or gone, by kind."""
    rows = [
        BarRow(
            kind.kind,
            [100 * n / max(kind.planted, 1) for n in (kind.caught, kind.gone, kind.missed)],
            f"{kind.caught:,} of {kind.planted:,}",
        )
        for kind in results.planted
    ]
    parts = (
        BarPart("caught"),
        BarPart("dropped earlier", "muted"),
        BarPart("missed", "c2", hatched=True),
    )
    return {
        "plot": plots.Bars(rows, plots.Axis("share of injected faults (%)"), parts),
        "columns": ("kind", "injected", "caught", "missed", "dropped earlier"),
        "rows": [(k.kind, k.planted, k.caught, k.missed, k.gone) for k in results.planted],
        "worst": max(results.planted, key=lambda kind: kind.missed / max(kind.planted, 1)),
    }


def draw_funnel(results: QuickstartResults) -> ChartFacts:
    """Draw the documents that remain after each reason to drop, from those read to those kept."""
    came = results.documents_in
    kept = results.documents_kept
    bars = [BarRow("pages read", (came, 0), f"{came:,}")]
    left = came
    for reason, documents in ((d.reason, d.documents) for d in results.dropped):
        left -= documents
        note = f"−{documents:,} · {format_percent(documents, came)}"
        bars.append(BarRow(reason, (left, documents), note))
    bars.append(BarRow("kept", (kept, 0), f"{kept:,} · {format_percent(kept, came)}"))
    parts = (BarPart("left"), BarPart("dropped here", "c2", hatched=True))
    most = max(results.dropped, key=lambda dropped: dropped.documents, default=None)
    return {
        "plot": plots.Bars(bars, plots.Axis("documents", "short"), parts),
        "columns": ("reason", "documents", "% of pages"),
        "rows": [
            (d.reason, d.documents, 100 * d.documents / max(came, 1)) for d in results.dropped
        ],
        "most": most.reason if most else None,
    }


def draw_sources(results: QuickstartResults) -> ChartFacts:
    """Draw the number of tokens of each source, largest first."""
    total = sum(results.tokens_by_source.values())
    sources = sorted(results.tokens_by_source.items(), key=lambda item: (-item[1], item[0]))
    rows = [BarRow(s, (n,), f"{format_short(n)} · {format_percent(n, total)}") for s, n in sources]
    axis = plots.Axis("tokens", "short")
    columns = ("source", "tokens")
    return {"plot": plots.Bars(rows, axis), "columns": columns, "rows": sources, "total": total}


def draw_loss(results: QuickstartResults) -> ChartFacts:
    """Draw the loss of the surviving attempts by tokens, with restarts and discarded steps."""
    tokens, losses, thrown = _list_points(results.loss)
    attempts = np.array([point.attempt for point in results.loss])
    steps = np.array([point.step for point in results.loss])
    kept = tokens[~thrown]
    over = plots.choose_mean_over(len(kept))
    faint, bold = plots.smooth(kept, losses[~thrown], over)
    held_out = np.array([(point.tokens, point.loss) for point in results.held_out])
    mean = np.asarray(bold.y)[-1]
    marks: list[plots.Mark] = [
        faint,
        Line(bold.x, bold.y, f"mean of {over} steps {mean:.2f}", width=2.2),
        Line(
            held_out[:, 0],
            held_out[:, 1],
            f"held-out {held_out[-1, 1]:.2f}",
            "c3",
            "D--",
            width=1,
        ),
    ]
    for attempt in np.unique(attempts[thrown]):
        dead = thrown & (attempts == attempt)
        label = "" if len(marks) > 3 else "discarded"
        marks.append(Line(tokens[dead], losses[dead], label, "c2", ":", width=2.5))
    for number, restart in enumerate(results.restarts, 1):
        # Not every step is logged, so a worker may have died between two points.
        at = float(np.interp(restart.killed_at, steps[~thrown], kept))
        marks.append(plots.Event(at, str(number), circled=True))
    axes = (plots.Axis("training tokens", "short"), plots.Axis("loss (nats per token)"))
    return _list_loss_rows(results) | {
        "plot": plots.Plot(marks, *axes, height=290),
        "steps": len(kept),
        "over": over,
    }


def draw_curve(y_label: str, columns: tuple[str, str], x: Numbers, y: Numbers) -> ChartFacts:
    """Draw a noisy series by step; throughput starts at 0."""
    over = plots.choose_mean_over(len(x))
    every = -(-len(x) // _TABLE_ROWS)
    kept = [i for i in range(len(x)) if i % every == 0 or i == len(x) - 1]
    speed = y_label == "tokens per second"
    axis = plots.Axis(y_label, "short", low=0) if speed else plots.Axis(y_label)
    return {
        "plot": plots.Plot(plots.smooth(x, y, over), plots.Axis("step", "short"), axis, height=220),
        "columns": columns,
        "rows": [(int(x[i]), float(y[i])) for i in kept],
        "steps": len(x),
        "over": over,
        "every": every,
        "found": y,
        "ends": (float(y[:over].mean()), float(plots.compute_trailing_mean(y, over)[-1])),
    }


def draw_speed(results: QuickstartResults) -> ChartFacts:
    """Draw the tokens per second by step."""
    points = np.array(results.speed, float)
    return draw_curve("tokens per second", ("step", "tokens/s"), *points.T)


def draw_tuning(results: QuickstartResults) -> ChartFacts:
    """Draw the loss of supervised fine-tuning by step."""
    points = np.array(results.tuning, float)
    return draw_curve("loss (nats per trained token)", ("step", "nats per token"), *points.T)


def draw_preferences(results: QuickstartResults) -> ChartFacts:
    """Draw the margin between the rewards of right and wrong answers, by step."""
    learnt = results.preferences
    points = [(p.step, p.right_reward - p.wrong_reward) for p in learnt.steps]
    label = "reward of right answers minus wrong answers"
    of = [*((point, "") for point in learnt.steps[-_TABLE_ROWS:]), (learnt.held_out, "held out")]
    return draw_curve(label, ("", ""), *np.array(points, float).T) | {
        "columns": ("step", "right", "wrong", "share of pairs ranked correctly", ""),
        "rows": [(p.step, p.right_reward, p.wrong_reward, p.accuracy, note) for p, note in of],
        "drifts": (("right", learnt.right_drift), ("wrong", learnt.wrong_drift)),
    }


def draw_scores(results: QuickstartResults) -> ChartFacts:
    """Draw the bits per byte by domain, of the first model and of the last."""
    pairs = [
        plots.BeforeAfter(score.domain, score.bits_per_byte[0], score.bits_per_byte[-1])
        for score in results.scores
    ]
    measures = [f"{name}, {model}" for name in ("bits per byte", "perplexity") for model in MODELS]
    return {
        "plot": plots.Pairs(pairs, plots.Axis("bits per byte"), (MODELS[0], MODELS[-1])),
        "columns": ("domain", *measures),
        "rows": [(s.domain, *s.bits_per_byte, *s.perplexity) for s in results.scores],
        "better": sum(pair.after < pair.before for pair in pairs),
    }


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


def _list_points(loss: Sequence[LossPoint]) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
    tokens = np.array([point.tokens for point in loss], dtype=np.float64)
    losses = np.array([point.loss for point in loss], dtype=np.float64)
    steps = np.array([point.step for point in loss], dtype=np.int64)
    attempts = np.array([point.attempt for point in loss], dtype=np.int64)
    return tokens, losses, plots.find_superseded(steps, attempts)


def _list_loss_rows(results: QuickstartResults) -> ChartFacts:
    _, _, thrown = _list_points(results.loss)
    held_out = {point.step: point.loss for point in results.held_out}
    every = -(-len(results.loss) // _TABLE_ROWS)
    rows = [
        (p.step, p.tokens, p.loss, held_out.get(p.step), p.attempt, "discarded" if dead else "")
        for index, (p, dead) in enumerate(zip(results.loss, thrown, strict=True))
        if index % every == 0 or index == len(results.loss) - 1 or p.step in held_out
    ]
    columns = ("step", "tokens", "loss", "held-out", "attempt", "")
    return {"columns": columns, "rows": rows, "every": every}
