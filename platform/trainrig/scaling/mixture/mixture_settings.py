"""Settings of the regression and of the search for a mixture, which need no scipy to be read."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings, suggest_choice
from trainrig.errors import ConfigError

# "RegMix" is a Gaussian process for each target, in place of the gradient boosting of
# arXiv:2407.01492; "MixingLaw" is form M4 of arXiv:2403.16952.
Method = Literal["RegMix", "MixingLaw"]


class MixtureSearch(Settings):
    """Settings of the search for a mixture."""

    candidates: int = Field(50_000, ge=10_000)  # number of mixtures drawn
    best: int = Field(100, ge=1)  # number of best mixtures whose average is proposed, 100 in RegMix
    finalists: int = Field(500, ge=100)  # candidates that may be best under a drawn function
    draws: int = Field(200, ge=40)  # functions drawn for the intervals
    # upper limit of a source's share, for sources with too few tokens
    at_most: Mapping[str, float] = Field({})
    seed: int = Field(0, ge=0)  # random seed of the draws

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
        if limits.sum() < 1:
            raise ConfigError(
                f"at most: the limits of all sources sum to {limits.sum():.4g}, and shares must "
                "sum to 1; raise a limit"
            )
        return limits
