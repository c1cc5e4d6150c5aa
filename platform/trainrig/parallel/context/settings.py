"""How a run file says that rows are split: over how many workers, and how keys get round."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError


class _Context(Settings):
    """What both have in common."""

    keys: ClassVar[Literal["gather", "ring"]]  # how keys and values travel

    ranks: int = Field(ge=2)  # workers that share each row; twice as many divide its length

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
    """Each worker is sent the keys and values of whole rows, a layer at a time."""

    keys = "gather"

    kind: Literal["Gathered"] = "Gathered"


class RingAttention(_Context):
    """Keys and values go round the workers while they are looked at; none ever holds a whole row's
    (Liu et al. 2023, arXiv:2310.01889)."""

    keys = "ring"

    kind: Literal["RingAttention"] = "RingAttention"


Context = Annotated[Gathered | RingAttention, Field(discriminator="kind")]
