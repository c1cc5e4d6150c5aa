"""Text summary of a fitted law, as `trainrig fit` prints it, and warnings about the law."""

from collections.abc import Iterator

from trainrig.scaling.laws import best_split
from trainrig.scaling.laws.law import Approach, HeldOutErrors, IntervalEstimate, Law
from trainrig.scaling.laws.law_formats import format_interval

NEXT = 10.0  # factor beyond the largest compute, a common extrapolation
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
    found = [f"Assumed: {law.assumed}."] if law.assumed else []
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
            f"The form {best.form.kind} predicts larger runs better: its mean error is "
            f"{best.held_out_error:.2%}, the error of this form is {own.held_out_error:.2%}."
        )
    if law.ranges is not None:
        ahead = float(f"{law.ranges.flops.greatest * NEXT:.1e}")
        if apart := best_split.describe_disagreement(law, ahead):
            leading = best_split.name_leading(law)
            found.append(f"{apart[0].upper()}{apart[1:]}. Plans follow {leading}.")
    better = _find_better_form(law)
    if better:
        found.append(f"The form {better} fits these runs better; compare the forms below.")
    return (*found, *_find_disagreements(law))


def _is_open(estimate: IntervalEstimate) -> bool:
    intervals = (estimate.profile, estimate.bootstrap)
    return any(interval and None in (interval.low, interval.high) for interval in intervals)


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


LISTED = 8  # rows printed of any list; the law's file has all


def describe_law(law: Law) -> Iterator[str]:
    """Yield the lines of the summary, the law first."""
    yield f"{law.name}: {law.form.kind}, losses in {law.loss_unit}, tokenizer {law.tokenizer}"
    if law.choice:
        yield f"form: {law.choice}"
    if law.ranges is not None:
        n = law.ranges.parameters
        d = law.ranges.tokens
        c = law.ranges.flops
        yield (
            f"fitted where N = {n.least:.3g} to {n.greatest:.3g} ({law.parameters_count}), "
            f"D = {d.least:.3g} to {d.greatest:.3g}, 6ND = {c.least:.3g} to {c.greatest:.3g}"
        )
    yield ""
    found = (estimate.bootstrap for estimate in law.estimates.values() if estimate.bootstrap)
    level = f"{next((interval.level for interval in found), 0.95):.0%}"
    yield f"{'':22}{'value':>12}  {f'{level} by bootstrap':24}{level} by profile"
    for name, estimate in law.estimates.items():
        bootstrap = _format_bootstrap(estimate)
        yield f"{name:22}{estimate.value:>12.5g}  {bootstrap:24}{estimate.profile or ''}"
    yield from _describe_fit(law)
    for approach in law.approaches:
        yield from _describe_approach(approach)
    if law.held_out is not None:
        yield from _describe_held_out(law.held_out)
    elif law.not_judged:
        yield ""
        yield f"held out: no runs: {law.not_judged}"
    yield from _describe_forms(law)
    yield from _describe_tasks(law)


def _describe_tasks(law: Law) -> Iterator[str]:
    if law.tasks or law.tasks_refused:
        yield ""
        yield (
            "tasks, by compute C = 6ND: score = chance + (1 - chance) / "
            "(1 + exp((l - middle) / width))"
        )
    for task in law.tasks:
        form = task.form
        yield (
            f"  {task.task}: l = {form.E:.4g} + {form.A:.4g} (C/{form.unit:.3g})^-{form.alpha:.4g} "
            f"nats per byte of the right answer, middle {form.middle:.4g}, width {form.width:.4g}, "
            f"chance {form.chance:.3g}; {task.runs} runs, the best {task.best_score:.3g}"
        )
        if law.ranges is not None:
            ask = 10 * law.ranges.flops.greatest
            yield (
                f"    at {ask:.3g} FLOPs, 10 times the largest run's: "
                f"{float(form.compute_score(ask)):.3f} "
                f"{task.compute_interval(ask) or '(no interval)'}"
            )
    for name, why in law.tasks_refused.items():
        yield f"  {name}: no law: {why}"


def _format_bootstrap(estimate: IntervalEstimate) -> str:
    return str(estimate.bootstrap) if estimate.bootstrap else "none"


def _describe_fit(law: Law) -> Iterator[str]:
    fit = law.fit
    if fit is None:
        return
    delta = "" if fit.delta is None else f", delta {fit.delta:g}"
    of = "" if fit.clusters is None else f" of {fit.clusters} training runs"
    yield ""
    yield (
        f"minimum: {fit.loss} of log loss{delta}, sum {fit.objective:.6g} over {fit.rows_used} "
        f"rows{of}"
    )
    yield (
        f"  {fit.starts_that_agree:.0%} of {fit.starts} starts agree, gradient norm "
        f"{fit.gradient_norm:.1e}, {fit.draws_failed} of {len(law.draws) + fit.draws_failed} "
        "bootstrap draws failed"
    )
    if fit.rows_left_out:
        yield f"left out: {len(fit.rows_left_out)} rows"
        for row in fit.rows_left_out[:LISTED]:
            yield f"  {row.name}: {row.reason}"
        if len(fit.rows_left_out) > LISTED:
            yield f"  and {len(fit.rows_left_out) - LISTED} more, listed in law.json"


def _describe_approach(approach: Approach) -> Iterator[str]:
    a = approach.parameters_exponent
    b = approach.tokens_exponent
    if a is None or b is None:
        yield f"{approach.name}: {approach.note}"
        return
    yield (
        f"{approach.name}: N* ~ C^{a.value:.4f} {_format_bootstrap(a)}, D* ~ C^{b.value:.4f} "
        f"{_format_bootstrap(b)}" + (f" ({approach.note})" if approach.note else "")
    )


def _describe_held_out(held_out: HeldOutErrors) -> Iterator[str]:
    known = [row for row in held_out.rows if row.interval is not None]
    inside = sum(row.interval.contains(row.loss) for row in known if row.interval)
    within = (
        f"{inside} of {len(known)} within the interval"
        if known
        else f"no interval: {held_out.no_interval}"
    )
    yield ""
    yield (
        f"held out: {held_out.rule}: mean error {held_out.mean_absolute_error:.2%}, worst "
        f"{held_out.worst_absolute_error:.2%}, {within}"
    )
    for row in sorted(held_out.rows, key=lambda row: -row.parameters * row.tokens)[:LISTED]:
        yield (
            f"  {row.name}: N = {row.parameters:.3g}, D = {row.tokens:.3g}: measured "
            f"{row.loss:.4f}, predicted {row.predicted:.4f} {row.interval or ''} ({row.error:+.2%})"
        )


def _describe_forms(law: Law) -> Iterator[str]:
    if len(law.compared) < 2:
        return
    least = min(other.criterion or 0.0 for other in law.compared)
    yield ""
    yield "forms, fitted to the same rows; larger runs are predicted from smaller ones:"
    for other in law.compared:
        held = "" if other.held_out_error is None else f", larger runs {other.held_out_error:.2%}"
        if other.as_good is False:
            held += " (more than one standard error above the best)"
        more = "" if other.criterion is None else f", AIC {other.criterion - least:+.1f}"
        yield f"  {other.form.kind:16} objective {other.objective:.6g}{held}{more}"
    if law.members:
        shares = [(law.weight, law.form), *((one.weight, one.form) for one in law.members)]
        words = ", ".join(f"{weight:.0%} {form.kind}" for weight, form in shares)
        yield f"  predicted losses are the median of {words}, by their errors on larger runs"
