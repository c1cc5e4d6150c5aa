"""Comparison of training objectives at equal compute, by the scaling law of each objective's sweep.

Losses of different objectives are of different targets (all tokens, masked tokens, spans with
sentinels), so they are not comparable with one another. At an equal, exactly counted compute, these
are comparable: the best size and number of text tokens, how both grow, how much compute halves the
reducible loss, and scores on tasks that models of all objectives were evaluated on.

6ND is a poor count here: a token that an encoder reads passes through half of an encoder-decoder,
and a row of denoised text is longer than the text. So compute is taken from the tables' exact
counts: the operations per token at the trained sizes, interpolated linearly in logarithms between
them.

Shapes: R runs, M sizes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from trainrig.config import Settings
from trainrig.errors import DataError
from trainrig.flops import count_flops_6nd
from trainrig.scaling.fit.law_fit import Fitted
from trainrig.scaling.laws.law import Interval, Law
from trainrig.scaling.laws.law_formats import format_count, name_objective
from trainrig.scaling.laws.law_forms import Array, Form, Parametric
from trainrig.scaling.laws.runs_table import RunsTable

SIZES = 400  # sizes among which the optimum is searched
COMPUTES = 16  # points of a curve over compute
# Fewest computes whose best size is inside the sweep's range, to fit how it grows.
FEWEST_INSIDE = 3


class BestDivision(Settings):
    """Best split of a compute budget into size and tokens, among sizes in the sweep's range."""

    flops: float  # counted exactly
    parameters: float
    tokens: float  # tokens of text
    loss: float  # the objective's own loss, nats per target
    parameters_interval: Interval | None = None
    at_an_end: bool = False  # true if the best is the smallest or the largest size of the sweep


class ObjectiveLaw(Settings):
    """Scaling law of one objective's sweep."""

    name: str
    objective: str  # the objective, as `serialise_objective` writes it
    runs: int  # number of fitted runs
    form: Parametric
    # Least and greatest ratio of exact compute to 6ND among the runs.
    flops_of_six_n_d: tuple[float, float]
    optima: tuple[BestDivision, ...]
    # Exponents of N* and D* over exact compute, in the part of the shared range where the best size
    # is inside the sweep's sizes, or in the whole range if that part is too small.
    parameters_exponent: float
    tokens_exponent: float
    # Factor of compute that halves the reducible loss.
    compute_to_halve: float
    compute_to_halve_interval: Interval | None = None


class ExpectedScore(Settings):
    """Expected score of a task after the best run at a given compute."""

    task: str
    objective: str
    flops: float  # counted exactly
    flops_6nd: float  # 6ND of the best size and tokens, which the task laws depend on
    score: float
    interval: Interval | None = None


class ObjectiveComparison(Settings):
    """Comparison of several objectives."""

    tokenizer: str
    flops: tuple[float, ...]  # exact compute of each comparison
    objectives: tuple[ObjectiveLaw, ...]
    tasks: tuple[ExpectedScore, ...] = ()


def compare_objectives(fits: Sequence[Fitted]) -> ObjectiveComparison:
    """Compare the objectives of `fits`, each a parametric law of one objective's runs.

    Raises DataError if the tokenizers or the counts of parameters differ, or if the sweeps have no
    range of compute in common.
    """
    laws = [fitted.law for fitted in fits]
    if len(tokenizers := {law.tokenizer for law in laws}) > 1:
        raise DataError(
            f"the sweeps use {len(tokenizers)} tokenizers, whose tokens are not comparable: sweep "
            "all objectives on the same tokens"
        )
    if len({law.parameters_count for law in laws}) > 1:
        raise DataError(
            "some sweeps count embeddings among the parameters, others do not: fit all with the "
            "same --counts"
        )
    least = max(float(fitted.runs.flops.min()) for fitted in fits)
    greatest = min(float(fitted.runs.flops.max()) for fitted in fits)
    if not least < greatest:
        spans = "; ".join(
            f"{fitted.law.name} {fitted.runs.flops.min():.3g} to {fitted.runs.flops.max():.3g}"
            for fitted in fits
        )
        raise DataError(f"the sweeps share no compute to compare at, in FLOPs: {spans}")
    at = (float(np.sqrt(least * greatest)), greatest)
    compared = tuple(_build_law(fitted, least, at) for fitted in fits)
    return ObjectiveComparison(
        tokenizer=tokenizers.pop(),
        flops=at,
        objectives=compared,
        tasks=tuple(_predict_scores(laws, [objective.optima[-1] for objective in compared])),
    )


def _build_law(fitted: Fitted, least: float, at: tuple[float, ...]) -> ObjectiveLaw:
    law = fitted.law
    runs = fitted.runs
    form = law.form
    assert isinstance(form, Parametric)
    optima = tuple(find_best_division(form, runs, flops, law) for flops in at)
    growth = [
        find_best_division(form, runs, flops) for flops in np.geomspace(least, at[-1], COMPUTES)
    ]
    # At an end, the range of sizes limits the best size, not the law.
    inside = [division for division in growth if not division.at_an_end]
    growth = inside if len(inside) >= FEWEST_INSIDE else growth
    computes = np.log([division.flops for division in growth])
    slopes = [
        float(np.polyfit(computes, np.log([getattr(division, name) for division in growth]), 1)[0])
        for name in ("parameters", "tokens")
    ]
    of_six = runs.flops / runs.flops_6nd
    return ObjectiveLaw(
        name=law.name,
        objective=str(runs.objective[0]),
        runs=len(runs),
        form=form,
        flops_of_six_n_d=(float(of_six.min()), float(of_six.max())),
        optima=optima,
        parameters_exponent=slopes[0],
        tokens_exponent=slopes[1],
        compute_to_halve=_compute_to_halve(form),
        compute_to_halve_interval=law.compute_interval(_compute_to_halve),
    )


def find_best_division(
    form: Form, runs: RunsTable, flops: float, law: Law | None = None
) -> BestDivision:
    """Find the best size and tokens at `flops`, which are counted as in `runs`.

    The size has an interval if `law`, with its bootstrap draws, is given.
    """
    sizes = np.geomspace(runs.parameters.min(), runs.parameters.max(), SIZES)
    tokens = flops / interpolate_token_flops(runs, sizes)

    def best(of: Form) -> int:
        return int(np.argmin(of.compute_loss(sizes, tokens)))

    place = best(form)
    found = (
        law.compute_interval(lambda drawn: float(sizes[best(drawn)])) if law is not None else None
    )
    return BestDivision(
        flops=flops,
        parameters=float(sizes[place]),
        tokens=float(tokens[place]),
        loss=float(form.compute_loss(sizes[place], tokens[place])),
        parameters_interval=found,
        at_an_end=place in (0, SIZES - 1),
    )


def interpolate_token_flops(runs: RunsTable, parameters: Array) -> Array:
    """Return the training FLOPs [M] per token of text, for models of `parameters` [M].

    If runs of one size differ in FLOPs per token, the mean over their tokens is taken.
    """
    sizes, which = np.unique(runs.parameters, return_inverse=True)
    token_flops = np.bincount(which, runs.flops) / np.bincount(which, runs.tokens)
    return np.exp(np.interp(np.log(parameters), np.log(sizes), np.log(token_flops)))


def _compute_to_halve(form: Form) -> float:
    """Return the factor of 6ND that halves the reducible loss of a parametric law.

    At the optimum, L = E + k C^-g with g = alpha beta / (alpha + beta).
    """
    assert isinstance(form, Parametric)
    return float(2 ** (1 / form.alpha + 1 / form.beta))


def _predict_scores(laws: Sequence[Law], optima: Sequence[BestDivision]) -> Iterator[ExpectedScore]:
    """Yield each objective's expected score at its optimum, on each task that all laws have."""
    shared = set.intersection(*({task_law.task for task_law in law.tasks} for law in laws))
    for task in sorted(shared):
        for law, best in zip(laws, optima, strict=True):
            task_law = next(other for other in law.tasks if other.task == task)
            by_six = count_flops_6nd(best.parameters, best.tokens)
            yield ExpectedScore(
                task=task,
                objective=law.name,
                flops=best.flops,
                flops_6nd=by_six,
                score=float(np.asarray(task_law.form.compute_score([by_six]))[0]),
                interval=task_law.compute_interval(by_six),
            )


def describe_objectives(found: ObjectiveComparison) -> Iterator[str]:
    """Yield the lines of a text summary of the comparison."""
    yield (
        "objectives at equal compute, counted exactly, by a parametric law for each; tokenizer "
        f"{found.tokenizer}. {NOT_COMPARED}"
    )
    for law in found.objectives:
        f = law.form
        low, high = law.flops_of_six_n_d
        halve = f"{law.compute_to_halve:.3g}x {law.compute_to_halve_interval or ''}".rstrip()
        yield (
            f"{law.name}: {name_objective(law.objective)}, {law.runs} runs, compute {low:.2f} to "
            f"{high:.2f} of 6ND; E {f.E:.4g}, alpha {f.alpha:.3g}, beta {f.beta:.3g}; N* ~ "
            f"C^{law.parameters_exponent:.2f}, D* ~ C^{law.tokens_exponent:.2f}; {halve} the "
            "compute halves the loss above E"
        )
    for number, flops in enumerate(found.flops):
        for law in found.objectives:
            best = law.optima[number]
            end = ", at an end of the swept sizes" if best.at_an_end else ""
            interval = f" {best.parameters_interval}" if best.parameters_interval else ""
            yield (
                f"at {flops:.3g} FLOPs, {law.name}: {format_count(best.parameters)} "
                f"parameters{interval} on {format_count(best.tokens)} tokens{end}; own loss "
                f"{best.loss:.4f}"
            )
    for score in found.tasks:
        yield (
            f"at {score.flops:.3g} FLOPs ({score.flops_6nd:.3g} by 6ND), {score.objective}: "
            f"{score.task} scores {score.score:.3f} {score.interval or ''}".rstrip()
        )


NOT_COMPARED = (
    "Sizes, tokens, their growth, the compute that halves the loss above E, and scores on shared "
    "tasks are comparable. Losses are not, because the targets differ"
)
