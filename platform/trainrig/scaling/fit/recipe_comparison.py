"""Comparison of recipes by their scaling laws: which corpus is worth more compute, and how much.

Two or more corpora are swept alike and fitted together: each recipe has its own E, A and B. The
exponents are the same for all (`share = "exponents"`) or separate (`share = "nothing"`). At a
compute C, the laws' optima differ by some nats per token. If the baseline needs m C to reach the
recipe's loss, the recipe is worth m times the compute. Bootstrap draws resample each recipe's
training runs separately.

Losses are comparable only on the same held-out text with the same tokenizer. The tokenizer named in
the tables is checked.

Shapes: R runs of all recipes, Q recipes, P coordinates (3 Q + 2), K draws.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.law import FittedRange, IntervalEstimate, LeftOut
from trainrig.scaling.laws.law_forms import Array, Constants, Parametric
from trainrig.scaling.laws.runs_screening import Exclusions, refuse_mixtures, screen
from trainrig.scaling.laws.runs_table import RunsTable, join_tables
from trainrig.scaling.regression.bootstrap import Bootstrap, Draws, bootstrap
from trainrig.scaling.regression.form_fits import (
    EXPONENTS,
    FLOORS,
    centre_logs,
    fit_above_floor,
    fit_parametric,
)
from trainrig.scaling.regression.minimise import Huber, LogSumExp, Loss, MinimiseSettings
from trainrig.scaling.regression.regression import Fit, Regression, check_numbers


class RecipeFit(Settings):
    """Settings of fitting and comparing recipes."""

    share: Literal["exponents", "nothing"] = "exponents"
    loss: Loss = Huber()
    exclusions: Exclusions = Exclusions()
    bootstrap: Bootstrap = Bootstrap()
    # FLOPs (6ND) at which recipes are compared; none: the greatest compute of all runs and the
    # geometric middle of the range.
    flops: tuple[float, ...] = ()
    search: MinimiseSettings = Field(MinimiseSettings())


class Difference(Settings):
    """Difference between a recipe and the baseline, both at their optimum for `flops`."""

    recipe: str
    flops: float  # 6ND
    # Nats per token, positive if the recipe's loss is higher than the baseline's.
    loss: IntervalEstimate
    # Factor of compute that the baseline needs to reach the recipe's loss; None: no compute
    # suffices.
    multiplier: IntervalEstimate | None

    @property
    def is_significant(self) -> bool:
        """Return whether the interval of the loss difference excludes 0."""
        return self.loss.bootstrap is not None and not self.loss.bootstrap.contains(0)


class RecipeLaw(Settings):
    """Scaling law of one recipe, with the excluded rows."""

    name: str
    form: Parametric
    rows: int
    rows_left_out: tuple[LeftOut, ...] = ()


class Comparison(Settings):
    """Comparison of recipes. The first recipe is the baseline."""

    share: Literal["exponents", "nothing"]
    recipes: tuple[RecipeLaw, ...]
    differences: tuple[Difference, ...]
    # Akaike's criterion, as in law.json, with shared exponents minus that with separate exponents;
    # below 0 if shared exponents are enough.
    criterion_of_sharing: float
    tokenizer: str
    parameters_count: Literal["non-embedding", "total"]
    flops: FittedRange  # range of 6ND over all runs
    draws_failed: int


class Recipes(Constants):
    """Laws of several recipes as the constants of one fit."""

    laws: tuple[Parametric, ...]

    @property
    def constants(self) -> dict[str, float]:
        """The constants as `0.E`, `0.A`, …, prefixed by the recipe's number."""
        return {
            f"{number}.{name}": value
            for number, law in enumerate(self.laws)
            for name, value in law.constants.items()
        }


Counts = NDArray[np.int64]
T = TypeVar("T")


def compare(tables: Mapping[str, RunsTable], settings: RecipeFit) -> Comparison:
    """Compare recipes, given a table of runs for each recipe name. The first is the baseline.

    Raises DataError for fewer than two recipes, for different tokenizers or counts of parameters,
    and for too few runs.
    """
    swept = _screen_tables(tables, settings)
    fit = partial(fit_parametric, loss=settings.loss, search=settings.search)
    apart = [
        _apply_to_recipe(name, fit, swept.select_runs(q)) for q, name in enumerate(swept.names)
    ]
    jointly = _build_regression(swept, settings).fit()
    shared = settings.share == "exponents"
    laws = _build_laws(jointly.theta, swept) if shared else [fit.form for fit in apart]
    at = settings.flops or _choose_budgets(swept.runs)

    def redrawn(counts: Counts) -> Array:
        if shared:
            return _stack_differences(_build_laws(jointly.refit_draws(counts), swept), at)
        redrawn_laws = [
            fit.regression.forms(fit.refit_draws(counts[:, swept.recipe == q]))
            for q, fit in enumerate(apart)
        ]
        return _stack_differences(redrawn_laws, at)

    drawn = bootstrap(redrawn, swept.runs, settings.bootstrap, strata=swept.recipe)
    return Comparison(
        share=settings.share,
        recipes=tuple(
            RecipeLaw(
                name=name,
                form=Parametric.model_validate({k: float(v) for k, v in law.constants.items()}),
                rows=len(swept.select_runs(q)),
                rows_left_out=out,
            )
            for q, (name, law, out) in enumerate(
                zip(swept.names, laws, swept.left_out, strict=True)
            )
        ),
        differences=_build_differences(swept.names[1:], at, _stack_differences(laws, at), drawn),
        criterion_of_sharing=_compute_criterion([jointly]) - _compute_criterion(apart),
        tokenizer=next((str(name) for name in swept.runs.tokenizer if name), "unknown"),
        parameters_count=swept.runs.counts,
        flops=FittedRange(
            least=float(swept.runs.flops_6nd.min()), greatest=max(_choose_budgets(swept.runs))
        ),
        draws_failed=drawn.failed,
    )


def describe_comparison(found: Comparison) -> Iterator[str]:
    """Yield the lines of a text summary of the comparison."""
    base, *_ = found.recipes
    exponents = "shared exponents" if found.share == "exponents" else "separate exponents"
    yield (
        f"recipes by the parametric law, {exponents} (AIC of sharing them "
        f"{found.criterion_of_sharing:+.1f}), losses in nats per token, tokenizer "
        f"{found.tokenizer}; baseline {base.name}"
    )
    for law in found.recipes:
        f = law.form
        left_out = f", {len(law.rows_left_out)} left out" if law.rows_left_out else ""
        yield (
            f"{law.name}: E {f.E:.4g}, A {f.A:.4g}, B {f.B:.4g}, alpha {f.alpha:.4g}, beta "
            f"{f.beta:.4g}, {law.rows} runs{left_out}"
        )
    for difference in found.differences:
        yield _describe_difference(difference, base.name)
    if found.draws_failed:
        yield f"{found.draws_failed} bootstrap draws have no fit and are left out of the intervals"


def _describe_difference(difference: Difference, baseline: str) -> str:
    loss = f"{difference.loss.value:+.4f} nats per token {difference.loss.bootstrap or ''}".rstrip()
    if difference.multiplier is None:
        worth = f"{baseline} cannot reach this loss with any compute"
    else:
        worth = (
            f"worth {difference.multiplier.value:.3g}x compute "
            f"{difference.multiplier.bootstrap or ''}"
        ).rstrip()
    unsure = "not significant" if difference.loss.bootstrap else "no interval"
    surely = "" if difference.is_significant else f"; {unsure}"
    return (
        f"at {difference.flops:.3g} FLOPs, {difference.recipe} against {baseline}: {worth}, "
        f"{loss}{surely}"
    )


@dataclass(frozen=True)
class _Swept:
    """Runs of all recipes in one table, with the recipe of each run."""

    runs: RunsTable
    names: tuple[str, ...]
    recipe: Counts  # [R] number of the recipe
    left_out: tuple[tuple[LeftOut, ...], ...]

    def select_runs(self, recipe: int) -> RunsTable:
        return self.runs.select(self.recipe == recipe)


def _screen_tables(tables: Mapping[str, RunsTable], settings: RecipeFit) -> _Swept:
    if len(tables) < 2:
        raise DataError(
            "a comparison needs two recipes: name two tables, or two recipes of one table"
        )
    screened = [
        _apply_to_recipe(name, partial(screen, exclusions=settings.exclusions), table)
        for name, table in tables.items()
    ]
    runs = join_tables([one.runs for one in screened])
    # Recipes differ by design, so their names are hidden from this check; tokenizers must match.
    refuse_mixtures(replace(runs, recipe=np.full(len(runs), "", dtype=np.str_)))
    sizes = [len(one.runs) for one in screened]
    recipe = np.repeat(np.arange(len(tables)), sizes)
    # Trials of different tables may have the same name, so the recipe's number becomes a prefix.
    trial = np.char.add(recipe.astype(np.str_), np.char.add("/", runs.trial))
    left_out = tuple(one.left_out for one in screened)
    return _Swept(replace(runs, trial=trial), tuple(tables), recipe, left_out)


def _apply_to_recipe(name: str, do: Callable[[RunsTable], T], runs: RunsTable) -> T:
    """Call `do` on a recipe's runs, and name the recipe in the message of a DataError."""
    try:
        return do(runs)
    except DataError as why:
        raise DataError(f"{name}: {why}") from None


def _build_regression(swept: _Swept, settings: RecipeFit) -> Regression[Recipes]:
    """Build the regression of log loss on ln A, ln B and ln E per recipe, and common exponents."""
    log_n, _ = centre_logs(swept.runs.parameters)
    log_d, _ = centre_logs(swept.runs.tokens)
    recipes = len(swept.names)
    rows = len(swept.runs)
    designs = np.zeros((3, rows, 3 * recipes + 2))
    for term in range(3):
        designs[term, np.arange(rows), 3 * swept.recipe + term] = 1
    designs[0, :, -2] = -log_n
    designs[1, :, -1] = -log_d
    starts = []
    for alpha, beta, floor in itertools.product(EXPONENTS, EXPONENTS, FLOORS):
        terms = np.stack([np.exp(-alpha * log_n), np.exp(-beta * log_d)], axis=1)
        of_each = [
            fit_above_floor(terms[swept.recipe == q], swept.select_runs(q).loss, floor)
            for q in range(recipes)
        ]
        starts.append([*itertools.chain(*of_each), alpha, beta])
    return Regression(
        swept.runs,
        LogSumExp(designs),
        np.array(starts),
        settings.loss,
        lambda theta: Recipes.model_construct(laws=tuple(_build_laws(theta, swept))),
        check_numbers,
        settings.search,
    )


def _build_laws(theta: Array, swept: _Swept) -> list[Parametric]:
    """Build each recipe's law from theta [..., 3 Q + 2].

    The constants are arrays if theta has leading dimensions.
    """
    _, middle_n = centre_logs(swept.runs.parameters)
    _, middle_d = centre_logs(swept.runs.tokens)
    alpha = theta[..., -2]
    beta = theta[..., -1]
    laws = []
    for q in range(len(swept.names)):
        constants: dict[str, Any] = {
            "A": np.exp(theta[..., 3 * q] + alpha * middle_n),
            "B": np.exp(theta[..., 3 * q + 1] + beta * middle_d),
            "E": np.exp(theta[..., 3 * q + 2]),
            "alpha": alpha,
            "beta": beta,
        }
        laws.append(Parametric.model_construct(**constants))
    return laws


def _stack_differences(laws: Sequence[Parametric], flops: Sequence[float]) -> Array:
    """Return [..., 2 (Q - 1) flops]: each difference in loss, and the log of each multiplier."""
    base, *others = laws
    found = []
    for law, at in itertools.product(others, flops):
        here = base.compute_optimum(at).loss
        there = law.compute_optimum(at).loss
        # At the optimum L = E + k C^-g with g = alpha beta / (alpha + beta), so the multiplier has
        # a closed form.
        power = base.alpha * base.beta / (base.alpha + base.beta)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.maximum(there - base.E, 0) / (here - base.E)
            found += [there - here, -np.log(left) / power]
    return np.stack([np.asarray(column, dtype=np.float64) for column in found], axis=-1)


def _build_differences(
    names: Sequence[str], flops: Sequence[float], values: Array, drawn: Draws
) -> tuple[Difference, ...]:
    found = []
    for place, (name, at) in enumerate(itertools.product(names, flops)):
        loss, log_multiplier = values[2 * place : 2 * place + 2].tolist()
        drawn_loss, drawn_log = drawn.good[:, 2 * place : 2 * place + 2].T
        multiplier = None
        if np.isfinite(log_multiplier):
            multiplier = _estimate(drawn, float(np.exp(log_multiplier)), np.exp(drawn_log))
        difference = _estimate(drawn, loss, drawn_loss)
        found.append(Difference(recipe=name, flops=at, loss=difference, multiplier=multiplier))
    return tuple(found)


def _estimate(drawn: Draws, value: float, values: Array) -> IntervalEstimate:
    """Return the estimate with its interval, or without if too many draws have no fit."""
    try:
        return drawn.estimate(value, values)
    except DataError:
        return IntervalEstimate(value=value)


def _choose_budgets(runs: RunsTable) -> tuple[float, ...]:
    least = float(runs.flops_6nd.min())
    greatest = float(runs.flops_6nd.max())
    return float(np.sqrt(least * greatest)), greatest


def _compute_criterion(fits: Sequence[Fit[Any]]) -> float:
    residuals = np.concatenate([fit.residuals for fit in fits])
    constants = sum(len(fit.theta) for fit in fits)
    return float(2 * len(residuals) * np.log(np.abs(residuals).mean()) + 2 * constants)
