"""Which points (N, D) a sweep trains: parameters against tokens, by grid, by ray or by compute.

N counts parameters without embeddings, D the tokens trained on. A law needs points that do not lie
on one line through them: several N at a D, or several D at an N.
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

FEWEST_SIZES = 2  # with one, nothing is learnt of N; a fit asks for more, and says how many


@dataclass(frozen=True)
class ModelShape:
    """What of a decoder a design needs to know."""

    parameters: int  # N
    flops_per_token: float  # of training, counted exactly


@dataclass(frozen=True)
class DesignPoint:
    """A model, and the tokens it is to be trained on."""

    parameters: float  # N as it was asked for
    tokens: float  # D
    budget: float | None = None  # FLOPs of the isoFLOP curve that it lies on


class _Design(Settings, abc.ABC):
    """What every design begins with: the sizes of its models."""

    parameters: Several  # sizes of the models, in parameters (N)

    @model_validator(mode="after")
    def _several_sizes(self) -> "_Design":
        _check_sizes(self.parameters)
        return self

    def list_points(self, model: Callable[[float], ModelShape]) -> tuple[DesignPoint, ...]:
        """All points, by size and tokens; `model` tells of the decoder of about so many
        parameters. Raises ConfigError if there is none."""
        found = sorted(self._iterate_points(model), key=lambda each: (each.parameters, each.tokens))
        if not found:
            raise ConfigError("design: no point of it is within tokens_per_parameter")
        return tuple(found)

    @abc.abstractmethod
    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        """The points, in any order."""


class Grid(_Design):
    """Every size at every number of tokens."""

    kind: Literal["Grid"] = "Grid"
    tokens: Several  # numbers of tokens (D) to train each size on

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        for parameters in self.parameters:
            yield from (DesignPoint(parameters, tokens) for tokens in self.tokens)


class Rays(_Design):
    """Every size at multiples of itself: each D/N is a ray through the plane of N and D."""

    kind: Literal["Rays"] = "Rays"
    # Multiples of its size, in tokens, to train each model on; from a quarter of what Hoffmann et
    # al. 2022 (arXiv:2203.15556) found best to four times it.
    tokens_per_parameter: Several = (5.0, 10.0, 20.0, 40.0, 80.0)

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        for asked in self.parameters:
            size = model(asked).parameters
            yield from (DesignPoint(asked, size * ratio) for ratio in self.tokens_per_parameter)


class IsoFLOP(_Design):
    """Every size at every compute budget (Hoffmann et al. 2022, section 3.2)."""

    kind: Literal["IsoFLOP"] = "IsoFLOP"
    budgets: Several  # compute of one run, in FLOPs, for each curve
    # What a budget is counted by: 6ND, as the laws do, or each operation of the model; embeddings
    # cost a small model more than 6ND says.
    flops: Literal["6ND", "exact"] = "6ND"
    # Least and greatest D/N of a point; what a budget has beyond is not trained.
    tokens_per_parameter: tuple[Positive, Positive] = (1.0, 1_000.0)

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        least, most = self.tokens_per_parameter
        for asked in self.parameters:
            size = model(asked)
            each = size.flops_per_token if self.flops == "exact" else 6.0 * size.parameters
            for budget in self.budgets:
                tokens = budget / each
                if least <= tokens / size.parameters <= most:
                    yield DesignPoint(asked, tokens, budget)


class Points(Settings):
    """These points, and no others."""

    kind: Literal["Points"] = "Points"
    # Parameters and tokens of each run: [[N, D], ...].
    pairs: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _several_sizes(self) -> "Points":
        _check_sizes([parameters for parameters, _ in self.pairs])
        return self

    def list_points(self, model: Callable[[float], ModelShape]) -> tuple[DesignPoint, ...]:
        """All of them, by size and tokens."""
        return tuple(DesignPoint(*pair) for pair in sorted(set(self.pairs)))


def _check_sizes(parameters: Sequence[float]) -> None:
    if len(set(parameters)) < FEWEST_SIZES:
        raise ValueError(
            f"one size of model, {parameters[0]:,.0f} parameters: no law in N can be fitted to it; "
            "give three or more, at least a factor of 8 apart"
        )


Design = Annotated[Grid | Rays | IsoFLOP | Points, Field(discriminator="kind")]
