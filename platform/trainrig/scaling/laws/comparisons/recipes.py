"""Recipes compared by their laws: which corpus is worth more compute, and how much.

Two curated corpora are swept alike and fitted together: each recipe has its own E, A and B; the
exponents are one pair for all (`share = "exponents"`) or each recipe's own. The laws' optima at
one compute C then differ by so many nats; and the baseline reaches the recipe's loss at m C, so
that the recipe is worth m times the compute. Draws take each recipe's training runs apart.

All losses must be of the same held-out text under the same tokenizer: that is what makes them
comparable, and the table's tokenizer is checked.

Shapes: R runs of all recipes, Q recipes, P coordinates (3 Q + 2), K draws.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.forms import Array, Constants, Parametric
from trainrig.scaling.laws.law import FittedRange, IntervalEstimate, LeftOut
from trainrig.scaling.laws.regression.bootstrap import Bootstrap, Draws, bootstrap
from trainrig.scaling.laws.regression.minimise import Huber, LogSumExp, Loss, MinimiseSettings
from trainrig.scaling.laws.regression.parametric import (
    ParametricFit,
    fit_above_floor,
    fit_parametric,
)
from trainrig.scaling.laws.regression.regression import Fit, Regression
from trainrig.scaling.laws.runs_table import RunsTable, join_tables
from trainrig.scaling.laws.screening import Exclusions, refuse_mixtures, screen


class RecipeFit(Settings):
    """How recipes are fitted and compared."""

    share: Literal["exponents", "nothing"] = "exponents"
    loss: Loss = Huber()
    exclusions: Exclusions = Exclusions()
    bootstrap: Bootstrap = Bootstrap()
    # FLOPs (6ND) to compare at; none: the middle, in log, and the greatest of all recipes' runs.
    flops: tuple[float, ...] = ()
    search: MinimiseSettings = Field(MinimiseSettings())


class Difference(Settings):
    """A recipe against the baseline, both at their best division of `flops`."""

    recipe: str
    flops: float  # 6ND
    loss: IntervalEstimate  # nats per token that the recipe is above the baseline
    # the baseline needs so many times the compute; None: none will do
    multiplier: IntervalEstimate | None

    @property
    def told_apart(self) -> bool:
        """Does the interval of the difference leave out 0?"""
        return self.loss.bootstrap is not None and not self.loss.bootstrap.contains(0)


class RecipeLaw(Settings):
    """One recipe's part."""

    name: str
    form: Parametric
    rows: int
    rows_left_out: tuple[LeftOut, ...] = ()


class Comparison(Settings):
    """Recipes and what sets them apart. The first is the baseline."""

    share: Literal["exponents", "nothing"]
    recipes: tuple[RecipeLaw, ...]
    differences: tuple[Difference, ...]
    # Akaike's, as in law.json, of shared exponents less that of each recipe's own: below 0 where
    # one pair of exponents is enough.
    criterion_of_sharing: float
    tokenizer: str
    parameters_count: Literal["non-embedding", "total"]
    flops: FittedRange  # of all runs
    draws_failed: int


class Recipes(Constants):
    """The laws of several recipes as the constants of one fit."""

    laws: tuple[Parametric, ...]

    @property
    def constants(self) -> dict[str, float]:
        """`0.E`, `0.A`, … by the recipe's number."""
        return {
            f"{number}.{name}": value
            for number, law in enumerate(self.laws)
            for name, value in law.constants.items()
        }


Counts = NDArray[np.int64]
S = TypeVar("S")
T = TypeVar("T")


def compare(tables: Mapping[str, RunsTable], settings: RecipeFit) -> Comparison:
    """Each table is one recipe's runs, by its name; the first is the baseline.

    Raises DataError for fewer than two, for other tokenizers or counts, and for too few runs.
    """
    swept = _screen_tables(tables, settings)
    apart = [
        _apply_to_recipe(name, fit_parametric, swept.select_runs(q), _build_fit_settings(settings))
        for q, name in enumerate(swept.names)
    ]
    jointly = _build_regression(swept, settings).fit()
    shared = settings.share == "exponents"
    laws = _build_laws(jointly.theta, swept) if shared else [fit.form for fit in apart]
    at = settings.flops or _choose_budgets(swept.runs)

    def redrawn(counts: Counts) -> Array:
        if shared:
            return _stack_differences(_build_laws(jointly.refit_draws(counts), swept), at)
        return _stack_differences(_refit_apart(apart, swept, counts), at)

    drawn = bootstrap(redrawn, swept.runs, settings.bootstrap, strata=swept.recipe)
    return Comparison(
        share=settings.share,
        recipes=tuple(
            RecipeLaw(
                name=name,
                form=_convert_to_floats(law),
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
    """The comparison in words."""
    base, *_ = found.recipes
    exponents = "one pair of exponents for all" if found.share == "exponents" else "each its own"
    yield (
        f"recipes by the parametric law, {exponents} (AIC of sharing "
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
    for each in found.differences:
        yield _describe_difference(each, base.name)
    if found.draws_failed:
        yield f"{found.draws_failed} bootstrap draws have no fit and count in no interval"


def _describe_difference(each: Difference, baseline: str) -> str:
    loss = f"{each.loss.value:+.4f} nats per token {each.loss.bootstrap or ''}".rstrip()
    if each.multiplier is None:
        worth = f"no compute gets {baseline} there"
    else:
        worth = (
            f"worth {each.multiplier.value:.3g}x compute {each.multiplier.bootstrap or ''}".rstrip()
        )
    unsure = "not told apart" if each.loss.bootstrap else "no interval"
    surely = "" if each.told_apart else f"; {unsure}"
    return f"at {each.flops:.3g} FLOPs, {each.recipe} against {baseline}: {worth}, {loss}{surely}"


@dataclass(frozen=True)
class _Swept:
    """The runs of all recipes, and whose each is."""

    runs: RunsTable
    names: tuple[str, ...]
    recipe: Counts  # [R] the recipe's number
    left_out: tuple[tuple[LeftOut, ...], ...]

    def select_runs(self, recipe: int) -> RunsTable:
        return self.runs.select(self.recipe == recipe)


def _screen_tables(tables: Mapping[str, RunsTable], settings: RecipeFit) -> _Swept:
    if len(tables) < 2:
        raise DataError("one recipe compares with nothing: name two tables, or two recipes of one")
    screened = [
        _apply_to_recipe(name, screen, table, settings.exclusions) for name, table in tables.items()
    ]
    runs = join_tables([one.runs for one in screened])
    # A recipe of its own for each is what is compared; a tokenizer of its own is not comparable.
    refuse_mixtures(replace(runs, recipe=np.full(len(runs), "", dtype=np.str_)))
    sizes = [len(one.runs) for one in screened]
    recipe = np.repeat(np.arange(len(tables)), sizes)
    # Trials of two tables may be called the same, and are not.
    trial = np.char.add(recipe.astype(np.str_), np.char.add("/", runs.trial))
    left_out = tuple(one.left_out for one in screened)
    return _Swept(replace(runs, trial=trial), tuple(tables), recipe, left_out)


def _apply_to_recipe(name: str, do: Callable[[RunsTable, S], T], runs: RunsTable, settings: S) -> T:
    """`do` the recipe's runs, and say whose they are if that cannot be."""
    try:
        return do(runs, settings)
    except DataError as why:
        raise DataError(f"{name}: {why}") from None


def _build_fit_settings(settings: RecipeFit) -> ParametricFit:
    return ParametricFit(loss=settings.loss, search=settings.search)


def _build_regression(swept: _Swept, settings: RecipeFit) -> Regression[Recipes]:
    """Log loss on ln A, ln B and ln E of each recipe, then the alpha and the beta of all."""
    log_n, log_d = _centre_logs(swept.runs.parameters), _centre_logs(swept.runs.tokens)
    recipes, rows = len(swept.names), len(swept.runs)
    designs = np.zeros((3, rows, 3 * recipes + 2))
    for term in range(3):
        designs[term, np.arange(rows), 3 * swept.recipe + term] = 1
    designs[0, :, -2], designs[1, :, -1] = -log_n, -log_d
    how, starts = _build_fit_settings(settings), []
    for alpha, beta, floor in itertools.product(how.exponents, how.exponents, how.floors):
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
        settings.search,
    )


def _build_laws(theta: Array, swept: _Swept) -> list[Parametric]:
    """Each recipe's law of theta [..., 3 Q + 2]; constants are arrays where theta is of many."""
    middle = [float(np.log(v).mean()) for v in (swept.runs.parameters, swept.runs.tokens)]
    alpha, beta = theta[..., -2], theta[..., -1]
    laws = []
    for q in range(len(swept.names)):
        constants: dict[str, Any] = {
            "A": np.exp(theta[..., 3 * q] + alpha * middle[0]),
            "B": np.exp(theta[..., 3 * q + 1] + beta * middle[1]),
            "E": np.exp(theta[..., 3 * q + 2]),
            "alpha": alpha,
            "beta": beta,
        }
        laws.append(Parametric.model_construct(**constants))
    return laws


def _refit_apart(
    fits: Sequence[Fit[Parametric]], swept: _Swept, counts: Counts
) -> list[Parametric]:
    return [
        fit.regression.forms(fit.refit_draws(counts[:, swept.recipe == q]))
        for q, fit in enumerate(fits)
    ]


def _stack_differences(laws: Sequence[Parametric], flops: Sequence[float]) -> Array:
    """[..., 2 x Q - 1 x flops]: each difference of loss and the logarithm of its multiplier."""
    base, *others = laws
    found = []
    for law, at in itertools.product(others, flops):
        here, there = base.compute_optimum(at).loss, law.compute_optimum(at).loss
        # At the optimum L = E + k C^-g with g = alpha beta / (alpha + beta), so m is closed.
        power = base.alpha * base.beta / (base.alpha + base.beta)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.maximum(there - base.E, 0) / (here - base.E)
            found += [there - here, -np.log(left) / power]
    return np.stack([np.asarray(each, dtype=np.float64) for each in found], axis=-1)


def _build_differences(
    names: Sequence[str], flops: Sequence[float], values: Array, drawn: Draws
) -> tuple[Difference, ...]:
    found = []
    for place, (name, at) in enumerate(itertools.product(names, flops)):
        loss, multiplier = 2 * place, 2 * place + 1
        reached = bool(np.isfinite(values[multiplier]))
        found.append(
            Difference(
                recipe=name,
                flops=at,
                loss=_estimate(drawn, float(values[loss]), drawn.good[:, loss]),
                multiplier=_estimate(
                    drawn, float(np.exp(values[multiplier])), np.exp(drawn.good[:, multiplier])
                )
                if reached
                else None,
            )
        )
    return tuple(found)


def _estimate(drawn: Draws, value: float, values: Array) -> IntervalEstimate:
    """With its interval, or without where too many draws have no fit."""
    try:
        return drawn.estimate(value, values)
    except DataError:
        return IntervalEstimate(value=value)


def _choose_budgets(runs: RunsTable) -> tuple[float, ...]:
    least, greatest = float(runs.flops_6nd.min()), float(runs.flops_6nd.max())
    return float(np.sqrt(least * greatest)), greatest


def _compute_criterion(fits: Sequence[Fit[Any]]) -> float:
    residuals = np.concatenate([fit.residuals for fit in fits])
    constants = sum(len(fit.theta) for fit in fits)
    return float(2 * len(residuals) * np.log(np.abs(residuals).mean()) + 2 * constants)


def _centre_logs(values: Array) -> Array:
    return np.asarray(np.log(values) - np.log(values).mean())


def _convert_to_floats(law: Parametric) -> Parametric:
    """The law with constants that are floats, and checked."""
    constants: dict[str, Any] = {name: float(value) for name, value in law.constants.items()}
    return Parametric(**constants)
