"""Settings of the regression and of the search for a mixture, which need no scipy to be read."""

import math
from collections.abc import Mapping
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from trainrig.config import Field, Settings, suggest_choice
from trainrig.errors import ConfigError

# "RegMix" is a Gaussian process for each target, in place of the gradient boosting of
# arXiv:2407.01492; "MixingLaw" is form M4 of arXiv:2403.16952.
Method = Literal["RegMix", "MixingLaw"]
# Share that limits may lack in all: sums of decimals such as 0.06 + 0.57 + 0.37 are a bit below 1.
LACKING = 1e-9


class MixtureSearch(Settings):
    """Settings of the search for a mixture."""

    candidates: int = Field(50_000, ge=10_000)  # number of mixtures drawn
    best: int = Field(100, ge=1)  # number of best mixtures whose average is proposed, 100 in RegMix
    finalists: int = Field(500, ge=100)  # candidates that may be best under a drawn function
    draws: int = Field(200, ge=40)  # functions drawn for the intervals
    # upper limit of a source's share, for sources with too few tokens
    at_most: Mapping[str, float] = Field({})
    seed: int = Field(0, ge=0)  # random seed of the draws

    @model_validator(mode="after")
    def _check_best(self) -> Self:
        if self.best >= self.candidates:
            raise ValueError(
                f"best: {self.best:,} of {self.candidates:,} candidates are not the best ones; set "
                "fewer, such as 100"
            )
        return self

    def compute_limits(self, sources: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the upper limit of each source's share, [S].

        Raises ConfigError if a source does not exist, or if the limits cannot be met.
        """
        for source, share in self.at_most.items():
            if source not in sources:
                raise ConfigError(f"at most: no source '{source}'{suggest_choice(source, sources)}")
            if not 0 <= share <= 1:
                raise ConfigError(f"at most: {source} = {share:g}; choose a share from 0 to 1")
        limits = np.array([self.at_most.get(source, 1.0) for source in sources])
        total = math.fsum(limits)
        if total < 1 - LACKING:
            raise ConfigError(
                f"at most: the limits of all sources sum to {total:.4g}, and shares must "
                "sum to 1; raise a limit"
            )
        return limits
