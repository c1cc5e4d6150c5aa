"""Runs to a law: screened, fitted, judged on what was kept back, and held against other forms.

The same runs and settings give the same `law.json`, byte for byte: whatever is drawn has a seed.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np

from trainrig import __version__, config, storage
from trainrig.config import Settings
from trainrig.errors import DataError
from trainrig.scaling.approaches import by_each, frontier_laws
from trainrig.scaling.bootstrap import Bootstrap, FormDraws, bootstrap_form
from trainrig.scaling.data_constrained import DataConstrainedFit, fit_data_constrained
from trainrig.scaling.envelope import Envelope
from trainrig.scaling.held_out import FitForm, HoldOut, Split, criterion, judge, predict, split
from trainrig.scaling.isoflop import IsoFlop
from trainrig.scaling.kaplan_form import KaplanFit, fit_kaplan_form
from trainrig.scaling.law import (
    Approach,
    Compared,
    Estimate,
    HeldOut,
    Interval,
    Law,
    Ranges,
    Span,
    write_law,
)
from trainrig.scaling.minimise import Huber, Loss
from trainrig.scaling.overtraining import OverTrainingFit, fit_overtraining
from trainrig.scaling.parametric import ParametricFit, fit_parametric
from trainrig.scaling.profile import Profile, profiles, with_profiles
from trainrig.scaling.regression import Fit
from trainrig.scaling.runs import Counts, Floats, Runs, together
from trainrig.scaling.screening import Exclusions, Screened, screen

LAW_FILE = "law.json"
EPOCHS = 4  # repeats beyond these are worth visibly less than new tokens (arXiv:2305.16264)
Kind = Literal["Parametric", "Kaplan", "DataConstrained", "OverTraining"]


log = logging.getLogger(__name__)


class LawFit(Settings):
    """How runs become a law."""

    form: Kind = "Parametric"
    loss: Loss = Huber()  # of the residuals of log loss
    exclusions: Exclusions = Exclusions()
    counts: Counts | None = None  # of N; None: as the table counts
    tokenizer: str = ""  # of a table that does not say
    hold_out: HoldOut = HoldOut()
    bootstrap: Bootstrap = Bootstrap()
    isoflop: IsoFlop = IsoFlop()
    envelope: Envelope = Envelope()


@dataclass(frozen=True)
class Fitted:
    """A law, and the runs that it was fitted to."""

    law: Law
    runs: Runs  # those fitted
    along: Runs  # with them, the points along their curves
    profiles: Mapping[str, Profile]  # by constant


def read_runs(
    paths: Sequence[str], columns: dict[str, str] | None = None, recipes: Sequence[str] = ()
) -> Runs:
    """The rows of all `paths`, of `recipes` alone where some are named. Raises DataError."""
    runs = together([Runs.read(path, columns) for path in paths])
    if not recipes:
        return runs
    for name in recipes:
        if name not in runs.recipe:
            there = [str(recipe) for recipe in dict.fromkeys(runs.recipe)]
            raise DataError(f"{paths[0]}: no recipe '{name}'{config.did_you_mean(name, there)}")
    return runs.select(np.isin(runs.recipe, list(recipes)))


def fit_law(runs: Runs, settings: LawFit, name: str, source: str = "") -> Fitted:
    """The law of `runs`. Raises DataError where they do not make one; `name` is the law's."""
    screened = screen(counted(runs, settings.counts), settings.exclusions)
    tokenizer = _tokenizer(screened.runs, settings.tokenizer)
    if settings.form != "DataConstrained" and (repeating := _repeating(screened.runs)):
        log.warning(
            "%d of %d runs saw their tokens more than %d times, which %s takes for new ones; "
            "--form DataConstrained does not",
            *(repeating, len(screened.runs), EPOCHS, settings.form),
        )
    fit = _fit(screened.runs, settings)
    halves, held_out = _held_out(screened.runs, settings)
    drawn = bootstrap_form(fit, settings.bootstrap)
    quantities = {"parameters_exponent": _parameters_exponent} if _bends(settings.form) else {}
    profiled = profiles(fit, quantities, settings.bootstrap.level)
    estimates = with_profiles(_estimates(drawn, quantities), profiled)
    law = Law(
        name=name,
        form=fit.form,
        draws=drawn.forms,
        estimates=estimates | _frontiers(screened, settings),
        parameters_count=screened.runs.counts,
        tokenizer=tokenizer,
        ranges=ranges(screened.runs),
        fit=fit.record(screened.left_out).model_copy(
            update={"draws_failed": drawn.draws.failed, "clusters": drawn.clusters}
        ),
        held_out=held_out,
        compared=_compared(fit, halves, held_out, settings.loss),
        approaches=_approaches(screened, estimates, settings),
        source=source,
        made_by=made_by(),
    )
    return Fitted(law, screened.runs, screened.along, profiled)


def _fit(runs: Runs, settings: LawFit) -> Fit[Any]:
    """Raises DataError; it names Kaplan's form where the parametric one has no minimum and that
    has: losses of small models alone may show nothing that cannot be reduced."""
    try:
        return form_fitter(settings.form, settings.loss)(runs)
    except DataError as refused:
        if settings.form != "Parametric" or not _has_minimum(runs, "Kaplan", settings.loss):
            raise
        raise DataError(
            f"{refused}; or take --form Kaplan, which has no irreducible loss, and has a minimum"
        ) from None


def _has_minimum(runs: Runs, kind: Kind, loss: Loss) -> bool:
    try:
        form_fitter(kind, loss)(runs)
    except DataError:
        return False
    return True


def _estimates(drawn: FormDraws[Any], quantities: dict[str, Any]) -> dict[str, Estimate]:
    """With the bootstrap's intervals, or without where too many draws have no fit."""
    try:
        return drawn.estimates(quantities)
    except DataError as why:
        log.warning("%s", why)
    form = drawn.fit.form
    found = form.constants | {name: float(of(form)) for name, of in quantities.items()}
    return {name: Estimate(value=value) for name, value in found.items()}


def write_fit(folder: str, fitted: Fitted) -> str:
    """Put `law.json` into `folder`; its path."""
    path = storage.join(folder, LAW_FILE)
    write_law(path, fitted.law)
    return path


def form_fitter(kind: Kind, loss: Loss) -> FitForm:
    """The function that fits forms of `kind`."""
    fitters: dict[Kind, FitForm] = {
        "Parametric": lambda runs: fit_parametric(runs, ParametricFit(loss=loss)),
        "Kaplan": lambda runs: fit_kaplan_form(runs, KaplanFit(loss=loss)),
        "DataConstrained": lambda runs: fit_data_constrained(runs, DataConstrainedFit(loss=loss)),
        "OverTraining": lambda runs: fit_overtraining(runs, OverTrainingFit(loss=loss)),
    }
    return fitters[kind]


def ranges(runs: Runs) -> Ranges:
    """Where `runs` lie."""
    return Ranges(
        parameters=_span(runs.parameters),
        tokens=_span(runs.tokens),
        flops=_span(runs.flops_6nd),
        tokens_per_parameter=_span(runs.tokens / runs.parameters),
    )


def made_by() -> dict[str, str]:
    """Versions that a fit's last digits depend on."""
    return {"trainrig": __version__} | {n: metadata.version(n) for n in ("numpy", "scipy")}


def _span(values: Floats) -> Span:
    return Span(least=float(values.min()), greatest=float(values.max()))


def counted(runs: Runs, counts: Counts | None) -> Runs:
    """`runs` with N counted as asked. Raises DataError where the table does not tell."""
    if counts is None or counts == runs.counts:
        return runs
    if counts == "non-embedding":
        raise DataError(
            "the runs count embeddings among their parameters and do not say how many those are; "
            "fit with --counts total"
        )
    return runs.counted_with_embeddings()


def _tokenizer(runs: Runs, given: str) -> str:
    named = {str(name) for name in runs.tokenizer if name}
    if given and named - {given}:
        raise DataError(
            f"the runs were tokenized by '{named.pop()}', not '{given}': leave --tokenizer out"
        )
    return given or (named.pop() if named else "unknown")


def _bends(kind: Kind) -> bool:
    """Does the form say how N* goes with compute? OverTraining always says as its root."""
    return kind in ("Parametric", "Kaplan")


def _parameters_exponent(form: Any) -> Any:
    return form.parameters_exponent


def _held_out(runs: Runs, settings: LawFit) -> tuple[Split | None, HeldOut | None]:
    if not settings.hold_out.share:
        return None, None
    halves = split(runs, settings.hold_out)
    try:
        fitter = form_fitter(settings.form, settings.loss)
        return halves, judge(halves, fitter, settings.bootstrap)
    except DataError as why:
        raise DataError(
            f"without {halves.rule}, which are kept back to judge the law: {why}; keep fewer back "
            "with --hold-out, or none with 0"
        ) from None


def _compared(
    fit: Fit[Any], halves: Split | None, held_out: HeldOut | None, loss: Loss
) -> tuple[Compared, ...]:
    """The form fitted, then each other that the runs can tell."""
    runs, own = fit.regression.runs, fit.form.kind
    found = [_ranked(fit, held_out.mean_absolute_error if held_out else None)]
    for kind in _kinds(runs):
        if kind == own:
            continue
        fitter = form_fitter(kind, loss)
        try:
            error = None if halves is None else _error(fitter(halves.rest), halves.largest)
            found.append(_ranked(fitter(runs), error))
        except DataError:
            continue
    return tuple(found)


def _ranked(fit: Fit[Any], error: float | None) -> Compared:
    return Compared(
        form=fit.form, objective=fit.objective, held_out_error=error, criterion=criterion(fit)
    )


def _kinds(runs: Runs) -> tuple[Kind, ...]:
    once: tuple[Kind, ...] = ("Parametric", "OverTraining", "Kaplan")
    return (*once, "DataConstrained") if _repeating(runs) else once


def _repeating(runs: Runs) -> int:
    """How many runs saw their tokens more than four times; NaN, for all unseen, counts not."""
    return int((runs.tokens > EPOCHS * runs.unique_tokens).sum())


def _error(fit: Fit[Any], largest: Runs) -> float:
    return float(np.abs(predict(fit.form, largest) / largest.loss - 1).mean())


def _frontiers(screened: Screened, settings: LawFit) -> dict[str, Estimate]:
    try:
        return frontier_laws(screened.runs, settings.bootstrap)[1]
    except DataError:
        return {}


def _approaches(
    screened: Screened, estimates: dict[str, Estimate], settings: LawFit
) -> tuple[Approach, ...]:
    """Approaches 1 and 2, and the exponent that the fitted form itself implies."""
    found = by_each(
        screened.runs, screened.along, settings.isoflop, settings.envelope, settings.bootstrap
    )
    exponent = estimates.get("parameters_exponent")
    if exponent is None:
        return found
    return (
        *found,
        Approach(
            name=settings.form.lower(),
            parameters_exponent=exponent,
            tokens_exponent=_one_less(exponent),
            note="of the fitted form, by 6ND",
        ),
    )


def _one_less(exponent: Estimate) -> Estimate:
    """The estimate of 1 - a."""
    return Estimate(
        value=1 - exponent.value,
        bootstrap=_mirrored(exponent.bootstrap),
        profile=_mirrored(exponent.profile),
        standard_error=exponent.standard_error,
    )


def _mirrored(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    low = None if interval.high is None else 1 - interval.high
    high = None if interval.low is None else 1 - interval.low
    return Interval(low=low, high=high, level=interval.level)
