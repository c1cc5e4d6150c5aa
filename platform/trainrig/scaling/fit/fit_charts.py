"""Charts of a fit's report page, each with a title that states its finding in numbers."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from trainrig import figures
from trainrig.report import Cell, Chart, ReportTable, format_short
from trainrig.scaling import law_plots
from trainrig.scaling.fit import law_views
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_forms import Array
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.hoffmann import EnvelopeFit, IsoFlopFit, group_by_budget
from trainrig.scaling.regression.profile_likelihood import Profile

TABLE_ROWS = 60  # about a screenful; law.json and the table of runs have all rows


def chart_agreement(law: Law, runs: RunsTable) -> Chart:
    """Chart predicted over measured loss, with held-out runs predicted by the fit without them."""
    predicted = _predict_losses(law, runs)
    kept = law.held_out
    held = np.array([row.loss for row in kept.rows] if kept else [])
    said = np.array([row.predicted for row in kept.rows] if kept else [])
    error = np.abs(predicted / runs.loss - 1)
    fitted = law_plots.Agreement(predicted, runs.loss)
    title = f"The median error of the law is {np.median(error):.2%}, the largest {error.max():.1%}"
    caption = f"n = {len(runs):,} runs, predicted by the law."
    if kept is not None:
        title += f"; {kept.mean_absolute_error:.2%} on average for held-out runs"
        caption += f" Diamonds: {kept.rule}, predicted by a fit to the other runs."
    return Chart(
        title,
        figures.draw(
            partial(
                law_plots.plot_agreement,
                fitted=fitted,
                held_out=law_plots.Agreement(said, held) if kept else None,
            ),
            330,
        ),
        label="Measured loss of each run against its predicted loss.",
        caption=caption,
        table=_build_table(
            "Losses, nats per token",
            ("run", "parameters", "tokens", "measured", "predicted"),
            [
                (str(runs.name[i]), runs.parameters[i], runs.tokens[i], runs.loss[i], predicted[i])
                for i in range(len(runs))
            ],
        ),
    )


def chart_residuals(law: Law, runs: RunsTable) -> tuple[Chart, Chart]:
    """Chart the errors over parameters, and over tokens."""
    error = _predict_losses(law, runs) / runs.loss - 1
    kept = law.held_out.rows if law.held_out else ()
    held_error = np.array([row.error for row in kept])
    sides = (
        ("parameters", runs.parameters, np.array([row.parameters for row in kept])),
        ("tokens", runs.tokens, np.array([row.tokens for row in kept])),
    )
    first, second = (
        _chart_residual(
            unit, law_plots.Residuals(sizes, error), law_plots.Residuals(held, held_error)
        )
        for unit, sizes, held in sides
    )
    return first, second


def _chart_residual(unit: str, fitted: law_plots.Residuals, held_out: law_plots.Residuals) -> Chart:
    least, most = np.quantile(fitted.size, (0.2, 0.8))
    few = fitted.error[fitted.size <= least].mean()
    many = fitted.error[fitted.size >= most].mean()
    title = f"Mean error {few:+.2%} for the fewest {unit}, {many:+.2%} for the most"
    rows = zip(fitted.size.tolist(), (100 * fitted.error).tolist(), strict=True)
    return Chart(
        title,
        figures.draw(
            partial(law_plots.plot_residuals, fitted=fitted, unit=unit, held_out=held_out), 240
        ),
        label=f"Relative errors of the runs against {unit}.",
        caption=f"n = {len(fitted.size):,} runs. The title compares the fifths of the runs at both "
        "ends. A trend shows an effect that the form cannot express.",
        table=_build_table("Errors", (unit, "predicted above measured, %"), list(rows)),
    )


def chart_optima(
    law: Law, isoflop: IsoFlopFit | None, envelope: EnvelopeFit | None
) -> tuple[Chart, Chart]:
    """Chart N* and D* over compute, by the law with its interval and by the other approaches."""
    flops = law_views.space_computes(law)
    sizes = law_views.compute_band(law, flops, lambda best: best.parameters)
    tokens = law_views.compute_band(law, flops, lambda best: best.tokens)
    return (
        _chart_optimum(
            law, sizes, "parameters", _collect_other_ways(flops, isoflop, envelope, "parameters")
        ),
        _chart_optimum(
            law, tokens, "tokens", _collect_other_ways(flops, isoflop, envelope, "tokens")
        ),
    )


def _chart_optimum(
    law: Law, found: law_plots.Band, quantity: str, others: Sequence[law_plots.OtherWay]
) -> Chart:
    assert law.ranges is not None  # a fitted law has ranges
    span = law.ranges.flops
    slope = np.log(found.value[-1] / found.value[0]) / np.log(found.x[-1] / found.x[0])
    drawn = len(law.draws)
    sure = f" The band holds 95% of {drawn:,} bootstrap draws." if found.low is not None else ""
    few = np.unique(np.linspace(0, len(found.x) - 1, 16).astype(int))
    ends = (found.low, found.high) if found.low is not None and found.high is not None else None
    rows: list[tuple[Cell, ...]] = [
        (
            law_views.format_power(found.x[i], 3),
            format_short(found.value[i]),
            *((format_short(ends[0][i]), format_short(ends[1][i])) if ends else (None, None)),
        )
        for i in few
    ]
    return Chart(
        f"Compute-optimal {quantity} grow as compute to the power {slope:.3f}",
        figures.draw(
            partial(
                law_plots.plot_optimum,
                band=found,
                quantity=f"compute-optimal {quantity}",
                others=others,
                fitted=(span.least, span.greatest),
            ),
            300,
        ),
        label=f"Compute-optimal {quantity} against compute, with a band.",
        caption=f"Shaded: the compute of the runs, {law_views.format_power(span.least)} to "
        f"{law_views.format_power(span.greatest)} FLOPs. Outside, the law extrapolates.{sure}",
        table=_build_table(f"Compute-optimal {quantity}", ("FLOPs", quantity, "low", "high"), rows),
    )


def _collect_other_ways(
    flops: Array, isoflop: IsoFlopFit | None, envelope: EnvelopeFit | None, quantity: str
) -> list[law_plots.OtherWay]:
    found = []
    if isoflop is not None:
        line = getattr(isoflop, quantity)
        found.append(
            law_plots.OtherWay("parabolas", flops, line.coefficient * flops**line.exponent)
        )
        at = np.array([bowl.flops for bowl in isoflop.bowls])
        lowest = np.array([getattr(bowl, quantity) for bowl in isoflop.bowls])
        found.append(law_plots.OtherWay("minima of the parabolas", at, lowest, points=True))
    if envelope is not None:
        line = getattr(envelope, quantity)
        found.append(law_plots.OtherWay("envelope", flops, line.coefficient * flops**line.exponent))
    return found


def chart_contours(law: Law, runs: RunsTable) -> Chart:
    """Chart the loss over parameters and tokens, with the runs and the optimum at each compute."""
    assert law.ranges is not None  # a fitted law has ranges
    wide = 3.0  # factor by which the chart extends the range of the runs, on either side
    sizes = law.ranges.parameters
    seen = law.ranges.tokens
    ends = (sizes.least / wide, sizes.greatest * wide), (seen.least / wide, seen.greatest * wide)
    best = law.form.compute_optimum(law_views.space_computes(law))
    ratios = runs.tokens / runs.parameters
    return Chart(
        f"The runs have {format_short(ratios.min())} to {format_short(ratios.max())} tokens per "
        "parameter",
        figures.draw(
            partial(
                law_plots.plot_contours,
                surface=law_views.compute_surface(law.form, *ends),
                frontier=(best.parameters, best.tokens),
                runs=(runs.parameters, runs.tokens),
            ),
            340,
        ),
        label="Lines of equal loss over parameters and tokens.",
        caption=f"n = {len(runs):,} runs. Lines: loss by the law, nats per token. Far from the "
        "runs, only the form determines the lines.",
        table=_build_table(
            "Compute-optimal parameters and tokens",
            ("FLOPs", "parameters", "tokens", "loss (nats per token)"),
            [
                (law_views.format_power(c, 3), format_short(n), format_short(d), loss)
                for c, n, d, loss in zip(
                    law_views.space_computes(law)[::5],
                    best.parameters[::5],
                    best.tokens[::5],
                    best.loss[::5].tolist(),
                    strict=True,
                )
            ],
        ),
    )


def chart_isoflops(runs: RunsTable, fit: IsoFlopFit) -> Chart:
    """Chart each budget's losses with their parabola and its lowest point."""
    by_rows = {bowl.rows: bowl for bowl in fit.bowls}
    drawn = []
    for rows in group_by_budget(runs):
        bowl = by_rows.get(tuple(int(row) for row in rows))
        if bowl is None and len(rows) < 4:
            continue
        drawn.append(
            law_plots.Parabola(
                flops=float(np.median(runs.flops_6nd[rows])),
                parameters=runs.parameters[rows],
                loss=runs.loss[rows],
                lowest=(bowl.parameters, bowl.loss) if bowl else None,
                curvature=bowl.curvature if bowl else 0.0,
            )
        )
    lowest = [bowl for bowl in drawn if bowl.lowest]
    refused = len(drawn) - len(lowest)
    title = f"Budgets with a minimum between their sizes: {len(lowest)}"
    return Chart(
        f"{title}; without: {refused}" if refused else title,
        figures.draw(partial(law_plots.plot_isoflops, budgets=drawn), 320),
        label="Loss against parameters, one parabola per budget with its minimum marked.",
        caption=f"n = {sum(len(b.loss) for b in drawn):,} runs of {len(drawn)} budgets, labelled "
        "in FLOPs. Dotted: a budget without a minimum between its sizes, which is not fitted.",
        table=_build_table(
            "Minima of the parabolas",
            ("FLOPs", "parameters", "loss (nats per token)"),
            [
                (law_views.format_power(b.flops, 3), format_short(b.lowest[0]), b.lowest[1])
                for b in lowest
                if b.lowest
            ],
        ),
    )


def chart_envelope(along: RunsTable, fit: EnvelopeFit | None) -> Chart:
    """Chart every training curve, and the least loss at each compute."""
    drawn = []
    for trial in dict.fromkeys(along.trial.tolist()):
        rows = np.flatnonzero(along.trial == trial)
        order = rows[np.argsort(along.flops_6nd[rows], kind="stable")]
        drawn.append(law_plots.LossCurve(along.flops_6nd[order], along.loss[order]))
    least = None if fit is None else (fit.flops, fit.loss)
    sizes = 0 if fit is None else len(np.unique(fit.best))
    title = f"{len(drawn):,} training curves"
    return Chart(
        title if fit is None else f"{title}; {sizes} sizes are best at some compute",
        figures.draw(partial(law_plots.plot_loss_curves, curves=drawn, envelope=least), 300),
        label="Loss against compute, one line per training run, with their envelope.",
        caption=f"n = {len(along):,} points of {len(drawn):,} training runs.",
        table=_build_table(
            "Points",
            ("run", "FLOPs", "loss (nats per token)"),
            [
                (str(along.trial[i]), law_views.format_power(along.flops_6nd[i], 3), along.loss[i])
                for i in range(len(along))
            ],
        ),
    )


def chart_profiles(profiles: Mapping[str, Profile]) -> tuple[Chart, ...]:
    """Chart how the objective rises as each constant is moved from its best value."""
    return tuple(_chart_profile(name, profile) for name, profile in profiles.items())


def _chart_profile(name: str, profile: Profile) -> Chart:
    interval = profile.interval
    ends = (
        "no bound below" if interval.low is None else f"from {interval.low:.4g}",
        "no bound above" if interval.high is None else f"to {interval.high:.4g}",
    )
    drawn = law_plots.Profiled(
        name=name,
        values=profile.values,
        rise=profile.rises / profile.cutoff,
        best=profile.best,
        low=interval.low,
        high=interval.high,
    )
    rows = zip(profile.values.tolist(), (profile.rises / profile.cutoff).tolist(), strict=True)
    return Chart(
        f"{name}: {', '.join(ends)}",
        figures.draw(partial(law_plots.plot_profile, profile=drawn), 200),
        label=f"Rise of the objective for other values of {name}.",
        caption="Values below the dashed line are within the 95% interval. All other constants are "
        "fitted again at each point.",
        table=_build_table(
            f"Profile of {name}", (name, "rise (1 at the ends of the interval)"), list(rows)
        ),
    )


def _predict_losses(law: Law, runs: RunsTable) -> Array:
    unique = np.where(np.isnan(runs.unique_tokens), runs.tokens, runs.unique_tokens)
    return law.form.compute_loss(runs.parameters, runs.tokens, unique)


def _build_table(
    caption: str, columns: tuple[str, ...], rows: Sequence[tuple[Cell, ...]]
) -> ReportTable:
    """Build a table of at most TABLE_ROWS of the rows, evenly spaced."""
    if len(rows) <= TABLE_ROWS:
        return ReportTable(caption, columns, tuple(rows))
    chosen = np.unique(np.linspace(0, len(rows) - 1, TABLE_ROWS).astype(int))
    return ReportTable(
        f"{caption}, {TABLE_ROWS} of {len(rows):,}", columns, tuple(rows[i] for i in chosen)
    )
