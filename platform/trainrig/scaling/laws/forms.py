"""The forms of a scaling law: loss as a function of parameters and tokens.

Each is the frozen settings of its constants, so that a law's file, its bootstrap draws and the
published laws are all the same objects. Losses are in nats per token. What N counts, with or
without embeddings, is the law's to say (`law.Law.parameters_count`), not the form's. Compute is
6ND throughout (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).

Arguments broadcast as numpy's do. `unique_tokens` matters to the one form that knows repeats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainrig.config import Field, Settings
from trainrig.errors import ConfigError

Array = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

FLOPS_PER_PARAMETER_AND_TOKEN = 6  # forward and backward; Kaplan et al. 2020, section 2.1


@dataclass(frozen=True)
class Optimum:
    """The best division of a compute budget. Arrays of the shape of the budgets asked for."""

    parameters: Array
    tokens: Array
    loss: Array  # nats per token

    @property
    def tokens_per_parameter(self) -> Array:
        """D/N."""
        return self.tokens / self.parameters


class Constants(Settings):
    """What all forms share: their constants by name, and a copy with others."""

    @property
    def constants(self) -> dict[str, float]:
        """Each constant by its name; those of a base form as `base.A`."""
        flat: dict[str, float] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Constants):
                flat |= {f"{name}.{inner}": number for inner, number in value.constants.items()}
            elif name != "kind":
                flat[name] = value
        return flat

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        """The same form with `constants`, named as `self.constants` names them."""
        data: dict[str, Any] = self.model_dump()
        for name, value in constants.items():
            *path, last = name.split(".")
            table = data
            for part in path:
                table = table[part]
            table[last] = float(value)
        return type(self).model_validate(data)


class Parametric(Constants):
    """L = E + A/N^alpha + B/D^beta (Hoffmann et al. 2022, arXiv:2203.15556, equation 2)."""

    kind: Literal["Parametric"] = "Parametric"
    E: NotNegative  # nats per token: what no model and no data would remove
    A: Positive
    B: Positive
    alpha: Positive
    beta: Positive

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Nats per token. Repeated tokens count as new ones: see DataConstrained."""
        n, d = _to_array(parameters), _to_array(tokens)
        return _to_array(self.E + self.A * n**-self.alpha + self.B * d**-self.beta)

    def compute_optimum(self, flops: ArrayLike) -> Optimum:
        """The least loss for `flops` = 6ND, in closed form (Hoffmann et al., equation 4)."""
        product = _to_array(flops) / FLOPS_PER_PARAMETER_AND_TOKEN
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        parameters = _to_array(scale * product**self.parameters_exponent)
        tokens = product / parameters
        return Optimum(parameters, tokens, self.compute_loss(parameters, tokens))

    @property
    def parameters_exponent(self) -> float:
        """a of N* ~ C^a; the tokens' is 1 - a."""
        return self.beta / (self.alpha + self.beta)

    def compute_optimal_parameters(self, tokens: ArrayLike) -> Array:
        """The parameters of the optimum that trains on `tokens`."""
        ratio = self.alpha * self.A / (self.beta * self.B)
        return _to_array((ratio * _to_array(tokens) ** self.beta) ** (1 / self.alpha))


class Kaplan(Constants):
    """L = ((n_c/N)^(alpha_n/alpha_d) + d_c/D)^alpha_d (arXiv:2001.08361, equation 1.5).

    Infinite tokens give L(N) = (n_c/N)^alpha_n, infinite parameters L(D) = (d_c/D)^alpha_d. The
    paper's advice N* ~ C^.73 comes from other fits, at early-stopped critical batch sizes; what
    `compute_optimum` gives is this equation's own answer under 6ND.
    """

    kind: Literal["Kaplan"] = "Kaplan"
    n_c: Positive  # parameters
    d_c: Positive  # tokens
    alpha_n: Positive
    alpha_d: Positive

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Nats per token. Repeated tokens count as new ones."""
        n, d = _to_array(parameters), _to_array(tokens)
        return _to_array(
            ((self.n_c / n) ** (self.alpha_n / self.alpha_d) + self.d_c / d) ** self.alpha_d
        )

    def compute_optimum(self, flops: ArrayLike) -> Optimum:
        """The least loss for `flops` = 6ND, in closed form."""
        product = _to_array(flops) / FLOPS_PER_PARAMETER_AND_TOKEN
        power = self.alpha_n / self.alpha_d
        # Where the derivative of (n_c/N)^p + d_c N/(C/6) by N is 0.
        parameters = _to_array((power * self.n_c**power * product / self.d_c) ** (1 / (power + 1)))
        tokens = product / parameters
        return Optimum(parameters, tokens, self.compute_loss(parameters, tokens))

    @property
    def parameters_exponent(self) -> float:
        """a of N* ~ C^a; the tokens' is 1 - a."""
        return self.alpha_d / (self.alpha_n + self.alpha_d)


class DataConstrained(Constants):
    """Repeated tokens are worth ever less (Muennighoff et al. 2023, arXiv:2305.16264, section 3).

    L = base(N', D'), where D' = U + U r_d (1 - e^(-R/r_d)), R = D/U - 1 the repeats, and N' is
    likewise of U_N = min(N, what is best for U tokens): parameters beyond what the unique tokens
    can use fade as repeats do. `r_d` epochs of repeats are worth as much as all further ones.
    """

    kind: Literal["DataConstrained"] = "DataConstrained"
    base: Parametric
    r_d: Positive  # R_D*, repeats
    r_n: Positive  # R_N*, multiples of the parameters that the unique tokens can use

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Nats per token after `tokens`, of which `unique_tokens` differ (None: all)."""
        return self.base.compute_loss(*self.compute_effective(parameters, tokens, unique_tokens))

    def compute_effective(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """(N', D'): the parameters and the fresh tokens that would do as well."""
        n, d = _to_array(parameters), _to_array(tokens)
        unique = d if unique_tokens is None else np.minimum(d, _to_array(unique_tokens))
        usable = np.minimum(n, self.base.compute_optimal_parameters(unique))
        return _discount_repeats(n, usable, self.r_n), _discount_repeats(d, unique, self.r_d)

    def compute_optimum(self, flops: ArrayLike, unique_tokens: ArrayLike | None = None) -> Optimum:
        """The least loss for `flops` = 6ND; found by search where tokens must repeat.

        While the base law's optimum needs no more than `unique_tokens`, it is the optimum.
        """
        free = self.base.compute_optimum(flops)
        if unique_tokens is None:
            return free
        budgets, unique = np.broadcast_arrays(_to_array(flops), _to_array(unique_tokens))
        parameters = np.broadcast_to(free.parameters, budgets.shape).copy()
        for place in np.argwhere(free.tokens > unique):
            at = tuple(place)
            parameters[at] = self._search_parameters(float(budgets[at]), float(unique[at]))
        tokens = budgets / FLOPS_PER_PARAMETER_AND_TOKEN / parameters
        return Optimum(parameters, tokens, self.compute_loss(parameters, tokens, unique))

    def _search_parameters(self, flops: float, unique_tokens: float) -> float:
        """The best parameters where data run out: between one epoch and as many as pay."""
        product = flops / FLOPS_PER_PARAMETER_AND_TOKEN

        def loss(log_parameters: ArrayLike) -> Array:
            n = np.exp(_to_array(log_parameters))
            return self.compute_loss(n, product / n, unique_tokens)

        from scipy.optimize import minimize_scalar  # slow to import

        # N' and D' both level off, so far from the optimum the loss is flat: a grid first.
        one_epoch = float(np.log(product / unique_tokens))
        grid = np.linspace(one_epoch - 12, one_epoch + 6, 721)
        best = int(np.argmin(loss(grid)))
        around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        found = minimize_scalar(
            lambda x: float(loss(x)),
            bounds=around,
            method="bounded",
            options={"xatol": 1e-10},
        )
        return float(np.exp(found.x))


class OverTraining(Constants):
    """L = E + (a M^eta + b M^-eta) C^-eta, M = D/N (Gadre et al. 2024, arXiv:2403.08540).

    The parametric law whose two exponents are equal, alpha = beta = 2 eta, seen from compute and
    the token multiplier M: lines of one M are parallel in log reducible loss against log compute.
    """

    kind: Literal["OverTraining"] = "OverTraining"
    E: NotNegative  # nats per token
    a: Positive
    b: Positive
    eta: Positive

    @property
    def parametric(self) -> Parametric:
        """The same law as Parametric."""
        scale = FLOPS_PER_PARAMETER_AND_TOKEN**-self.eta
        return Parametric(
            E=self.E, A=self.a * scale, B=self.b * scale, alpha=2 * self.eta, beta=2 * self.eta
        )

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Nats per token. Repeated tokens count as new ones."""
        return self.parametric.compute_loss(parameters, tokens)

    def compute_loss_at(self, flops: ArrayLike, tokens_per_parameter: ArrayLike) -> Array:
        """Nats per token at a compute and a token multiplier."""
        multiplier = _to_array(tokens_per_parameter)
        split = self.a * multiplier**self.eta + self.b * multiplier**-self.eta
        return _to_array(self.E + split * _to_array(flops) ** -self.eta)

    def compute_optimum(self, flops: ArrayLike) -> Optimum:
        """The least loss for `flops` = 6ND: the same D/N = (b/a)^(1/eta/2) at each compute."""
        return self.parametric.compute_optimum(flops)


Form = Annotated[Parametric | Kaplan | DataConstrained | OverTraining, Field(discriminator="kind")]


class TaskForm(Constants):
    """What a task scores after C FLOPs (6ND), in two steps.

    Loss of the right answers l = E + A (C/unit)^-alpha, nats per byte; score = chance +
    (1 - chance) / (1 + exp((l - middle) / width)).
    """

    kind: Literal["Task"] = "Task"
    chance: float = Field(ge=0, lt=1)  # the score of a blind guess
    unit: Positive  # FLOPs: the runs' geometric mean
    E: NotNegative  # nats per byte
    A: Positive  # nats per byte, above E, at `unit`
    alpha: Positive
    middle: float  # nats per byte at which the score is half-way from chance to 1
    width: Positive  # nats per byte

    @property
    def fitted(self) -> dict[str, float]:
        """The constants that runs decide."""
        return {name: getattr(self, name) for name in TASK_CONSTANTS}

    def compute_loss(self, flops: ArrayLike) -> Array:
        """Nats per byte of the right answers."""
        return _to_array(self.E + self.A * (_to_array(flops) / self.unit) ** -self.alpha)

    def compute_score(self, flops: ArrayLike) -> Array:
        """The expected score."""
        return self.compute_score_of_loss(self.compute_loss(flops))

    def compute_score_of_loss(self, loss: ArrayLike) -> Array:
        """The expected score of a model whose right answers have `loss`, nats per byte."""
        at = np.clip((_to_array(loss) - self.middle) / self.width, -500, 500)
        return _to_array(self.chance + (1 - self.chance) / (1 + np.exp(at)))


TASK_CONSTANTS = ("E", "A", "alpha", "middle", "width")


def compute_tokens_to_reach(
    form: Parametric | OverTraining, loss: float, parameters: ArrayLike
) -> Array:
    """The tokens that bring `parameters` down to `loss`; inf where no number of tokens does.

    Raises ConfigError if no model reaches `loss`, which is then at or below E.
    """
    base = form.parametric if isinstance(form, OverTraining) else form
    if loss <= base.E:
        raise ConfigError(
            f"loss {loss:g} is not above E = {base.E:g} nats per token, which no size and no data"
            f" reach under this law; ask for more than {base.E:g}"
        )
    left = loss - base.E - base.A * _to_array(parameters) ** -base.alpha
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left > 0, (base.B / np.maximum(left, 0)) ** (1 / base.beta), np.inf)


def _discount_repeats(seen: Array, fresh: Array, scale: float) -> Array:
    """What `seen` is worth in fresh ones, of which there are `fresh`."""
    repeats = seen / fresh - 1
    return _to_array(fresh - fresh * scale * np.expm1(-repeats / scale))


def _to_array(value: ArrayLike) -> Array:
    return np.asarray(value, dtype=np.float64)
