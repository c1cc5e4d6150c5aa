"""Objectives compared on equal compute, by the laws of their own sweeps.

Losses of different objectives are of different targets (all tokens, hidden ones, spans with their
sentinels), so no loss is held against another's. What does compare, at one compute that is counted
exactly for each: which size and how many tokens of text are best, how both grow, how much compute
halves what can be learnt, and what tasks score that models of both were asked.

6ND says little here: a token that an encoder reads passes through half of an encoder-decoder, and
a row of denoised text is longer than the text. So compute is that of the tables' own counts: a
token's operations at the sizes that were swept, by straight lines in logarithms between.

Shapes: R runs, M sizes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from trainrig.config import Settings
from trainrig.errors import DataError
from trainrig.flops import count_flops_6nd
from trainrig.scaling.laws.figure_format import format_count
from trainrig.scaling.laws.fit import Fitted
from trainrig.scaling.laws.forms import Array, Form, Parametric
from trainrig.scaling.laws.law import Interval, Law
from trainrig.scaling.laws.objective_names import name_objective
from trainrig.scaling.laws.runs_table import RunsTable

SIZES = 400  # that an optimum is looked for among
COMPUTES = 16  # that curves are drawn at
FEWEST_INSIDE = 3  # with the best within the sweep's sizes, to say from how it grows


class BestDivision(Settings):
    """The best division of a compute, among sizes within the sweep's."""

    flops: float  # counted exactly
    parameters: float
    tokens: float  # of text
    loss: float  # the objective's own, nats per target
    parameters_interval: Interval | None = None
    at_an_end: bool = False  # the best lies at the smallest or the largest size of the sweep


class ObjectiveLaw(Settings):
    """One objective's sweep and its law."""

    name: str
    objective: str  # as `objective_names` writes it
    runs: int  # fitted
    form: Parametric
    flops_of_six_n_d: tuple[float, float]  # exact compute over 6ND, least and greatest of its runs
    optima: tuple[BestDivision, ...]
    # How N* and D* grow with exact compute, over the part of the range that all sweeps share where
    # the best lies within the sweep's sizes; over all of it, where that is hardly anywhere.
    parameters_exponent: float
    tokens_exponent: float
    # Times the compute that halves the loss above the law's least.
    compute_to_halve: float
    compute_to_halve_interval: Interval | None = None


class ExpectedScore(Settings):
    """What a task is expected to score after the best run of a compute."""

    task: str
    objective: str
    flops: float  # counted exactly
    flops_6nd: float  # of the best size and tokens at it, which task laws are of
    score: float
    interval: Interval | None = None


class ObjectiveComparison(Settings):
    """Objectives side by side."""

    tokenizer: str
    flops: tuple[float, ...]  # compared at
    objectives: tuple[ObjectiveLaw, ...]
    tasks: tuple[ExpectedScore, ...] = ()


def compare_objectives(fits: Sequence[Fitted]) -> ObjectiveComparison:
    """`fits`: of each objective's runs, by the parametric law.

    Raises DataError for other tokenizers or counts of parameters, and where the sweeps share no
    compute.
    """
    laws = [each.law for each in fits]
    if len(tokenizers := {law.tokenizer for law in laws}) > 1:
        raise DataError(
            f"the sweeps come from {len(tokenizers)} tokenizers; a token of one is not that of "
            "another: sweep all objectives on the same tokens"
        )
    if len({law.parameters_count for law in laws}) > 1:
        raise DataError("one sweep counts embeddings among parameters, another does not")
    least = max(float(each.runs.flops.min()) for each in fits)
    greatest = min(float(each.runs.flops.max()) for each in fits)
    if not least < greatest:
        spans = "; ".join(
            f"{each.law.name} {each.runs.flops.min():.3g} to {each.runs.flops.max():.3g}"
            for each in fits
        )
        raise DataError(f"the sweeps share no compute to compare at, in FLOPs: {spans}")
    at = (float(np.sqrt(least * greatest)), greatest)
    compared = tuple(_build_law(each, least, at) for each in fits)
    return ObjectiveComparison(
        tokenizer=tokenizers.pop(),
        flops=at,
        objectives=compared,
        tasks=tuple(_predict_scores(laws, [each.optima[-1] for each in compared])),
    )


def _build_law(fitted: Fitted, least: float, at: tuple[float, ...]) -> ObjectiveLaw:
    law, runs = fitted.law, fitted.runs
    form = law.form
    assert isinstance(form, Parametric)
    optima = tuple(find_best_division(form, runs, flops, law) for flops in at)
    growth = [
        find_best_division(form, runs, flops) for flops in np.geomspace(least, at[-1], COMPUTES)
    ]
    inside = [each for each in growth if not each.at_an_end]  # elsewhere the sizes decide, no law
    growth = inside if len(inside) >= FEWEST_INSIDE else growth
    computes = np.log([each.flops for each in growth])
    slopes = [
        float(np.polyfit(computes, np.log([getattr(each, name) for each in growth]), 1)[0])
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
    """What is best at `flops`, counted as `runs` count; with an interval by the draws of `law`."""
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
    """[M] operations of training on a token of text, of models of `parameters` [M]; where they are
    others from run to run of a size, the mean over its tokens."""
    sizes, which = np.unique(runs.parameters, return_inverse=True)
    each = np.bincount(which, runs.flops) / np.bincount(which, runs.tokens)
    return np.exp(np.interp(np.log(parameters), np.log(sizes), np.log(each)))


def _compute_to_halve(form: Form) -> float:
    """At L = E + k C^-g with g = alpha beta / (alpha + beta), by 6ND."""
    assert isinstance(form, Parametric)
    return float(2 ** (1 / form.alpha + 1 / form.beta))


def _predict_scores(laws: Sequence[Law], optima: Sequence[BestDivision]) -> Iterator[ExpectedScore]:
    """Of the tasks that all were asked and have a law of, at the best division of each."""
    shared = set.intersection(*({each.task for each in law.tasks} for law in laws))
    for task in sorted(shared):
        for law, best in zip(laws, optima, strict=True):
            of = next(each for each in law.tasks if each.task == task)
            by_six = count_flops_6nd(best.parameters, best.tokens)
            yield ExpectedScore(
                task=task,
                objective=law.name,
                flops=best.flops,
                flops_6nd=by_six,
                score=float(np.asarray(of.form.compute_score([by_six]))[0]),
                interval=of.compute_interval(by_six),
            )


def describe_objectives(found: ObjectiveComparison) -> Iterator[str]:
    """The comparison in words."""
    yield (
        "objectives on equal compute, each operation counted, by the parametric law of each; "
        f"tokenizer {found.tokenizer}. {NOT_COMPARED}"
    )
    for each in found.objectives:
        f, (low, high) = each.form, each.flops_of_six_n_d
        halve = f"{each.compute_to_halve:.3g}x {each.compute_to_halve_interval or ''}".rstrip()
        yield (
            f"{each.name}: {name_objective(each.objective)}, {each.runs} runs, {low:.2f} to "
            f"{high:.2f} of 6ND; E {f.E:.4g}, alpha {f.alpha:.3g}, beta {f.beta:.3g}; N* ~ "
            f"C^{each.parameters_exponent:.2f}, D* ~ C^{each.tokens_exponent:.2f}; {halve} the "
            "compute halves what is above E"
        )
    for number, flops in enumerate(found.flops):
        for each in found.objectives:
            best = each.optima[number]
            end = ", at an end of its sizes" if best.at_an_end else ""
            interval = f" {best.parameters_interval}" if best.parameters_interval else ""
            yield (
                f"at {flops:.3g} FLOPs, {each.name}: {format_count(best.parameters)} "
                f"parameters{interval} on {format_count(best.tokens)} tokens{end}; own loss "
                f"{best.loss:.4f}"
            )
    for score in found.tasks:
        yield (
            f"at {score.flops:.3g} FLOPs ({score.flops_6nd:.3g} by 6ND), {score.objective}: "
            f"{score.task} scores {score.score:.3f} {score.interval or ''}".rstrip()
        )


NOT_COMPARED = (
    "Comparable are sizes, tokens, their growth, the compute that halves what is above E, and "
    "tasks that all were asked; losses are of other targets in each, and are not"
)
