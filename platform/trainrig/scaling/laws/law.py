"""The contents of `law.json`: a fitted law, its intervals, and the evidence for judging it."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator

from trainrig import config, storage
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.law_forms import TASK_CONSTANTS, Array, Form, TaskForm
from trainrig.scaling.laws.stacking import (
    FormPrediction,
    Spread,
    Stack,
    measure_distance,
    stack_members,
)
from trainrig.storage.missing_folders import describe_origin

LEAST_DRAWS = 20  # with fewer, no draw lies beyond either end of a 95% interval
MOST_FAILED = 0.1  # if a larger share of draws has no fit, the rest give too narrow an interval


def _drop_non_finite(value: object) -> object:
    return None if isinstance(value, float) and not np.isfinite(value) else value


Open = Annotated[float | None, BeforeValidator(_drop_non_finite)]  # None: unbounded on this side


class Interval(Settings):
    """Confidence interval of a quantity at `level`. An end of None is unbounded."""

    low: Open
    high: Open
    level: float = Field(0.95, gt=0, lt=1)

    def __str__(self) -> str:
        low = "unbounded below" if self.low is None else f"{self.low:.4g}"
        high = "unbounded above" if self.high is None else f"{self.high:.4g}"
        return f"[{low}, {high}]"

    def contains(self, value: float) -> bool:
        """Return whether `value` lies in the interval."""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)


class IntervalEstimate(Settings):
    """Estimate of a constant or a derived quantity, with its bootstrap and profile intervals."""

    value: float
    bootstrap: Interval | None = None
    profile: Interval | None = None
    standard_error: float | None = None  # standard deviation of the bootstrap draws


class FittedRange(Settings):
    """Least and greatest value among the fitted runs."""

    least: float
    greatest: float


class Ranges(Settings):
    """Ranges that the fitted runs cover. Beyond them, a law extrapolates."""

    parameters: FittedRange
    tokens: FittedRange
    flops: FittedRange  # 6ND
    tokens_per_parameter: FittedRange

    def measure_distance(self, parameters: Array | float, tokens: Array | float) -> Array:
        """Measure the log distance of runs from the fitted ones, as in `stacking.py`."""
        greatest = (self.parameters.greatest, self.tokens.greatest, self.flops.greatest)
        return measure_distance(parameters, tokens, greatest)


class LeftOut(Settings):
    """Row that was excluded from the fit, and the reason."""

    name: str
    reason: str


class FitRecord(Settings):
    """Record of how the constants were found, with the evidence that they are the minimum."""

    loss: Literal["Huber", "Lad", "Squares"]  # loss of the residuals of log loss
    delta: float | None  # Huber's delta; None for other losses
    objective: float  # the SUM over rows, never the mean
    # Norm of the objective's gradient at the constants, in the coordinates of the search.
    gradient_norm: float
    starts: int
    # Share of the starts that ended at the best minimum.
    starts_that_agree: float = Field(ge=0, le=1)
    rows_used: int
    rows_left_out: tuple[LeftOut, ...] = ()
    draws_failed: int = 0  # number of bootstrap draws without a fit
    clusters: int | None = None  # training runs in the bootstrap; None: rows were drawn


class HeldOutRow(Settings):
    """Run that was held out from the fit, and the loss that the law predicts for it."""

    name: str
    parameters: float
    tokens: float
    loss: float  # nats per token, measured
    predicted: float
    interval: Interval | None = None

    @property
    def error(self) -> float:
        """The relative error, positive where the law predicts too high a loss."""
        return self.predicted / self.loss - 1


class HeldOutErrors(Settings):
    """Errors on the largest runs of a law that was fitted to the others."""

    rule: str  # description of the rows that were held out
    rows: tuple[HeldOutRow, ...]
    mean_absolute_error: float  # relative
    worst_absolute_error: float  # relative
    law_of_the_rest: Form  # fitted without the held-out rows
    no_interval: str = ""  # reason why the rows have no interval


class Compared(Settings):
    """Another form, fitted to the same rows."""

    form: Form
    objective: float
    # Mean absolute relative error on larger runs, predicted from the smaller ones at several cuts.
    held_out_error: float | None
    # Akaike's criterion with Laplace noise: 2 R ln(mean |residual of log loss|) + 2 x constants.
    # Less is better, and only differences have a meaning.
    criterion: float | None = None
    # Whether the held-out error is within one standard error of the best form's.
    as_good: bool | None = None


class Approach(Settings):
    """Exponents of N* ~ C^a and D* ~ C^b, by another method of estimation."""

    name: str  # `envelope`, `isoflop`, `kaplan`, `parametric`
    # The exponent a; None if the method does not apply to these runs, with the reason in `note`.
    parameters_exponent: IntervalEstimate | None
    tokens_exponent: IntervalEstimate | None  # b
    parameters_coefficient: float | None = None  # k of N* = k C^a
    minima: int = 0  # number of minima in N that the line goes through
    # Bootstrap draws of (ln k, a); none for a fitted form, whose draws are the law's.
    draws: tuple[tuple[float, float], ...] = ()
    note: str = ""  # data that the method excluded, or assumptions that it makes


class TaskLaw(Settings):
    """Law of one task's score."""

    task: str
    form: TaskForm
    estimates: Mapping[str, IntervalEstimate]  # keys are constants
    runs: int  # number of fitted runs
    best_score: float  # highest score among the runs
    draws: tuple[tuple[float, ...], ...] = ()  # bootstrap draws of the form's fitted constants
    draws_failed: int = 0

    @property
    def drawn(self) -> TaskForm:
        """The form with constants that are arrays over the draws."""
        columns = np.array(self.draws).reshape(-1, len(TASK_CONSTANTS)).T
        constants = dict(zip(TASK_CONSTANTS, columns[:, :, None], strict=True))
        return TaskForm.model_construct(chance=self.form.chance, unit=self.form.unit, **constants)

    def compute_interval(self, flops: float, level: float = 0.95) -> Interval | None:
        """Compute the interval of the score after `flops`, or None with too few good draws."""
        if refuse_draws(len(self.draws), self.draws_failed):
            return None
        return compute_percentiles(self.drawn.compute_score([flops])[:, 0], level)


class WeightedForm(Settings):
    """Another form that takes part in predictions of the loss."""

    form: Form
    weight: float = Field(gt=0, le=1)  # share of the form in a prediction
    draws: tuple[Form, ...] = ()  # bootstrap draws of the form


class Law(Settings):
    """Root model of `law.json`."""

    format: Literal[1] = 1
    name: str
    form: Form
    choice: str = ""  # reason for the choice of this form
    assumed: str = ""  # assumption that the runs do not show, such as the best D/N
    # Bootstrap draws of `form`, from which all intervals of its constants are computed.
    draws: tuple[Form, ...] = ()
    weight: float = Field(1.0, gt=0, le=1)  # share of `form` in predictions of the loss
    # The other forms in predictions of the loss. The share of a form falls with its mean error on
    # larger runs.
    members: tuple[WeightedForm, ...] = ()
    # How far measured losses lie from predictions; an older law says nothing of it.
    spread: Spread = Spread()
    # Keys are the constants, and `parameters_exponent` where the form determines it.
    estimates: Mapping[str, IntervalEstimate] = Field({})
    parameters_count: Literal["non-embedding", "total"]  # parameters that N counts
    loss_unit: Literal["nats per token"] = "nats per token"
    tokenizer: str  # fingerprint or name; losses with different tokenizers are not comparable
    # Training objective of the runs, as `serialise_objective` writes it; "": next-token prediction.
    objective: str = ""
    ranges: Ranges | None = None  # None for a law that was published without its runs
    fit: FitRecord | None = None  # None for a published law
    held_out: HeldOutErrors | None = None
    not_judged: str = ""  # reason why no runs were held out, if the user did not ask for that
    compared: tuple[Compared, ...] = ()
    approaches: tuple[Approach, ...] = ()
    tasks: tuple[TaskLaw, ...] = ()  # laws of the tasks on which the runs were evaluated
    tasks_refused: Mapping[str, str] = Field({})  # tasks without a law, and the reasons
    source: str = ""  # paper of a published law, or folder or file of a fitted one
    # Package versions, without a date, so that the same runs give the same bytes.
    made_by: Mapping[str, str] = Field({})

    @property
    def no_interval(self) -> str:
        """The reason why the draws give no interval, or an empty string if they do."""
        if not self.draws and self.fit is None:
            return "the law has no draws"
        return refuse_draws(len(self.draws), self.fit.draws_failed if self.fit else 0)

    def compute_interval(
        self, quantity: Callable[[Form], float], level: float = 0.95
    ) -> Interval | None:
        """Compute the percentile interval of `quantity` over the draws, or None if `no_interval`.

        A draw for which the quantity is infinite or not a number counts as largest. An end of the
        interval that falls among such draws is open.
        """
        if self.no_interval:
            return None
        values = np.array([float(quantity(form)) for form in self.draws])
        return compute_percentiles(values, level)

    @property
    def rivals(self) -> tuple[Form, ...]:
        """The other forms that predict larger runs as well as the law's does."""
        kinds = {self.form.kind}
        return tuple(
            other.form for other in self.compared if other.as_good and other.form.kind not in kinds
        )

    @property
    def undecided(self) -> tuple[Form, ...]:
        """The other forms that larger runs did not show to be worse than the law's.

        They include forms that were never compared because there were no larger runs.
        """
        return tuple(
            other.form
            for other in self.compared
            if other.as_good is not False and other.form.kind != self.form.kind
        )

    def combine(self, quantity: Callable[[Form], float]) -> float:
        """Compute `quantity`, a loss, by all forms: their median, each with its share.

        A form for which it is not a number, because the form does not know it, has no share.
        """
        return float(self._stack(quantity, drawn=False).loss[0])

    def predict_interval(
        self,
        quantity: Callable[[Form], float],
        parameters: float,
        tokens: float,
        level: float = 0.95,
    ) -> Interval | None:
        """Compute the interval of the loss of a single run, or None if `no_interval`.

        `quantity` is the loss by a form of the run with `parameters` and `tokens`. The interval
        allows for the draws of all forms, for the noise of a run, and for the errors on larger runs
        that the law's own runs showed. It contains the prediction of each form that has a share or
        is not known to be worse.
        """
        if self.no_interval:
            return None
        far = self.ranges.measure_distance(parameters, tokens) if self.ranges else np.zeros(())
        stack = self._stack(quantity, drawn=True)
        return build_interval(stack, 0, self.spread, float(far), level)

    def _stack(self, quantity: Callable[[Form], float], drawn: bool) -> Stack:
        """Combine `quantity` by all forms that know it; without `drawn`, its spread is unknown."""
        forms = [(self.weight, self.form, self.draws)]
        forms += [(member.weight, member.form, member.draws) for member in self.members]
        members = [
            FormPrediction(
                share,
                np.array([float(quantity(form))]),
                np.array([float(quantity(draw)) for draw in draws if drawn]).reshape(-1, 1),
            )
            for share, form, draws in forms
        ]
        known = [member for member in members if not np.isnan(member.predicted[0])]
        others = [np.array([float(quantity(form))]) for form in self.undecided if drawn]
        return stack_members(known or members[:1], others)


def refuse_draws(good: int, failed: int) -> str:
    """Return why `good` draws, with `failed` others, give no interval, or an empty string."""
    if failed > MOST_FAILED * (good + failed):
        return (
            f"{failed} of {good + failed} bootstrap draws have no fit, so an interval of the "
            "others would be biased: use the profile interval, or add runs"
        )
    if good < LEAST_DRAWS:
        return f"an interval needs {LEAST_DRAWS} bootstrap draws, but the law has {good}"
    return ""


def compute_percentiles(values: Array, level: float = 0.95) -> Interval:
    """Compute the interval of the middle `level` of `values` [K], with NaN as infinite."""
    values = np.where(np.isnan(values), np.inf, values)
    # NaN results from interpolating between two infinite draws, which leaves the end open.
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    if not low < np.inf:
        low = np.max(values, where=values < np.inf, initial=-np.inf)
    return Interval(low=float(low), high=float(high), level=level)


def build_interval(
    stack: Stack, row: int, spread: Spread, distance: float, level: float
) -> Interval:
    """Build the interval of the measured loss of one row at `distance` from the fitted runs.

    It is symmetric in log loss, unless it has to be extended to contain the prediction of a form.
    """
    half = spread.compute_half_width(float(stack.deviation[row]), distance, level)
    with np.errstate(over="ignore"):  # an end that is too far to be a number is open
        factor = float(np.exp(half))
    loss = float(stack.loss[row])
    low = min(loss / factor, float(stack.lowest[row]))
    return Interval(low=low, high=max(loss * factor, float(stack.highest[row])), level=level)


def join_intervals(intervals: Sequence[Interval | None]) -> Interval:
    """Return the least interval that contains all `intervals`; None among them has no effect."""
    known = [interval for interval in intervals if interval is not None]
    lows = [interval.low for interval in known]
    highs = [interval.high for interval in known]
    return Interval(
        low=None if None in lows else min(low for low in lows if low is not None),
        high=None if None in highs else max(high for high in highs if high is not None),
        level=known[0].level,
    )


def write_law(path: str, law: Law) -> None:
    """Write `law` to `path`, one draw a line. The same law gives the same bytes."""
    data = law.model_dump(mode="json")
    listed = _format_draws(data.pop("draws"))
    inner: dict[str, str] = {}
    for part in (*data["members"], *data["tasks"], *data["approaches"]):
        place = f"the draws of part {len(inner)}"
        inner[f'"{place}"'] = _format_draws(part["draws"])
        part["draws"] = place
    head = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False).removesuffix("\n}")
    for place, lines in inner.items():
        head = head.replace(place, lines)
    storage.write(path, f'{head},\n  "draws": {listed}\n}}\n'.encode())


def _format_draws(draws: Sequence[object]) -> str:
    listed = ",\n".join(f"    {json.dumps(draw)}" for draw in draws)
    return f"[\n{listed}\n  ]" if draws else "[]"


def read_law(path: str) -> Law:
    """Read the law at `path`. Raises DataError with a one-line message if it is not a law."""
    try:
        data = storage.read(path)
    except FileNotFoundError:
        origin = describe_origin(path)
        raise DataError(f"{path}: no such law{origin}; `trainrig fit` writes one") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; name the law.json in it") from None
    try:
        return config.build(Law, json.loads(data), path)
    except ConfigError as error:
        raise DataError(f"{error}; is this a law that `trainrig fit` wrote?") from None
    except ValueError as error:
        raise DataError(f"{path}: not a law, which is a JSON file: {error}") from None
