"""Report page (`report.html`) of a fit: how far the law can be trusted, and how to use it.

The page includes charts of task scores over compute, if the runs have task scores.
"""

from collections.abc import Callable
from typing import TypeVar

from trainrig import storage
from trainrig.errors import DataError
from trainrig.report import page_rendering, plots
from trainrig.scaling import law_plots
from trainrig.scaling.fit import fit_charts, law_summary
from trainrig.scaling.fit.law_fit import LAW_FILE, Fitted
from trainrig.scaling.laws import best_split, law_formats
from trainrig.scaling.laws.law import IntervalEstimate, Law
from trainrig.scaling.laws.law_formats import format_interval, format_loss
from trainrig.scaling.regression.hoffmann import fit_envelope, fit_isoflops

F = TypeVar("F")
PAGE = "report.html"


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
    several = len(set(fitted.along.trial.tolist())) < len(fitted.along)
    assert law.ranges is not None  # a fitted law has ranges
    ask = float(f"{law.ranges.flops.greatest * law_summary.NEXT:.1e}")
    return page_rendering.render_page(
        __name__,
        law=law,
        state="warning" if law_summary.find_grave_warnings(law) else "done",
        warnings=law_summary.find_warnings(law),
        formats=law_formats,
        views=law_plots,
        ask=ask,
        next=law_summary.NEXT,
        best=best_split.steer(law).compute_optimum(ask),
        loss_interval=best_split.compute_split_interval(law, ask, lambda best: best.loss),
        ratio_interval=best_split.compute_split_interval(
            law, ask, lambda best: best.tokens_per_parameter
        ),
        key_figures=_list_key_figures(law)[:5],
        agreement=fit_charts.draw_law_agreement(law, runs),
        residuals=fit_charts.draw_residuals(law, runs),
        constants=_list_constants(law),
        profiles={
            name: fit_charts.draw_profile(name, found) for name, found in fitted.profiles.items()
        },
        optima=fit_charts.draw_optima(law, isoflop, envelope),
        contours=fit_charts.draw_loss_contours(law, runs),
        isoflops=fit_charts.draw_isoflops(runs, isoflop, fitted.settings.isoflop)
        if isoflop
        else None,
        curves=fit_charts.draw_envelope(fitted.along, envelope) if several else None,
        approaches=[
            (
                approach.name,
                *_format_exponent(approach.parameters_exponent),
                *_format_exponent(approach.tokens_exponent),
            )
            for approach in law.approaches
        ],
        forms=_list_forms(law) if len(law.compared) > 1 else [],
        tasks=[fit_charts.draw_task(task, runs) for task in law.tasks],
        ranges=[
            (name, f"{span.least:.3g}", f"{span.greatest:.3g}")
            for name, span in (
                ("parameters", law.ranges.parameters),
                ("tokens", law.ranges.tokens),
                ("FLOPs, 6ND", law.ranges.flops),
                ("tokens per parameter", law.ranges.tokens_per_parameter),
            )
        ],
        held_out=law_plots.take_first_rows(_list_held_out(law)),
        left_out=law_plots.take_first_rows(
            [(row.name, row.reason) for row in (law.fit.rows_left_out if law.fit else ())]
        ),
        folder=folder,
        law_file=f"{folder}/{LAW_FILE}",
    )


def _list_key_figures(law: Law) -> list[tuple[str, ...]]:
    figures: list[tuple[str, ...]] = [
        (title, f"{found.value:.5g}", unit, format_interval(found.bootstrap))
        for name, title, unit in (
            ("parameters_exponent", "Exponent of N*", ""),
            ("E", "Irreducible loss E", "nats per token"),
        )
        if (found := law.estimates.get(name))
    ]
    if held := law.held_out:
        worst = f"at most {held.worst_absolute_error:.2%}, n = {len(held.rows)}"
        figures.append(("Held-out error", f"{held.mean_absolute_error:.2%}", "", worst))
    if fit := law.fit:
        norm = f"gradient norm {fit.gradient_norm:.1e}"
        agree = f"{fit.starts_that_agree:.0%}"
        left_out = f"{len(fit.rows_left_out)} left out"
        figures.append(("Starts at the minimum", agree, f"of {fit.starts}", norm))
        figures.append(("Runs fitted", f"{fit.rows_used:,}", "", left_out))
    return figures


def _list_constants(law: Law) -> list[plots.Row]:
    return [
        (
            name.replace("_", " "),
            f"{found.value:.5g}",
            *law_plots.format_ends(found.bootstrap),
            *law_plots.format_ends(found.profile),
            "–" if found.standard_error is None else f"{found.standard_error:.3g}",
        )
        for name, found in law.estimates.items()
    ]


def _format_exponent(estimate: IntervalEstimate | None) -> tuple[str, str, str]:
    if estimate is None:
        return "–", "–", "–"
    return f"{estimate.value:.4f}", *law_plots.format_ends(estimate.bootstrap)


def _list_forms(law: Law) -> list[plots.Row]:
    least = min((f.criterion for f in law.compared if f.criterion is not None), default=0.0)
    return [
        (
            found.form.kind,
            f"{found.objective:.6g}",
            None if found.held_out_error is None else f"{found.held_out_error:.2%}",
            None if found.criterion is None else f"{found.criterion - least:+.1f}",
        )
        for found in law.compared
    ]


def _list_held_out(law: Law) -> list[plots.Row]:
    """Return the rows of the held-out runs, the largest first."""
    rows = law.held_out.rows if law.held_out else ()
    return [
        (
            row.name,
            f"{row.parameters:.3g}",
            f"{row.tokens:.3g}",
            format_loss(row.loss),
            format_loss(row.predicted),
            format_interval(row.interval),
            f"{row.error:+.2%}",
        )
        for row in sorted(rows, key=lambda row: -row.parameters * row.tokens)
    ]


def _try_fit(fit: Callable[[], F]) -> F | None:
    try:
        return fit()
    except DataError:
        return None
