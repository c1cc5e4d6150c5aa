"""Choice of the forms of a scaling law by how well they foretell larger runs.

At several cuts, each form is fitted to the smaller runs and predicts the larger ones
(`foretelling.py`). The errors decide the form of the law, the share of each form in predictions of
the loss, and how far a measured loss may lie from a prediction. The law is then tested as it is
used: the largest runs are held out, and all of this is done with the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainrig.errors import DataError
from trainrig.scaling.laws import law
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.laws.stacking import (
    FormPrediction,
    Outcome,
    Spread,
    learn_spread,
    stack_members,
)
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.data_constrained import fit_data_constrained
from trainrig.scaling.regression.foretelling import (
    CutForecast,
    Foretold,
    HeldOutSplit,
    HoldOut,
    compute_noise,
    draw_forecast,
    foretell,
    list_cuts,
)
from trainrig.scaling.regression.form_fits import fit_kaplan_form, fit_overtraining, fit_parametric
from trainrig.scaling.regression.minimise import Loss
from trainrig.scaling.regression.ray_fit import describe_assumption, fit_ray
from trainrig.scaling.regression.regression import FINEST, Fit

JUDGED = 64  # most bootstrap draws of each form that the law is evaluated by


def compute_criterion(fit: Fit[Any]) -> float:
    """Compute Akaike's criterion with Laplace noise: 2 R ln(mean |residual|) + 2 x constants.

    Residuals are of log loss. Laplace noise is assumed because its likelihood is close to Huber's
    loss.
    """
    constants = len(fit.form.constants)
    size = max(float(np.abs(fit.residuals).mean()), FINEST)
    return float(2 * len(fit.residuals) * np.log(size) + 2 * constants)


EPOCHS = 4  # tokens repeated more often are worth visibly less than new ones (arXiv:2305.16264)
LEAST_SHARE = 0.02  # a smaller share of a form in predictions changes nothing
LEAST_POWER = 2.0  # power of the error in a form's share, with few runs
# Errors of neighbouring runs are alike, so this number of runs counts as one for the shares. With 4
# and with 8, predictions of the published tables have the same errors.
DEPENDENT = 4
LEAST_KEPT = 3  # fewer foretold training runs give no meaningful standard error
CUT_DRAWS = Bootstrap(draws=20)  # draws of the fits at each cut
Kind = Literal["Parametric", "Kaplan", "DataConstrained", "OverTraining"]
# By the number of their constants, those with an irreducible loss first.
FORMS: tuple[Kind, ...] = ("OverTraining", "Parametric", "Kaplan", "DataConstrained")
STANDARD: Kind = "Parametric"


FITTERS: dict[Kind, Callable[[RunsTable, Loss], Fit[Any]]] = {
    "Parametric": fit_parametric,
    "Kaplan": fit_kaplan_form,
    "DataConstrained": fit_data_constrained,
    "OverTraining": fit_overtraining,
}


class NotJudgedError(DataError):
    """Failure to fit the form to the runs that remain when the largest runs are held out."""


@dataclass(frozen=True)
class LawForms:
    """Fits of every form that the runs can identify, and the choice among them."""

    asked: Kind | None
    fits: Mapping[Kind, Fit[Any]]  # each fitted to all runs
    foretold: Mapping[Kind, Foretold]  # empty if no runs are held out
    refused: Mapping[Kind, str]  # reasons of the forms that cannot be fitted
    assumed: str = ""  # assumption of the law that the runs do not show
    held_out: bool = True  # True if larger runs are left out of the fits, to be foretold

    @property
    def cuts(self) -> tuple[int, ...]:
        """The cuts at which every form in `foretold` was fitted."""
        known = [set(found.cuts) for found in self.foretold.values()]
        return tuple(sorted(set.intersection(*known))) if known else ()

    @property
    def best(self) -> Kind | None:
        """The form that foretells best, or None if no runs are held out."""
        if not self.cuts:
            return None
        return min(self.foretold, key=self._compute_error)

    @property
    def chosen(self) -> Kind:
        """The form of the law.

        It is the one with the fewest constants within one standard error of the best.
        """
        if self.asked is not None:
            return self.asked
        if self.best is None or self._count_foretold() < LEAST_KEPT:
            return STANDARD if STANDARD in self.fits else next(iter(self.fits))
        return next(kind for kind in FORMS if kind in self.foretold and self._is_as_good(kind))

    @property
    def weights(self) -> dict[Kind, float]:
        """The share of each form in predictions of the loss, the chosen form first.

        A share is in proportion to error^-p, where the error is that on larger runs. With few runs,
        p is 2 (Bates and Granger 1969, "The combination of forecasts"). It grows with the number of
        foretold training runs, as the likelihood of Laplace noise does. Shares below LEAST_SHARE
        are left out. A form that was asked for, or that could not be compared, has the whole share.
        """
        if self.asked or self.best is None or self._count_foretold() < LEAST_KEPT:
            return {self.chosen: 1.0}
        power = max(LEAST_POWER, self._count_foretold() / DEPENDENT)
        least = max(self._compute_error(self.best), FINEST)
        shares = {
            kind: (max(self._compute_error(kind), FINEST) / least) ** -power
            for kind in (self.chosen, *(kind for kind in self.foretold if kind != self.chosen))
        }
        whole = sum(shares.values())
        kept = {
            kind: share
            for kind, share in shares.items()
            if kind == self.chosen or share >= LEAST_SHARE * whole
        }
        return {kind: share / sum(kept.values()) for kind, share in kept.items()}

    @property
    def why(self) -> str:
        """The reason for the choice of the form, in one sentence."""
        own: str = self.chosen
        best = self.best
        if self.asked is not None:
            return f"{own}, as --form asks"
        if self.assumed:
            return f"{own} along one ray: {self.assumed}"
        if own != STANDARD and STANDARD in self.refused:
            own = f"{own} (the runs show no {STANDARD} law)"
        standing = "the standard form" if self.chosen == STANDARD else "the first that fits"
        if best is None:
            why = "too few runs lie below a cut" if self.held_out else "no runs were held out"
            return f"{own}, {standing}, because {why} to choose by"
        if self._count_foretold() < LEAST_KEPT:
            return (
                f"{own}, {standing}, because {self._count_foretold()} held-out training runs "
                "are too few for a standard error to choose by"
            )
        least = self._compute_error(best)
        where = f"over {len(self.cuts)} cuts of the runs" if len(self.cuts) > 1 else "at one cut"
        if self.chosen == best:
            return f"{own}, which has the lowest mean error on larger runs, {least:.2%} {where}"
        return (
            f"{own}, the first form whose mean error on larger runs, "
            f"{self._compute_error(self.chosen):.2%} {where}, is within one standard error "
            f"({self._standard_error:.2%}) of the lowest, {least:.2%} of {best}"
        )

    @property
    def _standard_error(self) -> float:
        """Standard error of the best form's mean error."""
        assert self.best is not None  # the callers check that runs are held out
        return self.foretold[self.best].compute_standard_error(self.cuts)

    def _compute_error(self, kind: Kind) -> float:
        return self.foretold[kind].compute_error(self.cuts)

    def _count_foretold(self) -> int:
        """Return the number of training runs above the first cut."""
        return len(next(iter(self.foretold.values())).list_trials(self.cuts))

    @property
    def undecided(self) -> tuple[Kind, ...]:
        """The other forms that larger runs did not show to be worse than the best."""
        others = (kind for kind in self.fits if kind != self.chosen)
        return tuple(
            kind
            for kind in others
            if not (kind in self.foretold and self.cuts) or self._is_as_good(kind)
        )

    def _is_as_good(self, kind: Kind) -> bool:
        assert self.best is not None  # the callers check that runs are held out
        return self._compute_error(kind) <= self._compute_error(self.best) + self._standard_error

    def learn_spread(self, noises: Mapping[Kind, float]) -> Spread:
        """Learn how far measured losses lie from predictions, from the cuts.

        `noises` are the standard deviations of log losses around each form. A form that was asked
        for is judged by its own cuts, whether or not other forms could be fitted there.
        """
        weights = self.weights
        noise = _combine_noises(weights, noises)
        if not set(weights) <= set(self.foretold):
            return Spread(noise=noise)
        known = [set(self.foretold[kind].cuts) for kind in weights]
        cuts = sorted(set.intersection(*known))
        outcomes = []
        for cut in cuts:
            forecasts = {kind: self.foretold[kind].cuts[cut] for kind in weights}
            outcomes.append(
                Outcome(
                    stack_members(_draw_members(self.fits, forecasts, weights, CUT_DRAWS)),
                    forecasts[self.chosen].split.largest.loss,
                    _combine_noises(
                        weights, {kind: found.noise for kind, found in forecasts.items()}
                    ),
                    forecasts[self.chosen].split.distance,
                )
            )
        return learn_spread(noise, outcomes, len(self.foretold[self.chosen].list_trials(cuts)))

    @property
    def noises(self) -> dict[Kind, float]:
        """The standard deviation of log losses around the fit of each form to all runs."""
        return {
            kind: compute_noise(fit.residuals, len(fit.theta)) for kind, fit in self.fits.items()
        }

    def compare_forms(self) -> tuple[law.Compared, ...]:
        """Return the results of all fitted forms, the chosen form first."""
        found = []
        for kind in (self.chosen, *(kind for kind in self.fits if kind != self.chosen)):
            foretold = kind in self.foretold and self.cuts
            compared = law.Compared(
                form=self.fits[kind].form,
                objective=self.fits[kind].objective,
                held_out_error=self._compute_error(kind) if foretold else None,
                as_good=self._is_as_good(kind) if foretold else None,
                criterion=compute_criterion(self.fits[kind]),
            )
            found.append(compared)
        return tuple(found)


def fit_forms(
    runs: RunsTable,
    rules: HoldOut,
    asked: Kind | None,
    loss: Loss,
    report: Callable[[str], None] = lambda stage: None,
) -> LawForms:
    """Fit each form to all `runs`, and let each foretell the larger runs from the smaller ones.

    A form that cannot be fitted is left out. Runs on one ray, which identify no form, get a law of
    the loss along the ray. Raises DataError if `asked` cannot be fitted, or no form can. `report`
    is called with the name of each stage.
    """
    first = asked or STANDARD
    cuts = list_cuts(runs, rules)
    fits: dict[Kind, Fit[Any]] = {}
    foretold: dict[Kind, Foretold] = {}
    refused: dict[Kind, DataError] = {}
    for kind in (first, *(kind for kind in list_kinds(runs) if kind != first)):
        report(f"fitting {kind}")
        try:
            fits[kind] = FITTERS[kind](runs, loss)
        except DataError as why:
            if kind == asked:
                raise
            refused[kind] = why
            continue
        report(f"foretelling larger runs by {kind}")
        if (found := foretell(fits[kind], cuts)).cuts:
            foretold[kind] = found
    assumed = ""
    if not fits:
        try:
            fits["OverTraining"] = fit_ray(runs, loss)
        except DataError:
            raise refused[first] from None
        assumed = describe_assumption(runs)
    reasons = {kind: str(why) for kind, why in refused.items()}
    return LawForms(asked, fits, foretold, reasons, assumed, held_out=rules.share > 0)


def list_kinds(runs: RunsTable) -> Sequence[Kind]:
    """Return the forms to fit to `runs`: DataConstrained only if runs repeat their data."""
    return FORMS if count_repeating(runs) else FORMS[:-1]


def count_repeating(runs: RunsTable) -> int:
    """Return the number of runs that saw their tokens more than EPOCHS times.

    Runs whose unique tokens are unknown (NaN) do not count.
    """
    return int((runs.tokens > EPOCHS * runs.unique_tokens).sum())


def judge(
    forms: LawForms, split: HeldOutSplit, rules: HoldOut, bootstrap: Bootstrap
) -> law.HeldOutErrors:
    """Predict the largest runs as if only the others were known, and compare.

    The form, the shares and the spread are learnt again from the others, at cuts as `rules` say. At
    most JUDGED draws of each form are fitted: the ends of a held-out run's interval need fewer
    digits than those of the law. Raises NotJudgedError if the others do not determine the form of
    the law.
    """
    outer = {kind: foretell(fit, {0: split}).cuts for kind, fit in forms.fits.items()}
    forecasts = {kind: found[0] for kind, found in outer.items() if found}
    if forms.chosen not in forecasts:
        raise NotJudgedError(
            f"without {split.rule}, held out to evaluate the law: "
            f"{_describe_refusal(forms.fits[forms.chosen], split)}; hold out fewer runs with "
            "--hold-out, or none with --hold-out 0"
        )
    rest = _choose_among_rest(forms, rules, split, forecasts)
    weights = rest.weights
    spread = rest.learn_spread({kind: found.noise for kind, found in forecasts.items()})
    draws = bootstrap.model_copy(update={"draws": min(bootstrap.draws, JUDGED)})
    members = _draw_members(forms.fits, forecasts, weights, draws)
    others = [forecasts[kind].predicted for kind in rest.undecided if kind in forecasts]
    stack = stack_members(members, others)
    distance = split.distance.tolist()
    good = len(members[0].drawn)
    refused = law.refuse_draws(good, draws.draws - good)
    rows = tuple(
        law.HeldOutRow(
            name=str(split.largest.name[i]),
            parameters=float(split.largest.parameters[i]),
            tokens=float(split.largest.tokens[i]),
            loss=float(split.largest.loss[i]),
            predicted=float(stack.loss[i]),
            interval=None
            if refused
            else law.build_interval(stack, i, spread, distance[i], bootstrap.level),
        )
        for i in range(len(split.largest))
    )
    errors = np.abs(stack.loss / split.largest.loss - 1)
    form = forms.fits[rest.chosen].regression.forms(forecasts[rest.chosen].theta)
    return law.HeldOutErrors(
        rule=split.rule,
        rows=rows,
        mean_absolute_error=float(errors.mean()),
        worst_absolute_error=float(errors.max()),
        law_of_the_rest=form.with_constants(form.constants),
        no_interval=refused,
    )


def _choose_among_rest(
    forms: LawForms, rules: HoldOut, split: HeldOutSplit, forecasts: Mapping[Kind, CutForecast]
) -> LawForms:
    """Compare the forms by the runs that are not held out."""
    cuts = {cut: inner.lift(split.below) for cut, inner in list_cuts(split.rest, rules).items()}
    foretold = (
        {} if forms.assumed else {kind: foretell(forms.fits[kind], cuts) for kind in forecasts}
    )
    return LawForms(
        asked=forms.asked,
        fits={kind: forms.fits[kind] for kind in forecasts},
        foretold={kind: found for kind, found in foretold.items() if found.cuts},
        refused=forms.refused,
        assumed=forms.assumed,
    )


def _describe_refusal(fit: Fit[Any], split: HeldOutSplit) -> str:
    try:
        fit.regression.check(split.rest)
    except DataError as why:
        return str(why)
    return f"no search for constants of {fit.form.kind} ended at a minimum"


def _draw_members(
    fits: Mapping[Kind, Fit[Any]],
    forecasts: Mapping[Kind, CutForecast],
    weights: Mapping[Kind, float],
    rules: Bootstrap,
) -> list[FormPrediction]:
    return [
        FormPrediction(
            weight, forecasts[kind].predicted, draw_forecast(fits[kind], forecasts[kind], rules)
        )
        for kind, weight in weights.items()
    ]


def _combine_noises(weights: Mapping[Kind, float], noises: Mapping[Kind, float]) -> float:
    """Return the root of the mean square of `noises`, with each form's share."""
    return float(np.sqrt(sum(weight * noises[kind] ** 2 for kind, weight in weights.items())))
