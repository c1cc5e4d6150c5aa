"""A fitted law with everything needed to judge it: what `law.json` holds."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator

from trainrig import config, storage
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.forms import TASK_CONSTANTS, Array, Form, TaskForm

LEAST_DRAWS = 20  # fewer leave no draw beyond either end of a 95% interval
MOST_FAILED = 0.1  # share of draws without a fit beyond which the others tell too rosy a story


def _drop_non_finite(value: object) -> object:
    return None if isinstance(value, float) and not np.isfinite(value) else value


Open = Annotated[float | None, BeforeValidator(_drop_non_finite)]  # None: no bound on this side


class Interval(Settings):
    """Where a quantity lies, at `level`. An end that is None is open: the data give no bound."""

    low: Open
    high: Open
    level: float = Field(0.95, gt=0, lt=1)

    def __str__(self) -> str:
        low = "unbounded below" if self.low is None else f"{self.low:.4g}"
        high = "unbounded above" if self.high is None else f"{self.high:.4g}"
        return f"[{low}, {high}]"

    def contains(self, value: float) -> bool:
        """Is `value` within?"""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)


class IntervalEstimate(Settings):
    """One constant, or a quantity derived from them, by both ways of saying how sure it is."""

    value: float
    bootstrap: Interval | None = None
    profile: Interval | None = None
    standard_error: float | None = None  # of the bootstrap draws


class FittedRange(Settings):
    """The least and the greatest of the runs fitted."""

    least: float
    greatest: float


class Ranges(Settings):
    """Where the runs lie: beyond it, a law extrapolates."""

    parameters: FittedRange
    tokens: FittedRange
    flops: FittedRange  # by 6ND
    tokens_per_parameter: FittedRange


class LeftOut(Settings):
    """A row that was not fitted, and the rule that says why."""

    name: str
    reason: str


class FitRecord(Settings):
    """How the constants were found, and the proof that they are the minimum."""

    loss: Literal["Huber", "Lad", "Squares"]  # of the residuals of log loss
    delta: float | None  # of Huber's loss; None where there is none
    objective: float  # the SUM over rows, never the mean
    gradient_norm: float  # of the objective at the constants, by the coordinates of the search
    starts: int
    starts_that_agree: float = Field(ge=0, le=1)  # share that ended at the best
    rows_used: int
    rows_left_out: tuple[LeftOut, ...] = ()
    draws_failed: int = 0  # bootstrap draws without a fit, of those asked for
    clusters: int | None = None  # training runs resampled whole; None: rows were


class HeldOutRow(Settings):
    """A run kept from the fit, and what the law said of it."""

    name: str
    parameters: float
    tokens: float
    loss: float  # nats per token, measured
    predicted: float
    interval: Interval | None = None

    @property
    def error(self) -> float:
        """Relative: positive where the law said too much."""
        return self.predicted / self.loss - 1


class HeldOutErrors(Settings):
    """The fit on the small, judged on the large."""

    rule: str  # which rows were kept back
    rows: tuple[HeldOutRow, ...]
    mean_absolute_error: float  # relative
    worst_absolute_error: float  # relative
    law_of_the_rest: Form  # fitted without them
    no_interval: str = ""  # why the rows have none


class Compared(Settings):
    """Another form, fitted to the same rows."""

    form: Form
    objective: float
    held_out_error: float | None  # mean absolute, relative
    # Akaike's, for Laplace's noise: 2 R ln(mean |residual of log loss|) + 2 x constants. Less is
    # better, by differences only.
    criterion: float | None = None
    as_good: bool | None = None  # is the held-out error within one standard error of the best's?


class Approach(Settings):
    """N* ~ C^a and D* ~ C^b by another way of finding them."""

    name: str  # `envelope`, `isoflop`, `kaplan`, `parametric`
    # a; None: it refused these runs, and `note` says why
    parameters_exponent: IntervalEstimate | None
    tokens_exponent: IntervalEstimate | None  # b
    parameters_coefficient: float | None = None  # k of N* = k C^a
    note: str = ""  # what it refused, or assumed


class TaskLaw(Settings):
    """The law of one task's score."""

    task: str
    form: TaskForm
    estimates: Mapping[str, IntervalEstimate]  # by constant
    runs: int  # fitted
    best_score: float  # of any of the runs
    draws: tuple[tuple[float, ...], ...] = ()  # bootstrap draws: the form's fitted constants
    draws_failed: int = 0

    @property
    def drawn(self) -> TaskForm:
        """One form whose constants are arrays over the draws."""
        columns = np.array(self.draws).reshape(-1, len(TASK_CONSTANTS)).T
        constants = dict(zip(TASK_CONSTANTS, columns[:, :, None], strict=True))
        return TaskForm.model_construct(chance=self.form.chance, unit=self.form.unit, **constants)

    def compute_interval(self, flops: float, level: float = 0.95) -> Interval | None:
        """Where the expected score after `flops` lies, by the draws; None where they do not say."""
        if refuse_draws(len(self.draws), self.draws_failed):
            return None
        return compute_percentiles(self.drawn.compute_score([flops])[:, 0], level)


class Law(Settings):
    """What `law.json` holds."""

    format: Literal[1] = 1
    name: str
    form: Form
    choice: str = ""  # why this form heads the law
    draws: tuple[Form, ...] = ()  # bootstrap draws of `form`: intervals of whatever is planned
    estimates: Mapping[str, IntervalEstimate] = Field(
        {}
    )  # by constant, and `parameters_exponent` where there is one
    parameters_count: Literal["non-embedding", "total"]  # what N counts
    loss_unit: Literal["nats per token"] = "nats per token"
    tokenizer: str  # its fingerprint or name: losses of different ones do not compare
    # What the runs were trained for, as `objective_names` writes it; "": next-token prediction.
    objective: str = ""
    ranges: Ranges | None = None  # None: published without its runs
    fit: FitRecord | None = None  # None: published
    held_out: HeldOutErrors | None = None
    not_judged: str = ""  # why no runs were kept back, where nobody asked for that
    compared: tuple[Compared, ...] = ()
    approaches: tuple[Approach, ...] = ()
    tasks: tuple[TaskLaw, ...] = ()  # of the tasks that the runs were asked
    tasks_refused: Mapping[str, str] = Field({})  # by task that has no law: why
    source: str = ""  # the paper of a published law, the folder or file of a fitted one
    made_by: Mapping[str, str] = Field(
        {}
    )  # versions; no date, so that the same runs give the same bytes

    @property
    def no_interval(self) -> str:
        """Why the draws give no interval; empty where they do."""
        if not self.draws and self.fit is None:
            return "the law has no draws"
        return refuse_draws(len(self.draws), self.fit.draws_failed if self.fit else 0)

    def compute_interval(
        self, quantity: Callable[[Form], float], level: float = 0.95
    ) -> Interval | None:
        """Where `quantity` lies, by the percentiles of its values under the draws.

        None where `no_interval` says why. A draw under which the quantity is infinite or not a
        number counts at the top; an end that would fall among those is open.
        """
        if self.no_interval:
            return None
        values = np.array([float(quantity(form)) for form in self.draws])
        return compute_percentiles(values, level)


def refuse_draws(good: int, failed: int) -> str:
    """Why `good` draws, beside those that `failed`, give no interval; empty where they do."""
    if failed > MOST_FAILED * (good + failed):
        return (
            f"{failed} of {good + failed} bootstrap draws have no fit, so the others give no honest"
            " interval: take the profile's, or add runs"
        )
    if good < LEAST_DRAWS:
        return f"{good} bootstrap draws, and an interval needs {LEAST_DRAWS}"
    return ""


def compute_percentiles(values: Array, level: float = 0.95) -> Interval:
    """The middle `level` of `values` [K]; what is not a number counts as infinite."""
    values = np.where(np.isnan(values), np.inf, values)
    with np.errstate(invalid="ignore"):  # between two infinite draws, which leaves the end open
        low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    if not low < np.inf:
        low = np.max(values, where=values < np.inf, initial=-np.inf)
    return Interval(low=float(low), high=float(high), level=level)


def write_law(path: str, law: Law) -> None:
    """Write `law` to `path`: the same law, the same bytes. A draw is one line."""
    data = law.model_dump(mode="json")
    listed = _format_draws(data.pop("draws"))
    of_tasks = {}
    for number, task in enumerate(data["tasks"]):
        of_tasks[f'"the draws of task {number}"'] = _format_draws(task["draws"])
        task["draws"] = f"the draws of task {number}"
    head = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False).removesuffix("\n}")
    for place, lines in of_tasks.items():
        head = head.replace(place, lines)
    storage.write(path, f'{head},\n  "draws": {listed}\n}}\n'.encode())


def _format_draws(draws: Sequence[object]) -> str:
    listed = ",\n".join(f"    {json.dumps(draw)}" for draw in draws)
    return f"[\n{listed}\n  ]" if draws else "[]"


def read_law(path: str) -> Law:
    """The law at `path`. Raises DataError, one line, if it is none."""
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such law; `trainrig fit` writes one") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; name the law.json in it") from None
    try:
        return config.build(Law, json.loads(data), path)
    except ConfigError as error:
        raise DataError(f"{error}; is this a law as `trainrig fit` writes them?") from None
    except ValueError as error:
        raise DataError(f"{path}: not a law, which is JSON: {error}") from None
