"""Choice of the form of a scaling law by how well it foretells larger runs.

The form is chosen by rolling origin: at several cuts of the runs, each form is fitted to the runs
below and predicts those above. The law is then tested as it is used: the largest runs are held out
and the form is fitted to the rest.
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
from trainrig.scaling.laws.runs_table import Floats, RunsTable, Texts
from trainrig.scaling.regression import form_fits
from trainrig.scaling.regression.bootstrap import Bootstrap, FormDraws, bootstrap_form
from trainrig.scaling.regression.data_constrained import DataConstrainedFit, fit_data_constrained
from trainrig.scaling.regression.minimise import Loss
from trainrig.scaling.regression.ray_fit import describe_assumption, fit_ray
from trainrig.scaling.regression.regression import FINEST, Fit, ReportProgress, ignore_progress

Mask = NDArray[np.bool_]
FitForm = Callable[[RunsTable], Fit[Any]]
JUDGED = 200  # most bootstrap draws of the fit that the law is evaluated by
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
    held: Mask  # [R] whether each row is held out
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
    return HeldOutSplit(runs.select(~held), runs.select(held), held, rule)


@dataclass(frozen=True)
class WeightedFit:
    """Fit of a form, with the share of the form in predictions."""

    fit: Fit[Any]
    weight: float


def judge(
    halves: HeldOutSplit,
    fits: Sequence[WeightedFit],
    rules: Bootstrap,
    report: ReportProgress = ignore_progress,
) -> law.HeldOutErrors:
    """Compare the held-out runs with the predictions of `fits`, which were fitted to the rest.

    The first fit is that of the law's own form. At most JUDGED draws of each are fitted: the ends
    of a held-out run's interval need fewer digits than those of the law.
    """
    largest = halves.largest
    by_form = np.stack([predict(weighted.fit.form, largest) for weighted in fits])
    shares = [weighted.weight for weighted in fits]
    predicted = np.average(by_form, axis=0, weights=shares)
    rules = rules.model_copy(update={"draws": min(rules.draws, JUDGED)})
    draws = [bootstrap_form(weighted.fit, rules, report) for weighted in fits]
    refusals = [law.refuse_draws(len(drawn.draws.good), drawn.draws.failed) for drawn in draws]
    refused = refusals[0]
    drawn = [
        (share, draw_predictions(one, largest, rules.seed))
        for share, one, why in zip(shares, draws, refusals, strict=True)
        if not why
    ]

    def compute_interval(row: int) -> law.Interval | None:
        if refused:
            return None
        of_row = [one[:, row] for _, one in drawn]
        of_draws = law.compute_shared_percentiles(
            of_row, [share for share, _ in drawn], rules.level
        )
        points = [law.Interval(low=v, high=v, level=rules.level) for v in by_form[:, row].tolist()]
        return law.join_intervals([of_draws, *points])

    rows = tuple(
        law.HeldOutRow(
            name=str(largest.name[i]),
            parameters=float(largest.parameters[i]),
            tokens=float(largest.tokens[i]),
            loss=float(largest.loss[i]),
            predicted=float(predicted[i]),
            interval=compute_interval(i),
        )
        for i in range(len(largest))
    )
    errors = np.abs(predicted / largest.loss - 1)
    return law.HeldOutErrors(
        rule=halves.rule,
        rows=rows,
        mean_absolute_error=float(errors.mean()),
        worst_absolute_error=float(errors.max()),
        law_of_the_rest=fits[0].fit.form,
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
LEAST_SHARE = 0.02  # a smaller share of a form in predictions changes nothing
LEAST_KEPT = 3  # fewer foretold training runs give no meaningful standard error
CUTS = 5  # cuts of the runs at which each form foretells the runs above
FIRST_CUT = 0.5  # share of the runs below the first cut
EVERY_START = 10  # every start of this number is searched again at a cut
Kind = Literal["Parametric", "Kaplan", "DataConstrained", "OverTraining"]
# By the number of their constants, those with an irreducible loss first.
FORMS: tuple[Kind, ...] = ("OverTraining", "Parametric", "Kaplan", "DataConstrained")
STANDARD: Kind = "Parametric"


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
class Foretold:
    """Errors of one form on the runs above each cut, fitted to the runs below (rolling origin)."""

    signed: Mapping[int, Array]  # relative errors by number of the cut, each [H]
    trials: Mapping[int, Texts]  # training run of each error

    @property
    def errors(self) -> dict[int, Array]:
        """The absolute relative errors by number of the cut."""
        return {cut: np.abs(found) for cut, found in self.signed.items()}

    def compute_error(self, cuts: Sequence[int]) -> float:
        """Compute the mean over `cuts` of the mean error at each."""
        return float(np.mean([self.errors[cut].mean() for cut in cuts]))

    def compute_standard_error(self, cuts: Sequence[int]) -> float:
        """Compute the standard error of that mean. The points of one training run count as one."""
        names = np.concatenate([self.trials[cut] for cut in cuts])
        parts = [
            (self.errors[cut] - self.errors[cut].mean()) / len(self.errors[cut]) / len(cuts)
            for cut in cuts
        ]
        _, cluster = np.unique(names, return_inverse=True)
        together = np.bincount(cluster, np.concatenate(parts))
        clusters = len(together)
        return float(np.sqrt(together @ together * clusters / max(clusters - 1, 1)))


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
        known = [set(found.errors) for found in self.foretold.values()]
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

        A share is in proportion to 1 / error^2, where the error is that on larger runs (Bates and
        Granger 1969, "The combination of forecasts"). Shares below LEAST_SHARE are left out. A form
        that was asked for, or that could not be compared, has the whole share.
        """
        if self.asked or self.best is None or self._count_foretold() < LEAST_KEPT:
            return {self.chosen: 1.0}
        shares = {
            kind: max(self._compute_error(kind), FINEST) ** -2
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
        found = next(iter(self.foretold.values()))
        return len(set(np.concatenate([found.trials[cut] for cut in self.cuts]).tolist()))

    def _is_as_good(self, kind: Kind) -> bool:
        assert self.best is not None  # the callers check that runs are held out
        return self._compute_error(kind) <= self._compute_error(self.best) + self._standard_error

    def compare_forms(self) -> tuple[law.Compared, ...]:
        """Return the results of all fitted forms, the chosen form first."""
        others = (kind for kind in self.fits if kind != self.chosen)
        return tuple(self._compare_form(kind) for kind in (self.chosen, *others))

    def _compare_form(self, kind: Kind) -> law.Compared:
        fit = self.fits[kind]
        foretold = kind in self.foretold and self.cuts
        return law.Compared(
            form=fit.form,
            objective=fit.objective,
            held_out_error=self._compute_error(kind) if foretold else None,
            as_good=self._is_as_good(kind) if foretold else None,
            criterion=compute_criterion(fit),
        )


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
    fits: dict[Kind, Fit[Any]] = {}
    foretold: dict[Kind, Foretold] = {}
    refused: dict[Kind, DataError] = {}
    for kind in (first, *(kind for kind in list_kinds(runs) if kind != first)):
        report(f"fitting {kind}")
        try:
            fits[kind] = select_fitter(kind, loss)(runs)
        except DataError as why:
            if kind == asked:
                raise
            refused[kind] = why
            continue
        report(f"foretelling larger runs by {kind}")
        if rules.share and (found := foretell(fits[kind], rules)).signed:
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


def foretell(fit: Fit[Any], rules: HoldOut) -> Foretold:
    """Fit the form of `fit` below each of CUTS cuts, and compare the runs above with it.

    The cuts lie evenly from half of the runs to all but the held-out share. A cut below which the
    runs do not identify the form is left out. Only the search starts from the fit to all runs: the
    constants at a cut are those of the runs below it.
    """
    last = 1 - rules.share
    shares = np.linspace(FIRST_CUT, last, CUTS).tolist() if last > FIRST_CUT else [last]
    halves = {cut: found for cut, share in enumerate(shares) if (found := _cut(fit, rules, share))}
    if not halves:
        return Foretold({}, {})
    starts = np.concatenate([fit.theta[None], fit.rivals, fit.regression.starts[::EVERY_START]])
    below = np.stack([~found.held for found in halves.values()])
    signed: dict[int, Array] = {}
    for (cut, found), theta in zip(
        halves.items(), fit.regression.refit_subsets(starts, below), strict=True
    ):
        if not np.isnan(theta).any():
            predicted = predict(fit.regression.forms(theta), found.largest)
            signed[cut] = predicted / found.largest.loss - 1
    return Foretold(signed, {cut: halves[cut].largest.trial for cut in signed})


def _cut(fit: Fit[Any], rules: HoldOut, share: float) -> HeldOutSplit | None:
    """Split the runs of `fit`, or return None if those below do not identify its form."""
    above = rules.model_copy(update={"share": 1 - share})
    try:
        halves = split_held_out(fit.regression.runs, above)
        fit.regression.check(halves.rest)
    except DataError:
        return None
    return halves


def list_kinds(runs: RunsTable) -> Sequence[Kind]:
    """Return the forms to fit to `runs`: DataConstrained only if runs repeat their data."""
    return FORMS if count_repeating(runs) else FORMS[:-1]


def count_repeating(runs: RunsTable) -> int:
    """Return the number of runs that saw their tokens more than EPOCHS times.

    Runs whose unique tokens are unknown (NaN) do not count.
    """
    return int((runs.tokens > EPOCHS * runs.unique_tokens).sum())


def fit_rest(halves: HeldOutSplit, forms: LawForms, loss: Loss) -> list[WeightedFit]:
    """Fit the forms of the law to the runs that are not held out, the chosen form first.

    A form that they do not determine is left out. Raises NotJudgedError if they do not determine
    the chosen one.
    """
    fits: list[WeightedFit] = []
    for kind, weight in forms.weights.items():
        try:
            fit = fit_ray(halves.rest, loss) if forms.assumed else _fit(kind, halves.rest, loss)
        except DataError as why:
            if fits:
                continue
            raise NotJudgedError(
                f"without {halves.rule}, held out to evaluate the law: {why}; hold out fewer runs "
                "with --hold-out, or none with --hold-out 0"
            ) from None
        fits.append(WeightedFit(fit, weight))
    return fits


def _fit(kind: Kind, runs: RunsTable, loss: Loss) -> Fit[Any]:
    return select_fitter(kind, loss)(runs)
