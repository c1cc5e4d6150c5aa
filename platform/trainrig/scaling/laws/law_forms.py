"""Forms of a scaling law: loss as a function of parameters and tokens.

Each form is a frozen settings model of its constants, so that a law's file, its bootstrap draws and
published laws are the same kind of object. Losses are in nats per token. Whether N counts
embeddings is a property of the law (`law.Law.parameters_count`), not of the form. Compute is 6ND
throughout (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).

Arguments broadcast like numpy arrays. `unique_tokens` affects DataConstrained only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainrig.config import Field, Settings

Array = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

LEVELS = 3  # different values needed of N, and of D: a power law above a floor has three constants
FLOPS_PER_PARAMETER_AND_TOKEN = 6  # forward and backward pass; Kaplan et al. 2020, section 2.1


@dataclass(frozen=True)
class Optimum:
    """Best split of compute budgets into parameters and tokens, as arrays of the budgets' shape."""

    parameters: Array
    tokens: Array
    loss: Array  # nats per token

    @property
    def tokens_per_parameter(self) -> Array:
        """The ratio D/N."""
        return self.tokens / self.parameters


class Constants(Settings):
    """Base class of all forms, with access to their constants by name."""

    @property
    def constants(self) -> dict[str, float]:
        """The constants by name; constants of a base form have names such as `base.A`."""
        flat: dict[str, float] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Constants):
                flat |= {f"{name}.{inner}": number for inner, number in value.constants.items()}
            elif name != "kind":
                flat[name] = value
        return flat

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        """Return this form with other constants, named as in `self.constants`."""
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
    E: NotNegative  # irreducible loss, nats per token
    A: Positive
    B: Positive
    alpha: Positive
    beta: Positive

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Return the loss in nats per token. Repeated tokens count as new; see DataConstrained."""
        n = _to_array(parameters)
        d = _to_array(tokens)
        return _to_array(self.E + self.A * n**-self.alpha + self.B * d**-self.beta)

    def compute_optimum(self, flops: ArrayLike) -> Optimum:
        """Compute the least loss for `flops` = 6ND in closed form (Hoffmann et al., equation 4)."""
        product = _to_array(flops) / FLOPS_PER_PARAMETER_AND_TOKEN
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        parameters = _to_array(scale * product**self.parameters_exponent)
        tokens = product / parameters
        return Optimum(parameters, tokens, self.compute_loss(parameters, tokens))

    @property
    def parameters_exponent(self) -> float:
        """The exponent a of N* ~ C^a; the tokens' exponent is 1 - a."""
        return self.beta / (self.alpha + self.beta)

    def compute_optimal_parameters(self, tokens: ArrayLike) -> Array:
        """Compute the N for which training on `tokens` tokens is compute-optimal."""
        ratio = self.alpha * self.A / (self.beta * self.B)
        return _to_array((ratio * _to_array(tokens) ** self.beta) ** (1 / self.alpha))


class Kaplan(Constants):
    """L = ((n_c/N)^(alpha_n/alpha_d) + d_c/D)^alpha_d (arXiv:2001.08361, equation 1.5).

    Infinite tokens give L(N) = (n_c/N)^alpha_n, infinite parameters L(D) = (d_c/D)^alpha_d. The
    paper's N* ~ C^.73 comes from other fits, with early stopping at critical batch sizes;
    `compute_optimum` minimises this equation under 6ND instead.
    """

    kind: Literal["Kaplan"] = "Kaplan"
    n_c: Positive  # parameters
    d_c: Positive  # tokens
    alpha_n: Positive
    alpha_d: Positive

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Return the loss in nats per token. Repeated tokens count as new ones."""
        # In logarithms, because runs that hardly bound n_c give one whose power overflows.
        of_size = self.alpha_n / self.alpha_d * (np.log(self.n_c) - np.log(_to_array(parameters)))
        of_tokens = np.log(self.d_c) - np.log(_to_array(tokens))
        return _to_array(np.exp(self.alpha_d * np.logaddexp(of_size, of_tokens)))

    def compute_optimum(self, flops: ArrayLike) -> Optimum:
        """Compute the least loss for `flops` = 6ND, in closed form."""
        product = _to_array(flops) / FLOPS_PER_PARAMETER_AND_TOKEN
        power = self.alpha_n / self.alpha_d
        # The minimum is where the derivative of (n_c/N)^p + d_c N/(C/6) with respect to N is 0.
        log_best = np.log(power * product) + power * np.log(self.n_c) - np.log(self.d_c)
        parameters = _to_array(np.exp(log_best / (power + 1)))
        tokens = product / parameters
        return Optimum(parameters, tokens, self.compute_loss(parameters, tokens))

    @property
    def parameters_exponent(self) -> float:
        """The exponent a of N* ~ C^a; the tokens' exponent is 1 - a."""
        return self.alpha_d / (self.alpha_n + self.alpha_d)


class DataConstrained(Constants):
    """Law of repeated tokens losing value (Muennighoff et al. 2023, arXiv:2305.16264).

    The formula is from the paper's section 3.

    L = base(N', D'), where D' = U + U r_d (1 - e^(-R/r_d)) for U unique tokens and R = D/U - 1
    repeats. N' follows the same formula with r_n and U_N = min(N, the best N for U tokens):
    parameters beyond what the unique tokens can use lose value as repeats do. `r_d` epochs of
    repeats are worth as much as all further ones.
    """

    kind: Literal["DataConstrained"] = "DataConstrained"
    base: Parametric
    r_d: Positive  # R_D*, in repeats
    r_n: Positive  # R_N*, in multiples of the parameters that the unique tokens can use

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Return nats per token, where `unique_tokens` of `tokens` are different (None: all)."""
        return self.base.compute_loss(*self.compute_effective(parameters, tokens, unique_tokens))

    def compute_effective(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Return (N', D'): parameters and unique tokens with the same loss in the base law."""
        n = _to_array(parameters)
        d = _to_array(tokens)
        unique = d if unique_tokens is None else np.minimum(d, _to_array(unique_tokens))
        usable = np.minimum(n, self.base.compute_optimal_parameters(unique))
        return _discount_repeats(n, usable, self.r_n), _discount_repeats(d, unique, self.r_d)

    def compute_optimum(self, flops: ArrayLike, unique_tokens: ArrayLike | None = None) -> Optimum:
        """Compute the least loss for `flops` = 6ND, by numerical search where tokens must repeat.

        The optimum is the base law's while that needs at most `unique_tokens`.
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
        """Search for the best N when the base law's optimum needs more than the unique tokens."""
        product = flops / FLOPS_PER_PARAMETER_AND_TOKEN

        def loss(log_parameters: ArrayLike) -> Array:
            n = np.exp(_to_array(log_parameters))
            return self.compute_loss(n, product / n, unique_tokens)

        from scipy.optimize import minimize_scalar  # imported here because it is slow to import

        # N' and D' both saturate, so the loss is flat far from the optimum: search a grid first.
        one_epoch = float(np.log(product / unique_tokens))
        grid = np.linspace(one_epoch - 12, one_epoch + 6, 721)
        best = int(np.argmin(loss(grid)))
        around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        found = minimize_scalar(
            lambda x: float(loss(x)), bounds=around, method="bounded", options={"xatol": 1e-10}
        )
        return float(np.exp(found.x))


class OverTraining(Constants):
    """L = E + (a M^eta + b M^-eta) C^-eta, M = D/N (Gadre et al. 2024, arXiv:2403.08540).

    This is the parametric law with equal exponents, alpha = beta = 2 eta, in terms of compute and
    the token multiplier M. Runs of equal M lie on parallel lines in log reducible loss over log
    compute.
    """

    kind: Literal["OverTraining"] = "OverTraining"
    E: NotNegative  # nats per token
    a: Positive
    b: Positive
    eta: Positive

    @property
    def parametric(self) -> Parametric:
        """The same law as a Parametric form."""
        scale = FLOPS_PER_PARAMETER_AND_TOKEN**-self.eta
        return Parametric(
            E=self.E, A=self.a * scale, B=self.b * scale, alpha=2 * self.eta, beta=2 * self.eta
        )

    def compute_loss(
        self, parameters: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike | None = None
    ) -> Array:
        """Return the loss in nats per token. Repeated tokens count as new ones."""
        return self.parametric.compute_loss(parameters, tokens)

    def compute_optimum(self, flops: ArrayLike) -> Optimum:
        """Compute the least loss for `flops` = 6ND: D/N = (b/a)^(1/(2 eta)) at every compute."""
        return self.parametric.compute_optimum(flops)


Form = Annotated[Parametric | Kaplan | DataConstrained | OverTraining, Field(discriminator="kind")]


class TaskForm(Constants):
    """Score of a task after C FLOPs (6ND), through the loss of the right answers.

    The loss of the right answers is l = E + A (C/unit)^-alpha, in nats per byte. The score is
    chance + (1 - chance) / (1 + exp((l - middle) / width)).
    """

    kind: Literal["Task"] = "Task"
    chance: float = Field(ge=0, lt=1)  # score of random guessing
    unit: Positive  # FLOPs: the geometric mean of the runs' compute
    E: NotNegative  # nats per byte
    A: Positive  # nats per byte above E at `unit` FLOPs
    alpha: Positive
    middle: float  # nats per byte where the score is half-way from chance to 1
    width: Positive  # nats per byte

    @property
    def fitted(self) -> dict[str, float]:
        """The constants that are fitted to runs, by name."""
        return {name: getattr(self, name) for name in TASK_CONSTANTS}

    def compute_loss(self, flops: ArrayLike) -> Array:
        """Compute the loss of the right answers in nats per byte."""
        return _to_array(self.E + self.A * (_to_array(flops) / self.unit) ** -self.alpha)

    def compute_score(self, flops: ArrayLike) -> Array:
        """Compute the expected score after `flops`."""
        return self.compute_score_of_loss(self.compute_loss(flops))

    def compute_score_of_loss(self, loss: ArrayLike) -> Array:
        """Compute the expected score for a `loss` of the right answers in nats per byte."""
        at = np.clip((_to_array(loss) - self.middle) / self.width, -500, 500)
        return _to_array(self.chance + (1 - self.chance) / (1 + np.exp(at)))


TASK_CONSTANTS = ("E", "A", "alpha", "middle", "width")


def _discount_repeats(seen: Array, fresh: Array, scale: float) -> Array:
    """Return the number of unique items that `seen` items, `fresh` of them unique, are worth."""
    repeats = seen / fresh - 1
    return _to_array(fresh - fresh * scale * np.expm1(-repeats / scale))


def _to_array(value: ArrayLike) -> Array:
    return np.asarray(value, dtype=np.float64)
