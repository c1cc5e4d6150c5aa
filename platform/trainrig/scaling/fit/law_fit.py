"""The whole fit of a scaling law: screen runs, choose and fit a form, evaluate it.

The same runs and settings give the same `law.json`, byte for byte, because all randomness is
seeded.
"""

import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from trainrig import __version__, config, storage
from trainrig.config import Settings
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.law import (
    Approach,
    FittedRange,
    HeldOutErrors,
    Interval,
    IntervalEstimate,
    Law,
    Ranges,
    WeightedForm,
    refuse_draws,
    write_law,
)
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_screening import Exclusions, Screened, screen
from trainrig.scaling.laws.runs_table import Counts, Floats, RunsTable, join_tables
from trainrig.scaling.regression import form_choice
from trainrig.scaling.regression.approaches import fit_approaches, fit_frontier_laws
from trainrig.scaling.regression.bootstrap import Bootstrap, FormDraws, bootstrap_form
from trainrig.scaling.regression.foretelling import HoldOut, split_held_out
from trainrig.scaling.regression.hoffmann import Envelope, IsoFlop
from trainrig.scaling.regression.minimise import Huber, Loss
from trainrig.scaling.regression.profile_likelihood import Profile, compute_profiles, with_profiles
from trainrig.scaling.regression.regression import Progress
from trainrig.scaling.regression.task_laws import fit_tasks

LAW_FILE = "law.json"
# Most bootstrap draws of each other form. Together they count as the form's share of a prediction.
MEMBER_DRAWS = 200


log = logging.getLogger(__name__)


class LawFit(Settings):
    """Settings of a scaling-law fit."""

    form: form_choice.Kind | None = None  # None: the form that predicts larger runs best
    loss: Loss = Huber()  # loss of the residuals of log loss
    exclusions: Exclusions = Exclusions()
    counts: Counts | None = None  # parameters that N counts; None: as the table does
    tokenizer: str = ""  # tokenizer of the runs, for a table that does not name it
    # Runs held out to evaluate the law. If this key is given, a fit without them must succeed; by
    # default a law that cannot be fitted without them is not evaluated.
    hold_out: HoldOut = HoldOut()
    bootstrap: Bootstrap = Bootstrap()
    isoflop: IsoFlop = IsoFlop()
    envelope: Envelope = Envelope()


@dataclass(frozen=True)
class Fitted:
    """A law and the runs that it was fitted to."""

    law: Law
    runs: RunsTable  # the runs that were fitted
    along: RunsTable  # the fitted runs and the earlier points on their training curves
    profiles: Mapping[str, Profile]  # profiles by constant or quantity
    settings: LawFit  # settings of the fit


def read_runs(
    paths: Sequence[str],
    columns: dict[str, str] | None = None,
    recipes: Sequence[str] = (),
    bytes_per_token: float | None = None,
) -> RunsTable:
    """Read the rows of the tables at all `paths`, restricted to the named `recipes` if given.

    Losses per byte need `bytes_per_token`. Raises DataError if a table cannot be read or has no
    such recipe.
    """
    if not paths:
        raise ConfigError("fit: no table; name the folder of a sweep, or a CSV file")
    runs = join_tables([read_table(path, columns, bytes_per_token) for path in paths])
    if not recipes:
        return runs
    for name in recipes:
        if name not in runs.recipe:
            there = [str(recipe) for recipe in dict.fromkeys(runs.recipe)]
            raise DataError(f"{paths[0]}: no recipe '{name}'{config.suggest_choice(name, there)}")
    return runs.select(np.isin(runs.recipe, list(recipes)))


def fit_law(
    runs: RunsTable, settings: LawFit, name: str, source: str = "", progress: Progress | None = None
) -> Fitted:
    """Fit the scaling law of `runs`, and name it `name`.

    Raises DataError if the runs do not determine a law. If the runs without the held-out ones do
    not, the law is not evaluated and its `not_judged` says why; it raises instead if `settings` set
    `hold_out`.
    """
    reporter = progress or Progress.silent()
    screened = screen(count_parameters_as(runs, settings.counts), settings.exclusions)
    tokenizer = _choose_tokenizer(screened.runs, settings.tokenizer)
    forms = form_choice.fit_forms(
        screened.runs, settings.hold_out, settings.form, settings.loss, reporter.stage
    )
    fit = forms.fits[forms.chosen]
    _warn_of_repeats(screened.runs, forms.chosen)
    held_out, not_judged = _judge_form(screened.runs, forms, settings, reporter)
    reporter.stage("bootstrap")
    draws = bootstrap_form(fit, settings.bootstrap, reporter.count)
    # OverTraining always implies N* ~ C^0.5, so its exponent tells nothing about the runs.
    determined = forms.chosen in ("Parametric", "Kaplan")
    quantities = (
        {"parameters_exponent": operator.attrgetter("parameters_exponent")} if determined else {}
    )
    members = tuple(_draw_members(forms, settings, reporter))
    reporter.stage("errors on larger runs")
    spread = forms.learn_spread(forms.noises)
    reporter.stage("profiles")
    profiled = compute_profiles(fit, quantities, settings.bootstrap.level, reporter.count)
    estimates = with_profiles(_estimate_quantities(draws, quantities), profiled)
    reporter.stage("tasks")
    tasks, tasks_refused = fit_tasks(screened.runs, settings.bootstrap)
    reporter.stage("other approaches")
    law = Law(
        name=name,
        form=fit.form,
        choice=forms.why,
        assumed=forms.assumed,
        draws=draws.forms,
        weight=1.0 - sum(member.weight for member in members),
        members=members,
        spread=spread,
        estimates=estimates | _fit_frontiers(screened, settings),
        parameters_count=screened.runs.counts,
        tokenizer=tokenizer,
        objective=str(screened.runs.objective[0]),
        ranges=compute_ranges(screened.runs),
        fit=fit.build_record(screened.left_out).model_copy(
            update={"draws_failed": draws.draws.failed, "clusters": draws.clusters}
        ),
        held_out=held_out,
        not_judged=not_judged,
        compared=forms.compare_forms(),
        approaches=_collect_approaches(screened, forms.chosen, estimates, settings),
        tasks=tasks,
        tasks_refused=tasks_refused,
        source=source,
        made_by={"trainrig": __version__}
        | {name: metadata.version(name) for name in ("numpy", "scipy")},
    )
    return Fitted(law, screened.runs, screened.along, profiled, settings)


def _draw_members(
    forms: form_choice.LawForms, settings: LawFit, reporter: Progress
) -> Iterator[WeightedForm]:
    """Yield the other forms that take part in predictions, with their bootstrap draws.

    A form of which too many draws have no fit takes part without draws.
    """
    fewer = min(settings.bootstrap.draws, MEMBER_DRAWS)
    rules = settings.bootstrap.model_copy(update={"draws": fewer})
    for kind, weight in list(forms.weights.items())[1:]:
        reporter.stage(f"bootstrap of {kind}")
        drawn = bootstrap_form(forms.fits[kind], rules, reporter.count)
        refused = refuse_draws(len(drawn.draws.good), drawn.draws.failed)
        draws = () if refused else drawn.forms
        yield WeightedForm(form=forms.fits[kind].form, weight=weight, draws=draws)


def _judge_form(
    runs: RunsTable, forms: form_choice.LawForms, settings: LawFit, reporter: Progress
) -> tuple[HeldOutErrors | None, str]:
    """Return the errors of the chosen form on held-out runs, or None and why if unexpected."""
    if not settings.hold_out.share:
        return None, ""
    reporter.stage("predicting the held-out runs")
    split = split_held_out(runs, settings.hold_out)
    try:
        return form_choice.judge(forms, split, settings.hold_out, settings.bootstrap), ""
    except form_choice.NotJudgedError as why:
        if "hold_out" in settings.model_fields_set:
            raise
        log.warning("the law is not evaluated on held-out runs: %s", why)
        return None, str(why)


def _warn_of_repeats(runs: RunsTable, kind: form_choice.Kind) -> None:
    if kind != "DataConstrained" and (count := form_choice.count_repeating(runs)):
        log.warning(
            "%d of %d runs saw their tokens more than %d times; %s counts repeated tokens as new "
            "ones. Use --form DataConstrained, which does not",
            *(count, len(runs), form_choice.EPOCHS, kind),
        )


def _estimate_quantities(
    drawn: FormDraws[Any], quantities: dict[str, Any]
) -> dict[str, IntervalEstimate]:
    """Return estimates with bootstrap intervals, or without where too many drawn have no fit."""
    try:
        return drawn.compute_estimates(quantities)
    except DataError as why:
        log.warning("%s", why)
    form = drawn.fit.form
    found = form.constants | {name: float(quantity(form)) for name, quantity in quantities.items()}
    return {name: IntervalEstimate(value=value) for name, value in found.items()}


def write_fit(folder: str, fitted: Fitted) -> str:
    """Write the law to `law.json` in `folder`, and return the path."""
    path = storage.join(folder, LAW_FILE)
    write_law(path, fitted.law)
    return path


def compute_ranges(runs: RunsTable) -> Ranges:
    """Return the ranges of sizes, tokens and compute that `runs` cover."""
    return Ranges(
        parameters=_compute_span(runs.parameters),
        tokens=_compute_span(runs.tokens),
        flops=_compute_span(runs.flops_6nd),
        tokens_per_parameter=_compute_span(runs.tokens / runs.parameters),
    )


def _compute_span(values: Floats) -> FittedRange:
    return FittedRange(least=float(values.min()), greatest=float(values.max()))


def count_parameters_as(runs: RunsTable, counts: Counts | None) -> RunsTable:
    """Return `runs` with N counted as `counts` says, or unchanged if None.

    Raises DataError if the table does not state how many parameters the embeddings have.
    """
    if counts is None or counts == runs.counts:
        return runs
    if counts == "non-embedding":
        raise DataError(
            "the table counts embeddings among the parameters and does not say how many they are; "
            "fit with --counts total"
        )
    return runs.count_embeddings()


def _choose_tokenizer(runs: RunsTable, given: str) -> str:
    named = {str(name) for name in runs.tokenizer if name}
    if given and named - {given}:
        raise DataError(
            f"the runs were tokenized by '{named.pop()}', not '{given}'; leave out --tokenizer"
        )
    return given or (named.pop() if named else "unknown")


def _fit_frontiers(screened: Screened, settings: LawFit) -> dict[str, IntervalEstimate]:
    try:
        return fit_frontier_laws(screened.runs, settings.bootstrap)
    except DataError:
        return {}


def _collect_approaches(
    screened: Screened,
    kind: form_choice.Kind,
    estimates: dict[str, IntervalEstimate],
    settings: LawFit,
) -> tuple[Approach, ...]:
    """Return approaches 1 and 2 of Hoffmann et al., and the exponent of the fitted form."""
    found = fit_approaches(
        screened.runs, screened.along, settings.isoflop, settings.envelope, settings.bootstrap
    )
    exponent = estimates.get("parameters_exponent")
    if exponent is None:
        return found
    return (
        *found,
        Approach(
            name=kind.lower(),
            parameters_exponent=exponent,
            tokens_exponent=_subtract_from_one(exponent),
            note="from the fitted form, with 6ND",
        ),
    )


def _subtract_from_one(exponent: IntervalEstimate) -> IntervalEstimate:
    """Return the estimate of 1 - a for an estimate of a."""

    def mirror(interval: Interval | None) -> Interval | None:
        if interval is None:
            return None
        low, high = (None if end is None else 1 - end for end in (interval.high, interval.low))
        return Interval(low=low, high=high, level=interval.level)

    return IntervalEstimate(
        value=1 - exponent.value,
        bootstrap=mirror(exponent.bootstrap),
        profile=mirror(exponent.profile),
        standard_error=exponent.standard_error,
    )
