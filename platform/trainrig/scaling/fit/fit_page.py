"""Report page (`report.html`) of a fit: how far the law can be trusted, and how to use it.

The page includes charts of task scores over compute, if the runs have task scores.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from trainrig import figures, report, storage
from trainrig.errors import DataError
from trainrig.report import Chart, Details, KeyFigure, ReportTable, Section, Text
from trainrig.scaling.fit import fit_charts, law_views
from trainrig.scaling.fit.law_fit import LAW_FILE, Fitted
from trainrig.scaling.fit.law_summary import find_grave_warnings, find_warnings
from trainrig.scaling.law_plots import Band, ScoredRuns, plot_task_scores
from trainrig.scaling.laws.law import IntervalEstimate, Law, TaskLaw, refuse_draws
from trainrig.scaling.laws.law_formats import format_count, format_interval, format_loss
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.hoffmann import EnvelopeFit, IsoFlopFit, fit_envelope, fit_isoflops


def build_task_blocks(fitted: Fitted) -> tuple[Text | Chart, ...]:
    """Build a chart for each task law, and a text for each task without one."""
    charts = (_chart_task(task, fitted.runs) for task in fitted.law.tasks)
    refused = (Text(f"{name}: no law: {why}.") for name, why in fitted.law.tasks_refused.items())
    return (*charts, *refused)


def _chart_task(task: TaskLaw, runs: RunsTable) -> Chart:
    asked = runs.select(~np.isnan(runs.task_scores[task.task]))
    flops = asked.flops_6nd
    scores = asked.task_scores[task.task]
    losses = asked.task_losses[task.task]
    form = task.form
    line = np.geomspace(flops.min(), flops.max() * law_views.BEYOND, law_views.COMPUTES)
    band = Band(line, form.compute_score(line))
    if not refuse_draws(len(task.draws), task.draws_failed):
        tails = ((1 - law_views.LEVEL) / 2, (1 + law_views.LEVEL) / 2)
        band = Band(line, band.value, *np.quantile(task.drawn.compute_score(line), tails, axis=0))
    ask = 10 * float(flops.max())
    rows = zip(
        asked.name.tolist(), map(law_views.format_power, flops), losses.tolist(), scores.tolist(),
        form.compute_score(flops).tolist(), strict=True,
    )  # fmt: skip
    return Chart(
        f"{task.task}: expected score {float(form.compute_score(ask)):.3f} "
        f"{format_interval(task.compute_interval(ask))} at {law_views.format_power(ask)} FLOPs, "
        "10 times the largest run",
        figures.draw(
            partial(
                plot_task_scores,
                law=band,
                runs=ScoredRuns(flops, scores, asked.task_errors[task.task]),
                chance=form.chance,
            ),
            300,
        ),
        label=f"Score of {task.task} against compute, with the law and its band.",
        caption=f"n = {task.runs} runs, with standard errors of their scores. The loss of right "
        f"answers is {form.E:.3g} + {form.A:.3g} "
        f"(C/{law_views.format_power(form.unit)})^-{form.alpha:.3g} nats per byte. The score is "
        f"half-way from chance to 1 at a loss of {form.middle:.3g}. The band contains "
        f"{law_views.LEVEL:.0%} of {len(task.draws):,} bootstrap draws of the expected score.",
        table=ReportTable(
            "Runs",
            ("run", "FLOPs", "loss of right answers, nats per byte", "score", "predicted score"),
            tuple(rows),
        ),
    )


F = TypeVar("F")
PAGE = "report.html"
NEXT = 10.0  # factor beyond the largest compute, a common extrapolation
LISTED = 60  # most rows of a table


def write_fit_page(folder: str, fitted: Fitted) -> str:
    """Write the fit's `report.html` to `folder`, beside its law, and return the path."""
    path = storage.join(folder, PAGE)
    storage.write(path, build_fit_page(fitted, folder).encode())
    return path


def build_fit_page(fitted: Fitted, folder: str) -> str:
    """Return the HTML page of a fit whose `law.json` is in `folder`."""
    law = fitted.law
    runs = fitted.runs
    isoflop = _try_fit(lambda: fit_isoflops(runs, fitted.settings.isoflop))
    envelope = _try_fit(lambda: fit_envelope(fitted.along, fitted.settings.envelope))
    curves: list[Chart] = []
    if isoflop is not None:
        curves.append(fit_charts.chart_isoflops(runs, isoflop))
    if len(set(fitted.along.trial.tolist())) < len(fitted.along):
        curves.append(fit_charts.chart_envelope(fitted.along, envelope))
    asked = law.tasks or law.tasks_refused
    sections = [
        Section(
            "fit",
            "How well it fits",
            (fit_charts.chart_agreement(law, runs), *fit_charts.chart_residuals(law, runs)),
        ),
        Section("constants", "Confidence in the constants", _build_constants(fitted)),
        Section(
            "frontier",
            "Compute-optimal size and tokens",
            _chart_frontier(law, runs, isoflop, envelope),
        ),
        Section("approaches", "Other approaches", (*curves, *_build_approaches(law))),
        *([Section("tasks", "Predicted task scores", build_task_blocks(fitted))] if asked else []),
        Section("rows", "Fitted runs", _build_rows(law)),
    ]
    page = report.ReportPage(
        title=f"Scaling law: {law.name}",
        verdict=report.Verdict(
            _format_sentence(law),
            "warning" if find_grave_warnings(law) else "done",
            find_warnings(law),
        ),
        figures=_build_key_figures(law),
        sections=tuple(sections),
        commands=_list_commands(law, folder),
        provenance={
            "Files": {"law": f"{folder}/{LAW_FILE}", "runs": law.source or "–"},
            "Made by": dict(law.made_by),
        },
    )
    return page.render_html()


def _format_sentence(law: Law) -> str:
    ask = _compute_asked_flops(law)
    best = law.form.compute_optimum(ask)
    found = law.compute_interval(lambda form: float(form.compute_optimum(ask).loss))
    factor = f"{NEXT:g} times the largest run's compute"
    chosen = f" Form: {law.choice}." if law.choice else ""
    return (
        f"At {law_views.format_power(ask)} FLOPs, {factor}, {format_count(float(best.parameters))} "
        f"parameters on {format_count(float(best.tokens))} tokens are compute-optimal, with a "
        "loss of "
        f"{format_loss(float(best.loss))}{'' if found is None else f' {format_interval(found)}'} "
        f"nats per token.{chosen}"
    )


def _compute_asked_flops(law: Law) -> float:
    """Return the compute that the page predicts for: NEXT times the largest, to two digits."""
    assert law.ranges is not None  # a fitted law has ranges
    return float(f"{law.ranges.flops.greatest * NEXT:.1e}")


def _build_key_figures(law: Law) -> tuple[KeyFigure, ...]:
    ask = _compute_asked_flops(law)
    ratio = float(law.form.compute_optimum(ask).tokens_per_parameter)
    ratio_interval = law.compute_interval(
        lambda form: float(form.compute_optimum(ask).tokens_per_parameter)
    )
    figures = [
        KeyFigure(
            "D/N",
            f"{ratio:.3g}",
            "tokens per parameter",
            f"at {law_views.format_power(ask)} FLOPs; {format_interval(ratio_interval)}",
        )
    ]
    for name, title in (("parameters_exponent", "Exponent of N*"), ("E", "Irreducible loss E")):
        if name in law.estimates:
            estimate = law.estimates[name]
            unit = "nats per token" if name == "E" else ""
            figures.append(
                KeyFigure(title, f"{estimate.value:.5g}", unit, format_interval(estimate.bootstrap))
            )
    held = law.held_out
    if held is not None:
        worst = f"at most {held.worst_absolute_error:.2%}, n = {len(held.rows)}"
        figures.append(KeyFigure("Held-out error", f"{held.mean_absolute_error:.2%}", "", worst))
    fit = law.fit
    if fit is not None:
        figures += [
            KeyFigure(
                "Starts at the minimum",
                f"{fit.starts_that_agree:.0%}",
                f"of {fit.starts}",
                f"gradient norm {fit.gradient_norm:.1e}",
            ),
            KeyFigure(
                "Runs fitted", f"{fit.rows_used:,}", "", f"{len(fit.rows_left_out)} left out"
            ),
        ]
    return tuple(figures[:6])


def _build_constants(fitted: Fitted) -> tuple[Text | ReportTable | Details, ...]:
    law = fitted.law
    rows = tuple(
        (
            name.replace("_", " "),
            f"{estimate.value:.5g}",
            *law_views.format_ends(estimate.bootstrap),
            *law_views.format_ends(estimate.profile),
            "–" if estimate.standard_error is None else f"{estimate.standard_error:.3g}",
        )
        for name, estimate in law.estimates.items()
    )
    table = ReportTable(
        (
            "Constants with 95% intervals by bootstrap and by profile, and standard errors by "
            "bootstrap"
        ),
        ("constant", "value", "bootstrap low", "high", "profile low", "high", "standard error"),
        rows,
    )
    chosen = f" Form: {law.choice}." if law.choice else ""
    text = Text(
        f"{law_views.format_formula(law.form)}, N {law.parameters_count}, "
        f"losses in {law.loss_unit}.{chosen}"
    )
    fit = law.fit
    proof = (
        ""
        if fit is None
        else (
            f"{fit.loss} of the residuals of log loss"
            + ("" if fit.delta is None else f", delta {fit.delta:g}")
            + f", summed over {fit.rows_used} rows: {fit.objective:.6g}; gradient norm "
            f"{fit.gradient_norm:.1e}; {fit.starts_that_agree:.0%} of {fit.starts} starts agree."
        )
    )
    charts = fit_charts.chart_profiles(fitted.profiles)
    folded = tuple(Details(chart.title, (chart,)) for chart in charts)
    return text, table, *((Text(proof),) if proof else ()), *folded


def _chart_frontier(
    law: Law, runs: RunsTable, isoflop: IsoFlopFit | None, envelope: EnvelopeFit | None
) -> tuple[Chart, ...]:
    return (*fit_charts.chart_optima(law, isoflop, envelope), fit_charts.chart_contours(law, runs))


def _build_approaches(law: Law) -> tuple[ReportTable | Text, ...]:
    approaches = ReportTable(
        "Exponents of N* and D* by approach, with 95% intervals by bootstrap",
        ("approach", "N* ~ C^", "low", "high", "D* ~ C^", "low", "high"),
        tuple(
            (
                approach.name,
                *_format_exponent(approach.parameters_exponent),
                *_format_exponent(approach.tokens_exponent),
            )
            for approach in law.approaches
        ),
    )
    forms = ReportTable(
        "Forms fitted to the same rows",
        ("form", "objective", "held-out error", "AIC above the lowest"),
        tuple(
            (
                compared.form.kind,
                f"{compared.objective:.6g}",
                None if compared.held_out_error is None else f"{compared.held_out_error:.2%}",
                None
                if compared.criterion is None
                else f"{compared.criterion - _find_least_criterion(law):+.1f}",
            )
            for compared in law.compared
        ),
    )
    notes = (
        Text(f"{approach.name}: {approach.note}.") for approach in law.approaches if approach.note
    )
    return (approaches, *notes, *((forms,) if len(law.compared) > 1 else ()))


def _format_exponent(estimate: IntervalEstimate | None) -> tuple[str, str, str]:
    if estimate is None:
        return "–", "–", "–"
    return f"{estimate.value:.4f}", *law_views.format_ends(estimate.bootstrap)


def _find_least_criterion(law: Law) -> float:
    return min(compared.criterion for compared in law.compared if compared.criterion is not None)


def _build_rows(law: Law) -> tuple[ReportTable | Text, ...]:
    blocks: list[ReportTable | Text] = []
    if law.ranges is not None:
        spans = law.ranges
        blocks.append(
            ReportTable(
                "Range of the runs",
                ("", "least", "greatest"),
                tuple(
                    (name, f"{span.least:.3g}", f"{span.greatest:.3g}")
                    for name, span in (
                        ("parameters", spans.parameters),
                        ("tokens", spans.tokens),
                        ("FLOPs, 6ND", spans.flops),
                        ("tokens per parameter", spans.tokens_per_parameter),
                    )
                ),
            )
        )
    if law.held_out is not None:
        largest = sorted(law.held_out.rows, key=lambda row: -row.parameters * row.tokens)
        blocks.append(
            ReportTable(
                f"Held out: {law.held_out.rule}{_describe_cut(len(largest))}",
                ("run", "parameters", "tokens", "measured", "predicted", "95%", "error"),
                tuple(
                    (
                        r.name,
                        f"{r.parameters:.3g}",
                        f"{r.tokens:.3g}",
                        format_loss(r.loss),
                        format_loss(r.predicted),
                        format_interval(r.interval),
                        f"{r.error:+.2%}",
                    )
                    for r in largest[:LISTED]
                ),
            )
        )
    left_out = law.fit.rows_left_out if law.fit else ()
    if left_out:
        blocks.append(
            ReportTable(
                f"Rows left out by a rule{_describe_cut(len(left_out))}",
                ("row", "reason"),
                tuple((row.name, row.reason) for row in left_out[:LISTED]),
            )
        )
    else:
        blocks.append(Text("All rows were fitted."))
    return tuple(blocks)


def _describe_cut(rows: int) -> str:
    return f", {LISTED} of {rows:,}" if rows > LISTED else ""


def _list_commands(law: Law, folder: str) -> tuple[report.PageCommand, ...]:
    ask = law_views.format_power(_compute_asked_flops(law))
    return (
        report.PageCommand(
            f"trainrig plan {folder}/{LAW_FILE} --flops {ask}", "Plan a run with this compute"
        ),
        report.PageCommand(
            f"trainrig plan {folder}/{LAW_FILE} --flops {ask} "
            "--out RUN.toml --set tokens_folder=TOKENS",
            "Write a run file for pretrain",
        ),
    )


def _try_fit(fit: Callable[[], F]) -> F | None:
    try:
        return fit()
    except DataError:
        return None
