"""Schemas of a plan and of the request for one, and warnings to read before relying on a plan.

A request gives one quantity and the conditions of the run. A plan has the size, tokens, predicted
loss, recipe, placement and cost of the run.
"""

import json
import math
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from trainrig import storage
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.estimate.cost_estimate import Assumptions, Cost, Saving
from trainrig.estimate.fitting_layouts import MemoryRow
from trainrig.flops import count_flops_6nd
from trainrig.hardware import Compute
from trainrig.models import Model
from trainrig.optim import AdamW, Optimizer
from trainrig.parallel.layout import Layout
from trainrig.parallel.recompute import Recompute
from trainrig.scaling.batch_rate_rules import DeepSeek, Rule
from trainrig.scaling.laws.law import FittedRange, Interval, Law
from trainrig.scaling.laws.law_formats import format_count, format_loss, format_usd

Target = Literal["flops", "gpu_days", "budget_usd", "parameters", "tokens"]


class Size(Settings):
    """Size of the model, and the number of tokens to train it on.

    The law's draws are its fits to bootstrap samples of the fitted runs.
    """

    parameters: float  # N; `ScalingPlan.parameters_count` says which parameters it counts
    tokens: float  # D, repeats included
    parameters_interval: Interval | None  # interval of the best N under the law's draws
    tokens_interval: Interval | None  # interval of the best D under the law's draws
    tokens_per_parameter: float
    non_embedding: int  # exact number of parameters outside of the embedding
    embedding: int  # exact number of parameters of the embedding
    flops: float  # exact number of operations of training
    flops_6nd: float  # operations of training, counted as 6ND

    @property
    def total(self) -> int:
        """Number of parameters, embedding included."""
        return self.non_embedding + self.embedding


class PredictedLoss(Settings):
    """Loss that the law predicts for a run that ends after a number of tokens.

    `low` and `high` bound it at the level of `ScalingPlan.loss_interval`.
    """

    tokens: float
    loss: float  # nats per token
    low: float | None = None
    high: float | None = None


class TokenBudget(Settings):
    """Unique tokens of a run, and the value of repeating them."""

    unique_tokens: float
    epochs: float
    worth: float  # number of new tokens that would train the model as well as all epochs do
    loss_if_new: float  # loss if no token were seen twice, in nats per token
    wall: float  # upper bound of `worth`, whatever the number of epochs
    fading: float  # R_D*: repeats after which a token has lost 1 - 1/e of its value


class Service(Settings):
    """Cost of serving the model.

    A smaller model that is trained longer costs less to serve.
    """

    tokens_served: float
    best_trained: tuple[float, float]  # N and D that would be best if nothing were served
    training_factor: float  # training compute / the training compute of `best_trained`
    saved: float  # share of the training and serving compute of `best_trained` that is saved


class Recipe(Settings):
    """Training settings of a plan."""

    rule: Rule  # rule that gave the batch size and the learning rate
    sequence_length: int
    global_batch: int  # sequences of a step, over all devices
    micro_batch: int
    steps: int
    rate: float  # peak learning rate
    optimizer: Optimizer = AdamW()  # `rate` replaces its learning rate

    @property
    def batch_tokens(self) -> int:
        """Tokens of a global batch."""
        return self.global_batch * self.sequence_length


class Placement(Settings):
    """Layout of a planned model on its devices, and whether it fits."""

    fits: bool  # false: the other fields describe the layout that comes nearest
    parallel: Layout
    deterministic: bool
    recompute: Recompute | None
    room: float  # bytes of memory of a device
    memory: float  # bytes of memory that the layout needs on each device
    # number of devices on which it would fit; None: it fits, or no number is enough
    devices_needed: int | None
    table: tuple[MemoryRow, ...]


class ScalingPlan(Settings):
    """Contents of `plan.json`."""

    format: Literal[1] = 1
    law: str  # name of the law
    law_source: str
    parameters_count: Literal["non-embedding", "total"]  # parameters that N counts
    target: Target
    asked: float  # value of the target, in the unit that `target` names
    size: Size
    loss: float  # predicted loss at the end, in nats per token
    loss_interval: Interval | None  # None: `no_interval` gives the reason
    no_interval: str = "the law has no draws"
    curve: tuple[PredictedLoss, ...]  # predicted losses of runs that end earlier
    objective: str = ""  # objective of the run, as the law names it; "": next-token prediction
    model: Model
    recipe: Recipe
    data: TokenBudget | None = None  # None: the number of available tokens was not given
    service: Service | None = None  # None: no tokens to serve were given
    placement: Placement
    cost: Cost
    saving: Saving
    assumptions: Assumptions
    # Why the plan is no advice, as a headline: far outside of the law's runs. Empty if it is.
    doubt: str = ""
    warnings: tuple[str, ...] = Field(())


def write_plan(path: str, plan: ScalingPlan) -> None:
    """Write `plan` to `path`; equal plans give identical bytes."""
    data = json.dumps(plan.model_dump(mode="json"), indent=1, allow_nan=False)
    storage.write(path, data.encode() + b"\n")


TARGETS: tuple[Target, ...] = ("flops", "gpu_days", "budget_usd", "parameters", "tokens")

Positive = Field(default=None, gt=0, allow_inf_nan=False)


class PlanRequest(Settings):
    """Request for a plan; exactly one of the first five fields is set."""

    flops: float | None = Positive  # operations of training, counted as 6ND
    gpu_days: float | None = Positive  # days of one `device`
    budget_usd: float | None = Positive  # at on-demand prices
    parameters: float | None = Positive  # number of parameters, as the law counts them
    tokens: float | None = Positive  # tokens to train on
    tokens_available: float | None = Positive  # number of unique tokens; None: any
    # tokens that the model is expected to process in use
    tokens_served: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    # None: the device of `instance`, else the usual one, else the first of the table
    device: str | None = None
    # None: all devices of one machine, or the least number that holds the model and finishes within
    # MOST_DAYS.
    devices: int | None = Field(default=None, ge=1)
    # machine to rent, such as p5.48xlarge; None: the cheapest with that device
    instance: str | None = None
    compute: Compute = "bfloat16"  # number format to compute in
    vocabulary: int = Field(default=32_768, ge=2)  # vocabulary entries
    sequence_length: int = Field(default=2048, ge=1)  # tokens of a sequence
    rule: Rule = DeepSeek()  # rule for the batch size and the learning rate
    optimizer: Optimizer = AdamW()  # the rule replaces its learning rate
    assumptions: Assumptions = Assumptions()  # utilisation, power and faults
    # Whether to plan far outside of the law's runs, where nothing supports the plan. Without it, a
    # plan beyond 5 times their range of N, of D/N or of compute is refused.
    extrapolate: bool = False

    @model_validator(mode="after")
    def _check_request(self) -> Self:
        self.check_one_target()
        return self

    def check_one_target(self) -> None:
        """Raise ValueError unless exactly one of the first five fields is set."""
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            found = "none of them" if not given else " and ".join(given)
            raise ValueError(f"give exactly one of {', '.join(TARGETS)}; found {found}")

    @property
    def target(self) -> tuple[Target, float]:
        """The target quantity that is set, and its value."""
        name = next(name for name in TARGETS if getattr(self, name) is not None)
        return name, float(getattr(self, name))


# Largest relative difference from the request, of size or cost, that causes no warning.
NEAR = 0.05


def find_extrapolations(law: Law, parameters: float, tokens: float) -> Iterator[str]:
    """Yield one line for each quantity outside of the range of the law's runs, with the factor."""
    ranges = law.ranges
    if ranges is None:
        yield f"The law '{law.name}' does not record the runs that it was fitted to."
        return
    for quantity, value, span in (
        ("compute by 6ND", count_flops_6nd(parameters, tokens), ranges.flops),
        ("parameters", parameters, ranges.parameters),
        ("tokens", tokens, ranges.tokens),
        ("tokens a parameter", tokens / parameters, ranges.tokens_per_parameter),
    ):
        yield from _describe_extrapolation(quantity, value, span)


# Factor beyond the law's runs from which a plan needs `--extrapolate`.
FAR = 5.0
# Most epochs of the published runs on which the decay of repeats was fitted.
MOST_EPOCHS = 100.0
REFUSED_EPOCHS = 1_000.0  # a plan for more is refused


class PredictedSize(Settings):
    """Size of a planned run and the loss that the law predicts for it."""

    parameters: float  # N as the law counts it
    tokens: float
    loss: float  # nats per token


def describe_doubt(law: Law, size: PredictedSize, vocabulary: int, data: TokenBudget | None) -> str:
    """Return why this plan is no advice, or an empty string if it is.

    Raises ConfigError for more than REFUSED_EPOCHS epochs.
    """
    if data and data.epochs > REFUSED_EPOCHS:
        raise ConfigError(
            f"this budget would repeat the {format_count(data.unique_tokens)} tokens "
            f"{data.epochs:,.0f} times, and no number of epochs is worth more than "
            f"{format_count(data.wall)} new tokens; lower the budget, or tokenize more documents"
        )
    if data and data.epochs > MOST_EPOCHS:
        return (
            f"Not advice: the run repeats its tokens {data.epochs:,.0f} times, but published runs "
            f"did so {MOST_EPOCHS:g} times at most. Lower the budget, or tokenize more documents."
        )
    why = describe_unsupported(law, size, vocabulary)
    return f"Not advice: {why}. Plan closer to the runs of the law." if why else ""


def describe_unsupported(law: Law, size: PredictedSize, vocabulary: int) -> str:
    """Return why nothing supports a plan of this size, or an empty string if something does.

    It lies beyond FAR times the range of the law's runs, or its loss is no better than that of a
    model that gives every token of the vocabulary the same probability.
    """
    blind = math.log(vocabulary)
    if size.loss >= blind:
        return (
            f"the predicted loss of {format_count(size.parameters)} parameters after "
            f"{format_count(size.tokens)} tokens is {format_loss(size.loss)} nats per token, no "
            f"better than a blind guess among {vocabulary:,} tokens ({format_loss(blind)})"
        )
    if law.ranges is None:
        return ""
    spans = (
        ("parameters", size.parameters, law.ranges.parameters),
        ("tokens per parameter", size.tokens / size.parameters, law.ranges.tokens_per_parameter),
        ("FLOPs", count_flops_6nd(size.parameters, size.tokens), law.ranges.flops),
    )
    for what, value, span in spans:  # FLOPs from 1e15 are written as 2.07e+21
        if value > FAR * span.greatest or value < span.least / FAR:
            return (
                f"the law was fitted to runs of {format_count(span.least)} to "
                f"{format_count(span.greatest)} {what}, and this plan has {format_count(value)}"
            )
    return ""


def check_supported(law: Law, size: PredictedSize, request: PlanRequest) -> None:
    """Raise ConfigError for a plan that nothing supports, unless `request` asks to extrapolate."""
    why = describe_unsupported(law, size, request.vocabulary)
    if why and not request.extrapolate:
        raise ConfigError(
            f"plan: {why}. A law says little beyond {FAR:g} times its runs: plan closer to them, "
            "fit a law to larger runs, or add --extrapolate to see the plan all the same"
        )


def _describe_extrapolation(what: str, value: float, span: FittedRange) -> Iterator[str]:
    if value > span.greatest:
        yield (
            f"Extrapolated: {what}, {value:.3g}, {_format_times(value / span.greatest)} the "
            f"greatest of the law's runs ({span.greatest:.3g})."
        )
    elif value < span.least:
        yield (
            f"Extrapolated: {what}, {value:.3g}, {_format_times(span.least / value)} below the "
            f"least of the law's runs ({span.least:.3g})."
        )


def _format_times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.2g} times"


def find_decoder_warnings(wanted: float, found: float) -> Iterator[str]:
    """Yield a warning if the nearest decoder differs from the size that the law wants."""
    if abs(found / wanted - 1) > NEAR:
        yield (
            f"The nearest model has {found:.3g} parameters, {found / wanted:.2g} times the best "
            f"size of {wanted:.3g}."
        )


def find_placement_warnings(placement: Placement, devices: int) -> Iterator[str]:
    """Yield a warning if no layout fits on the devices."""
    if placement.fits:
        return
    room = placement.room / 2**30
    least = placement.memory / 2**30
    needed = placement.devices_needed
    advice = (
        f"Use {needed:,} devices"
        if needed
        else "More devices do not help, even with one sequence on each"
    )
    yield (
        f"The model fits {devices:,} devices in no layout: it needs {least:,.1f} GiB at least on "
        f"each device, which has {room:,.1f} GiB. {advice}."
    )


def find_budget_warnings(asked: float | None, cost: Cost, serves: bool) -> Iterator[str]:
    """Yield a warning if the run costs more than the budget."""
    if asked is None or cost.usd is None or cost.usd <= asked * (1 + NEAR):
        return
    why = (
        "a model for serving is trained longer than is best for training alone"
        if serves
        else "machines are rented whole, so some devices are paid but unused; set --devices"
    )
    yield (
        f"The run costs {format_usd(cost.usd)} USD, more than the budget of "
        f"{format_usd(asked)} USD: {why}."
    )


def find_repeat_warnings(tokens: float, there: float) -> str:
    """Return the warning that tokens repeat under a law that counts repeats as new tokens."""
    return (
        f"The run sees the {there:,.0f} tokens of the folder {tokens / there:.3g} times, and this "
        "law counts all of them as new, so the loss will be higher than predicted."
    )
