"""Choice of the form of a scaling law by its error on held-out runs.

A law is tested as it is used: the largest runs are held out and the form is fitted to the rest.
Each held-out run is compared with its prediction and with the prediction's interval. The interval
comes from the predictions of the bootstrap draws, each with noise drawn from the fit's residuals.

Shapes: R rows, H held-out rows, K draws.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws import law
from trainrig.scaling.laws.law_forms import Array, Form
from trainrig.scaling.laws.runs_table import Floats, RunsTable
from trainrig.scaling.regression import form_fits
from trainrig.scaling.regression.bootstrap import Bootstrap, FormDraws, bootstrap_form
from trainrig.scaling.regression.data_constrained import DataConstrainedFit, fit_data_constrained
from trainrig.scaling.regression.minimise import Loss
from trainrig.scaling.regression.regression import FINEST, Fit, ReportProgress, ignore_progress

Mask = NDArray[np.bool_]
FitForm = Callable[[RunsTable], Fit[Any]]
TIED = 1.02  # runs within this factor of the threshold are held out, too


class HoldOut(Settings):
    """Settings that select the held-out runs. The law itself is fitted to all runs."""

    # Quantity by which the largest runs are held out.
    by: Literal["flops", "parameters", "tokens"] = "flops"
    # Share of the runs to hold out; 0: none, and the law is not evaluated.
    share: float = Field(0.1, ge=0, lt=1)


@dataclass(frozen=True)
class HeldOutSplit:
    """Table of runs split into held-out runs and the rest, with a description of the rule."""

    rest: RunsTable
    largest: RunsTable
    rule: str


def split_held_out(runs: RunsTable, rules: HoldOut) -> HeldOutSplit:
    """Split `runs` into the largest `share`, including ties, and the rest.

    Raises DataError if no run or all runs would be held out.
    """
    values: Floats = runs.flops_6nd if rules.by == "flops" else getattr(runs, rules.by)
    count = int(np.ceil(rules.share * len(runs)))
    threshold = np.sort(values)[-count] if count else np.inf
    held: Mask = values >= threshold / TIED
    if not held.any() or held.all():
        raise DataError(
            f"{int(held.sum())} of {len(runs)} runs would be held out as the largest by "
            f"{rules.by}; choose a share that holds out some runs and leaves some with less "
            f"{rules.by}"
        )
    many = "run" if held.sum() == 1 else f"{int(held.sum())} runs"
    rule = f"the {many} of {threshold / TIED:.3g} {rules.by} or more"
    return HeldOutSplit(runs.select(~held), runs.select(held), rule)


def judge(
    halves: HeldOutSplit, fit: Fit[Any], rules: Bootstrap, report: ReportProgress = ignore_progress
) -> law.HeldOutErrors:
    """Compare the held-out runs with the predictions of `fit`, which was fitted to the rest."""
    largest = halves.largest
    predicted = predict(fit.form, largest)
    draws = bootstrap_form(fit, rules, report)
    refused = law.refuse_draws(len(draws.draws.good), draws.draws.failed)
    drawn = None if refused else draw_predictions(draws, largest, rules.seed)
    rows = tuple(
        law.HeldOutRow(
            name=str(largest.name[i]),
            parameters=float(largest.parameters[i]),
            tokens=float(largest.tokens[i]),
            loss=float(largest.loss[i]),
            predicted=float(predicted[i]),
            interval=None if drawn is None else law.compute_percentiles(drawn[:, i], rules.level),
        )
        for i in range(len(largest))
    )
    errors = np.abs(predicted / largest.loss - 1)
    return law.HeldOutErrors(
        rule=halves.rule,
        rows=rows,
        mean_absolute_error=float(errors.mean()),
        worst_absolute_error=float(errors.max()),
        law_of_the_rest=fit.form,
        no_interval=refused,
    )


def predict(form: Form, runs: RunsTable) -> Array:
    """Predict the loss [R] of each run by `form`, with repeated tokens where they are known."""
    unique = np.where(np.isnan(runs.unique_tokens), runs.tokens, runs.unique_tokens)
    return form.compute_loss(runs.parameters, runs.tokens, unique)


def draw_predictions(draws: FormDraws[Any], runs: RunsTable, seed: int) -> Array:
    """Predict `runs` by each draw [K, H], with noise drawn from the fit's residuals.

    Residuals are smaller than the noise because the constants adapt to it, so they are scaled up by
    the lost degrees of freedom.
    """
    residuals = draws.fit.residuals
    freed = len(residuals) / max(len(residuals) - len(draws.fit.theta), 1)
    rng = np.random.default_rng(seed)
    clean = np.stack([predict(form, runs) for form in draws.forms])
    return np.asarray(clean * np.exp(rng.choice(residuals * np.sqrt(freed), clean.shape)))


def compute_criterion(fit: Fit[Any]) -> float:
    """Compute Akaike's criterion with Laplace noise: 2 R ln(mean |residual|) + 2 x constants.

    Residuals are of log loss. Laplace noise is assumed because its likelihood is close to Huber's
    loss.
    """
    constants = len(fit.form.constants)
    size = max(float(np.abs(fit.residuals).mean()), FINEST)
    return float(2 * len(fit.residuals) * np.log(size) + 2 * constants)


EPOCHS = 4  # tokens repeated more often are worth visibly less than new ones (arXiv:2305.16264)
LEAST_KEPT = 3  # fewer held-out training runs give no meaningful standard error
Kind = Literal["Parametric", "Kaplan", "DataConstrained", "OverTraining"]
FORMS: tuple[Kind, ...] = ("Parametric", "OverTraining", "Kaplan", "DataConstrained")
STANDARD = FORMS[0]


def select_fitter(kind: Kind, loss: Loss) -> FitForm:
    """Return the function that fits forms of `kind`, with `loss` as the loss of the residuals."""
    fitters: dict[Kind, FitForm] = {
        "Parametric": lambda runs: form_fits.fit_parametric(
            runs, form_fits.ParametricFit(loss=loss)
        ),
        "Kaplan": lambda runs: form_fits.fit_kaplan_form(runs, form_fits.KaplanFit(loss=loss)),
        "DataConstrained": lambda runs: fit_data_constrained(runs, DataConstrainedFit(loss=loss)),
        "OverTraining": lambda runs: form_fits.fit_overtraining(
            runs, form_fits.OverTrainingFit(loss=loss)
        ),
    }
    return fitters[kind]


class NotJudgedError(DataError):
    """Failure to fit the form to the runs that remain when the largest runs are held out."""


@dataclass(frozen=True)
class Judged:
    """Fit of one form without the held-out runs, and its errors on them."""

    fit: Fit[Any]  # fitted to the runs that are not held out
    errors: Array  # [H] absolute relative errors on the held-out runs

    @property
    def error(self) -> float:
        """Mean absolute relative error on the held-out runs."""
        return float(self.errors.mean())


@dataclass(frozen=True)
class LawForms:
    """Fits of every form that the runs can identify, and the choice among them."""

    asked: Kind | None
    fits: Mapping[Kind, Fit[Any]]  # each fitted to all runs
    judged: Mapping[Kind, Judged]  # empty if no runs are held out
    kept: tuple[str, ...]  # the `trial` of each held-out run

    @property
    def best(self) -> Kind | None:
        """The form with the least error on the held-out runs, or None if no runs are held out."""
        if not self.judged:
            return None
        return min(self.judged, key=lambda kind: self.judged[kind].error)

    @property
    def chosen(self) -> Kind:
        """The form of the law."""
        if self.asked is not None:
            return self.asked
        if self.best is None or len(set(self.kept)) < LEAST_KEPT:
            return STANDARD
        return next(kind for kind in FORMS if kind in self.judged and self._is_as_good(kind))

    @property
    def why(self) -> str:
        """The reason for the choice of the form, in one sentence."""
        own = self.chosen
        best = self.best
        if self.asked is not None:
            return f"{own}, as --form asks"
        if best is None:
            return f"{own}, the standard form, because no runs were held out to choose by"
        if len(set(self.kept)) < LEAST_KEPT:
            return (
                f"{own}, the standard form, because {len(set(self.kept))} held-out training runs "
                "are too few for a standard error to choose by"
            )
        least = self.judged[best].error
        if own == best:
            return f"{own}, which has the lowest mean error on held-out runs, {least:.2%}"
        return (
            f"{own}, whose mean error on held-out runs, {self.judged[own].error:.2%}, is within "
            f"one standard error ({self._standard_error:.2%}) of the lowest, {least:.2%} of "
            f"{best}"
        )

    @property
    def _standard_error(self) -> float:
        """Standard error of the best form's mean error.

        Held-out runs that share a training run count as one.
        """
        assert self.best is not None  # the callers check that runs are held out
        errors = self.judged[self.best].errors
        _, cluster = np.unique(self.kept, return_inverse=True)
        together = np.bincount(cluster, errors - errors.mean())
        clusters = len(together)
        squares = float(together @ together) * clusters / max(clusters - 1, 1)
        return float(np.sqrt(squares)) / len(errors)

    def _is_as_good(self, kind: Kind) -> bool:
        assert self.best is not None  # the callers check that runs are held out
        return self.judged[kind].error <= self.judged[self.best].error + self._standard_error

    def compare_forms(self) -> tuple[law.Compared, ...]:
        """Return the results of all fitted forms, the chosen form first."""
        others = (kind for kind in self.fits if kind != self.chosen)
        return tuple(self._compare_form(kind) for kind in (self.chosen, *others))

    def _compare_form(self, kind: Kind) -> law.Compared:
        fit = self.fits[kind]
        judged = self.judged.get(kind)
        return law.Compared(
            form=fit.form,
            objective=fit.objective,
            held_out_error=judged.error if judged else None,
            as_good=self._is_as_good(kind) if judged else None,
            criterion=compute_criterion(fit),
        )


def fit_forms(
    runs: RunsTable,
    halves: HeldOutSplit | None,
    asked: Kind | None,
    loss: Loss,
    report: Callable[[str], None] = lambda stage: None,
) -> LawForms:
    """Fit each form to all `runs`, and to the runs that are not held out.

    A form other than `asked` (by default the standard form) is skipped if it cannot be fitted.
    Raises DataError if that form itself cannot be fitted, and NotJudgedError if it cannot be fitted
    without the held-out runs. `report` is called with the name of each stage.
    """
    first = asked or STANDARD
    order = (first, *(kind for kind in list_kinds(runs) if kind != first))
    fits: dict[Kind, Fit[Any]] = {}
    judged: dict[Kind, Judged] = {}
    for kind in order:
        report(f"fitting {kind}")
        try:
            fits[kind] = _fit(runs, kind, loss)
            if halves is not None:
                report(f"fitting {kind} without the held-out runs")
                judged[kind] = _judge_form(halves, select_fitter(kind, loss))
        except DataError:
            if kind == first:
                raise
            fits.pop(kind, None)
    kept = () if halves is None else tuple(halves.largest.trial.tolist())
    return LawForms(asked, fits, judged, kept)


def list_kinds(runs: RunsTable) -> Sequence[Kind]:
    """Return the forms to fit to `runs`: DataConstrained only if runs repeat their data."""
    return FORMS if count_repeating(runs) else FORMS[:-1]


def count_repeating(runs: RunsTable) -> int:
    """Return the number of runs that saw their tokens more than EPOCHS times.

    Runs whose unique tokens are unknown (NaN) do not count.
    """
    return int((runs.tokens > EPOCHS * runs.unique_tokens).sum())


def _judge_form(halves: HeldOutSplit, fitter: FitForm) -> Judged:
    try:
        fit = fitter(halves.rest)
    except DataError as why:
        raise NotJudgedError(
            f"without {halves.rule}, held out to evaluate the law: {why}; hold out fewer runs with "
            "--hold-out, or none with --hold-out 0"
        ) from None
    return Judged(fit, np.abs(predict(fit.form, halves.largest) / halves.largest.loss - 1))


def _fit(runs: RunsTable, kind: Kind, loss: Loss) -> Fit[Any]:
    """Fit the form `kind` to `runs`.

    Raises DataError. The message suggests Kaplan's form if the parametric one has no minimum but
    Kaplan's has: losses of small models alone may not show the irreducible loss.
    """
    try:
        return select_fitter(kind, loss)(runs)
    except DataError as refused:
        if kind != "Parametric" or not _can_fit_kaplan(runs, loss):
            raise
        raise DataError(
            f"{refused}; or use --form Kaplan, which has no irreducible loss and fits these runs"
        ) from None


def _can_fit_kaplan(runs: RunsTable, loss: Loss) -> bool:
    try:
        select_fitter("Kaplan", loss)(runs)
    except DataError:
        return False
    return True
