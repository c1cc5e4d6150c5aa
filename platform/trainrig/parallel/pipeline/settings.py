"""How a run file says that layers are cut into stages: over how many workers, in what order."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.decoder_config import DecoderConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

NARROW = ("float16", "float8")


class Pipeline(Settings):
    """Each worker of a group has some of the layers, a stage; micro-batches flow through all."""

    ranks: int = Field(ge=2)  # workers of a group, each with a stage: no more than layers
    # In what order a stage goes forward and backward. `GPipe`: forward with all micro-batches of a
    # step, then backward (arXiv:1811.06965). `1F1B`: backward as soon as it can, so that it never
    # keeps more micro-batches than there are stages (arXiv:2104.04473, section 2.2.1).
    schedule: Literal["1F1B", "GPipe"] = "1F1B"

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError unless `workers` are whole groups of `ranks`."""
        if workers % self.ranks:
            below = workers - workers % self.ranks
            nearest = [str(n) for n in (below, below + self.ranks) if n]
            raise ConfigError(
                f"training.parallel.pipeline.ranks ({self.ranks}) does not divide {workers} "
                f"workers: each group of {self.ranks} has the layers once; use "
                f"{' or '.join(nearest)}"
            )

    def check_run(self, model: DecoderConfig, objective: str) -> None:
        """Raise ValueError if `model`, trained by `objective`, cannot be cut into stages."""
        where = "training.parallel.pipeline"
        if self.ranks > model.layers:
            raise ValueError(
                f"{where}.ranks ({self.ranks}) is above the {model.layers} layers of the model; "
                f"use at most {model.layers}"
            )
        if type(model) is not DecoderConfig:
            raise ValueError(
                f"{where}: a model of kind {model.kind} is not cut into stages; leave it out, or "
                'set model.kind = "Decoder"'
            )
        if isinstance(model.feedforward, MixtureOfExperts):
            raise ValueError(
                f"{where}: a mixture of experts adds terms of all layers to the loss; leave it "
                "out, or choose a dense model.feedforward"
            )
        if objective != "CausalLM":
            raise ValueError(
                f"{where}: objective {objective} is not computed in stages; leave it out, or set "
                'objective.kind = "CausalLM"'
            )

    def check_beside(self, others: "Sequence[str]", compute: str) -> None:
        """Raise ValueError for other settings of a run that stages do not go with: `others`, which
        it has, and numbers to compute in."""
        for other in others:
            raise ValueError(
                f"parallel.pipeline does not go with {other}; leave out one of the two"
            )
        if compute in NARROW:
            raise ValueError(
                f'precision.compute = "{compute}" does not go with parallel.pipeline; use '
                '"bfloat16"'
            )
