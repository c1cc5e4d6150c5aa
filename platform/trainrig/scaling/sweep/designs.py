"""Designs of a sweep: the points (N, D) to train, by grid, by ray or by compute budget.

N counts parameters without embeddings, and D the tokens trained on. A law needs points that do not
lie on one line: several N at the same D, or several D at the same N.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.errors import ConfigError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Several = Annotated[tuple[Positive, ...], Field(min_length=1)]

FEWEST_SIZES = 2  # one size teaches nothing about N; a fit asks for more sizes, and says how many


@dataclass(frozen=True)
class ModelShape:
    """Size and cost of a model, as a design needs them."""

    parameters: int  # N
    flops_per_token: float  # operations of training per token, counted exactly


@dataclass(frozen=True)
class DesignPoint:
    """Model size, and the number of tokens to train it on."""

    parameters: float  # N as requested, from which the model's own N may differ
    tokens: float  # D
    budget: float | None = None  # FLOPs of the isoFLOP curve that the point lies on, if any


class _Design(Settings, abc.ABC):
    """Base of all designs that begin with model sizes."""

    parameters: Several  # sizes of the models, in parameters (N)

    @model_validator(mode="after")
    def _check_several_sizes(self) -> "_Design":
        _check_sizes(self.parameters)
        return self

    def list_points(self, model: Callable[[float], ModelShape]) -> tuple[DesignPoint, ...]:
        """Return all points, by size and tokens.

        `model` returns the shape of the model closest to a number of parameters. Raises ConfigError
        if there is no point.
        """
        found = sorted(
            self._iterate_points(model), key=lambda point: (point.parameters, point.tokens)
        )
        if not found:
            raise ConfigError(
                "design: none of its points is within tokens_per_parameter; widen that range"
            )
        return tuple(found)

    @abc.abstractmethod
    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        """Yield the points, in any order."""


class Grid(_Design):
    """Design with every model size at every number of tokens."""

    kind: Literal["Grid"] = "Grid"
    tokens: Several  # numbers of tokens (D) to train each size on

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        for parameters in self.parameters:
            yield from (DesignPoint(parameters, tokens) for tokens in self.tokens)


class Rays(_Design):
    """Design with every model size at fixed ratios D/N, each a ray through the plane of N and D."""

    kind: Literal["Rays"] = "Rays"
    # Ratios D/N to train each model at. The default runs from a quarter of the ratio that Hoffmann
    # et al. 2022 (arXiv:2203.15556) found best to four times it.
    tokens_per_parameter: Several = (5.0, 10.0, 20.0, 40.0, 80.0)

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        for asked in self.parameters:
            size = model(asked).parameters
            yield from (DesignPoint(asked, size * ratio) for ratio in self.tokens_per_parameter)


class IsoFLOP(_Design):
    """Design with every model size at every compute budget (Hoffmann et al. 2022, section 3.2)."""

    kind: Literal["IsoFLOP"] = "IsoFLOP"
    budgets: Several  # compute of one run for each curve, in FLOPs
    # How the operations of a budget are counted: as 6ND, like the laws do, or exactly. Embeddings
    # cost a small model more than 6ND counts.
    flops: Literal["6ND", "exact"] = "6ND"
    # Least and greatest D/N of a point. Points outside of this range are left out.
    tokens_per_parameter: tuple[Positive, Positive] = (1.0, 1_000.0)

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        least, most = self.tokens_per_parameter
        for asked in self.parameters:
            size = model(asked)
            flops_per_token = (
                size.flops_per_token if self.flops == "exact" else 6.0 * size.parameters
            )
            for budget in self.budgets:
                tokens = budget / flops_per_token
                if least <= tokens / size.parameters <= most:
                    yield DesignPoint(asked, tokens, budget)


class Points(Settings):
    """Design with an explicit list of points."""

    kind: Literal["Points"] = "Points"
    # Parameters and tokens of each run: [[N, D], ...].
    pairs: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_several_sizes(self) -> "Points":
        _check_sizes([parameters for parameters, _ in self.pairs])
        return self

    def list_points(self, model: Callable[[float], ModelShape]) -> tuple[DesignPoint, ...]:
        """Return all points, by size and tokens."""
        return tuple(DesignPoint(*pair) for pair in sorted(set(self.pairs)))


def _check_sizes(parameters: Sequence[float]) -> None:
    if len(set(parameters)) < FEWEST_SIZES:
        raise ValueError(
            f"one size of model, {parameters[0]:,.0f} parameters: no law in N can be fitted to one "
            "size; give three or more, from least to greatest a factor of 8 or more"
        )


Design = Annotated[Grid | Rays | IsoFLOP | Points, Field(discriminator="kind")]
