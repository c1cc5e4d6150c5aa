"""Prediction, by a law, of the loss of a model of a given size after a number of tokens."""

import math
from collections.abc import Callable, Iterator

from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.flops import count_flops_6nd
from trainrig.scaling.laws.law import Interval, Law
from trainrig.scaling.laws.law_formats import format_count, format_flops, format_loss
from trainrig.scaling.laws.law_forms import DataConstrained, Form
from trainrig.scaling.plan import allocation, plan_schema

Positive = Field(gt=0, allow_inf_nan=False)


class TaskPrediction(Settings):
    """Predicted score of a benchmark task."""

    task: str
    score: float
    interval: Interval | None  # interval of the law's score, without the noise of a single run
    loss: float  # nats per byte of the correct answers
    chance: float  # score of random guessing


class LossPrediction(Settings):
    """Contents of `trainrig predict --json`."""

    law: str
    law_source: str
    form: str  # form of the law itself
    shares: dict[str, float]  # share of each form in the loss
    parameters: float = Positive  # N, as the law counts parameters
    parameters_count: str
    tokens: float = Positive  # D, repeats included
    unique_tokens: float | None  # None: each token is seen once
    epochs: float
    tokens_per_parameter: float
    flops_6nd: float
    loss: float  # nats per token at the end of a run whose learning rate has decayed
    loss_interval: Interval | None  # interval of the loss of a single run
    no_interval: str  # the reason if there is no interval
    loss_if_new: float | None  # loss if no token were seen twice
    # predictions for the law's tasks, with compute counted as 6ND
    tasks: tuple[TaskPrediction, ...]
    warnings: tuple[str, ...]


def predict_loss(
    law: Law,
    parameters: float,
    tokens: float,
    epochs: float | None = None,
    unique_tokens: float | None = None,
) -> LossPrediction:
    """Predict the loss of N parameters after D tokens, with its interval and warnings.

    The tokens are seen `epochs` times, or consist of `unique_tokens` unique ones; give one of the
    two at most. Raises ConfigError for impossible numbers, and for repeats under a law that cannot
    account for them.
    """
    _check(parameters, tokens, epochs, unique_tokens)
    if epochs is not None:
        unique_tokens = tokens / epochs
    if unique_tokens is not None and unique_tokens >= tokens:
        unique_tokens = None
    form = law.form if unique_tokens is None else _to_data_constrained(law.form)

    predict = allocation.make_loss_quantity(parameters, tokens, unique_tokens)
    found = law.predict_interval(predict, parameters, tokens)
    expected = law.combine(predict)
    return LossPrediction(
        law=law.name,
        law_source=law.source,
        form=form.kind,
        shares=_list_shares(law, form, predict),
        parameters=parameters,
        parameters_count=law.parameters_count,
        tokens=tokens,
        unique_tokens=unique_tokens,
        epochs=1.0 if unique_tokens is None else tokens / unique_tokens,
        tokens_per_parameter=tokens / parameters,
        flops_6nd=count_flops_6nd(parameters, tokens),
        loss=expected,
        loss_interval=found,
        no_interval=law.no_interval,
        loss_if_new=None
        if unique_tokens is None
        else law.combine(allocation.make_loss_quantity(parameters, tokens)),
        tasks=tuple(_predict_tasks(law, count_flops_6nd(parameters, tokens))),
        warnings=tuple(
            _find_warnings(law, form, parameters, tokens, unique_tokens, expected, found)
        ),
    )


def _list_shares(law: Law, form: Form, predict: Callable[[Form], float]) -> dict[str, float]:
    """Return the share of each form that can make the prediction."""
    known = [member for member in law.members if not math.isnan(predict(member.form))]
    whole = law.weight + sum(member.weight for member in known)
    shares: dict[str, float] = {form.kind: law.weight / whole}
    return shares | {member.form.kind: member.weight / whole for member in known}


def describe_prediction(found: LossPrediction) -> Iterator[str]:
    """Yield the lines that describe a prediction, the loss first."""
    uncertainty = f" (no interval: {found.no_interval})"
    if found.loss_interval is not None:
        uncertainty = f" {found.loss_interval}, {found.loss_interval.level:.0%} for a single run"
    yield f"loss {format_loss(found.loss)} nats per token{uncertainty}"
    yield (
        f"  {format_count(found.parameters)} parameters ({found.parameters_count}), "
        f"{format_count(found.tokens)} tokens, D/N {found.tokens_per_parameter:.3g}, "
        f"{format_flops(found.flops_6nd)} FLOPs by 6ND"
    )
    if found.unique_tokens is not None and found.loss_if_new is not None:
        yield (
            f"  {found.epochs:.3g} epochs of {format_count(found.unique_tokens)} tokens; with "
            f"new tokens the loss would be {format_loss(found.loss_if_new)}"
        )
    for task in found.tasks:
        interval = "(no interval)" if task.interval is None else f"{task.interval}"
        yield (
            f"  {task.task} {task.score:.3f} {interval}, chance {task.chance:.3g}; right answers "
            f"{task.loss:.4g} nats per byte"
        )
    by = ", ".join(f"{share:.0%} {name}" for name, share in found.shares.items())
    named = found.form if len(found.shares) == 1 else by
    yield f"  by {found.law}, {named}: {found.law_source or 'no source named'}"
    for warning in found.warnings:
        yield f"! {warning}"


def _predict_tasks(law: Law, flops: float) -> Iterator[TaskPrediction]:
    for task in law.tasks:
        yield TaskPrediction(
            task=task.task,
            score=float(task.form.compute_score(flops)),
            interval=task.compute_interval(flops),
            loss=float(task.form.compute_loss(flops)),
            chance=task.form.chance,
        )


def _check(
    parameters: float, tokens: float, epochs: float | None, unique_tokens: float | None
) -> None:
    for option, value in (
        ("params", parameters),
        ("tokens", tokens),
        ("epochs", epochs),
        ("unique-tokens", unique_tokens),
    ):
        if value is not None and value <= 0:
            raise ConfigError(f"predict: --{option} {value:g}: give a number above 0")
    if epochs is not None and unique_tokens is not None:
        raise ConfigError(
            "predict: --epochs and --unique-tokens mean the same; give only one of them"
        )
    if epochs is not None and epochs < 1:
        raise ConfigError(
            f"predict: --epochs {epochs:g}: each token is seen at least once; give 1 or more"
        )


def _to_data_constrained(form: Form) -> DataConstrained:
    try:
        return allocation.to_data_constrained(form)
    except ConfigError:
        raise ConfigError(
            f"predict: a {form.kind} law cannot tell repeated tokens from new ones; leave out "
            "--epochs and --unique-tokens, or use a Parametric, OverTraining or DataConstrained law"
        ) from None


def _find_warnings(
    law: Law,
    form: Form,
    parameters: float,
    tokens: float,
    unique_tokens: float | None,
    expected: float,
    found: Interval | None,
) -> Iterator[str]:
    if law.assumed:
        yield f"Assumed: {law.assumed}."
    yield from plan_schema.find_extrapolations(law, parameters, tokens)
    if unique_tokens is not None and not isinstance(law.form, DataConstrained):
        yield (
            f"The law '{law.name}' was fitted without repeats; their value decays here as "
            "Muennighoff et al. (arXiv:2305.16264) found."
        )
    if unique_tokens is not None and tokens / unique_tokens > plan_schema.MOST_EPOCHS:
        yield (
            f"Extrapolated: {tokens / unique_tokens:.3g} epochs; published runs saw their tokens "
            f"{plan_schema.MOST_EPOCHS:g} times at most."
        )
    if unique_tokens is None and isinstance(form, DataConstrained):
        yield "Every token is assumed to be new; give --epochs or --unique-tokens if they repeat."
    if found is not None and not found.contains(expected):
        yield "The interval does not contain the loss, so the law is not reliable at this point."
