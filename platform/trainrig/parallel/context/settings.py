"""Run-file settings for context parallelism: number of workers, and transport of keys."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError


class _Context(Settings):
    """Settings that both kinds of context parallelism share."""

    keys: ClassVar[Literal["gather", "ring"]]  # how keys and values reach other workers

    # workers that share each row; sequence length must be a multiple of twice this number
    ranks: int = Field(ge=2)

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError unless `workers` are whole groups of `ranks`."""
        if workers % self.ranks:
            below = workers - workers % self.ranks
            nearest = [str(n) for n in (below, below + self.ranks) if n]
            raise ConfigError(
                f"training.parallel.context.ranks ({self.ranks}) does not divide {workers} "
                f"workers: they share rows in groups of {self.ranks}; use {' or '.join(nearest)}"
            )

    def check_length(self, length: int) -> None:
        """Raise ValueError unless rows of `length` tokens are cut into equal parts."""
        chunks = 2 * self.ranks
        if length % chunks:
            below = length - length % chunks
            nearest = [str(n) for n in (below, below + chunks) if n]
            raise ValueError(
                f"sequences of {length} tokens are not a multiple of {chunks}, twice "
                f"training.parallel.context.ranks ({self.ranks}): each worker has a part of the "
                f"head and one of the tail; the nearest: {' or '.join(nearest)}"
            )


class Gathered(_Context):
    """Context parallelism that gathers the keys and values of whole rows, one layer at a time."""

    keys = "gather"

    kind: Literal["Gathered"] = "Gathered"


class RingAttention(_Context):
    """Context parallelism that passes keys and values around the workers.

    No worker ever holds the keys of a whole row (Liu et al. 2023, arXiv:2310.01889).
    """

    keys = "ring"

    kind: Literal["RingAttention"] = "RingAttention"


Context = Annotated[Gathered | RingAttention, Field(discriminator="kind")]
