"""Warnings about a fitted law."""

from trainrig.scaling.laws.figure_format import format_interval
from trainrig.scaling.laws.law import IntervalEstimate, Law

FEW_AGREE = 0.5  # if fewer starts agree on the best minimum, a better one may have been missed
STEEP = 1e-4  # gradient norm above which the search had not converged
FAILED = 0.05  # share of bootstrap draws without a fit that is reported
MISSED = 0.02  # mean relative error on held-out runs that makes a law doubtful


def find_warnings(law: Law) -> tuple[str, ...]:
    """Find what a reader must know before trusting the law, most serious first."""
    left_out = law.fit.rows_left_out if law.fit else ()
    if not left_out or law.fit is None:
        return find_grave_warnings(law)
    total = law.fit.rows_used + len(left_out)
    some = f"Left out by rule: {len(left_out)} of {total:,} rows; the last section lists them."
    return (*find_grave_warnings(law), some)


def find_grave_warnings(law: Law) -> tuple[str, ...]:
    """Find the warnings that the law may be wrong."""
    found = []
    fit = law.fit
    held_out = law.held_out
    open_ones = [name for name, estimate in law.estimates.items() if _is_open(estimate)]
    if open_ones:
        found.append(
            f"The runs do not bound {', '.join(open_ones)}: predictions that depend on "
            f"{'it' if len(open_ones) == 1 else 'them'} may be far off."
        )
    if fit is not None and fit.starts_that_agree < FEW_AGREE:
        found.append(
            f"Only {fit.starts_that_agree:.0%} of {fit.starts} starts ended at the best minimum, "
            "so a better minimum may exist."
        )
    if fit is not None and fit.gradient_norm > STEEP:
        found.append(f"The search did not converge: gradient norm {fit.gradient_norm:.1e}.")
    asked = len(law.draws) + (fit.draws_failed if fit else 0)
    if fit is not None and fit.draws_failed > FAILED * asked:
        found.append(
            f"{fit.draws_failed} of {asked} bootstrap draws have no fit, so the intervals are "
            "too narrow."
        )
    found += [
        f"The bootstrap interval of {name}, {format_interval(estimate.bootstrap)}, does not "
        f"contain its estimate, {estimate.value:.5g}: the draws are biased; use the profile "
        "interval."
        for name, estimate in law.estimates.items()
        if estimate.bootstrap is not None and not estimate.bootstrap.contains(estimate.value)
    ]
    if held_out is None:
        why = f" ({law.not_judged})" if law.not_judged else ""
        found.append(f"No runs were held out{why}, so it is unknown how well the law extrapolates.")
    else:
        outside = [r for r in held_out.rows if r.interval and not r.interval.contains(r.loss)]
        if held_out.mean_absolute_error > MISSED:
            found.append(
                f"A fit to the other runs missed the largest runs by "
                f"{held_out.mean_absolute_error:.2%} on average."
            )
        if len(outside) > max(1, len(held_out.rows) // 5):
            found.append(
                f"{len(outside)} of {len(held_out.rows)} held-out runs lie outside their "
                "intervals, which are therefore too narrow."
            )
    own = law.compared[0] if law.compared else None
    if own is not None and own.as_good is False and own.held_out_error is not None:
        known = [compared for compared in law.compared if compared.held_out_error is not None]
        best = min(known, key=lambda compared: compared.held_out_error or 0.0)
        found.append(
            f"The form {best.form.kind} predicts the held-out runs better: its mean error is "
            f"{best.held_out_error:.2%}, the error of this form is {own.held_out_error:.2%}."
        )
    better = _find_better_form(law)
    if better:
        found.append(f"The form {better} fits these runs better; compare the forms below.")
    return (*found, *_find_disagreements(law))


def _is_open(estimate: IntervalEstimate) -> bool:
    intervals = [
        interval for interval in (estimate.profile, estimate.bootstrap) if interval is not None
    ]
    return any(interval.low is None or interval.high is None for interval in intervals)


def _find_better_form(law: Law) -> str | None:
    """Return a form whose Akaike criterion is lower by more than 10, or None."""
    known = [compared for compared in law.compared if compared.criterion is not None]
    own = [compared.criterion for compared in known if compared.form.kind == law.form.kind]
    if not own or own[0] is None:
        return None
    best = min(known, key=lambda compared: compared.criterion or 0.0)
    return best.form.kind if (best.criterion or 0.0) < own[0] - 10 else None


def _find_disagreements(law: Law) -> list[str]:
    """Return warnings of approaches whose interval of N*'s exponent does not overlap the law's."""
    own = law.estimates.get("parameters_exponent")
    if own is None or own.bootstrap is None:
        return []
    low = own.bootstrap.low
    high = own.bootstrap.high
    found = []
    for approach in law.approaches:
        exponent = approach.parameters_exponent
        if exponent is None or exponent.bootstrap is None or None in (low, high):
            continue
        if (exponent.bootstrap.low or 0) > (high or 1) or (exponent.bootstrap.high or 1) < (
            low or 0
        ):
            found.append(
                f"N* grows as C^{exponent.value:.3f} {format_interval(exponent.bootstrap)} by "
                f"the {approach.name} approach, but as C^{own.value:.3f} "
                f"{format_interval(own.bootstrap)} by the law: the intervals do not overlap."
            )
    return found
