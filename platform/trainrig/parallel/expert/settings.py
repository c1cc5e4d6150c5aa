"""Run-file settings for expert parallelism, and checks that a run supports it."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.objectives import OF_ANSWERS, OF_PLACES
from trainrig.optim import Adafactor, Muon, Optimizer
from trainrig.optim.named_groups import NamedGroup
from trainrig.tokens.rows.batch_stages import StageSizes

BY_ROW = (*OF_PLACES, *OF_ANSWERS)  # objectives whose rows may be on several workers
EXPERTS = ".experts."  # part of the names of parameters that are divided


class Expert(Settings):
    """Expert parallelism: workers that divide the experts of each layer among them.

    Each worker also has some rows of each micro-batch, and sends their tokens to the workers that
    have their experts.
    """

    # Number of workers that divide the experts and rows; must divide both numbers.
    ranks: int = Field(ge=2)

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError unless `workers` are whole groups of `ranks`."""
        if workers % self.ranks:
            below = workers - workers % self.ranks
            nearest = [str(n) for n in (below, below + self.ranks) if n]
            raise ConfigError(
                f"training.parallel.expert.ranks ({self.ranks}) does not divide {workers} workers: "
                f"they divide experts in groups of {self.ranks}; use {' or '.join(nearest)}"
            )

    def check_run(
        self,
        model: DecoderConfig,
        objective: str,
        batches: Sequence[StageSizes],
        instead: str = "CausalLM",
    ) -> None:
        """Raise ValueError unless experts and rows can be divided equally over the workers.

        Args:
            model: The model of the run.
            objective: Kind of objective, which must support divided rows.
            batches: Batch sizes of each stage.
            instead: Objective to suggest in the message.
        """
        mixture = model.feedforward
        if not isinstance(mixture, MixtureOfExperts):
            raise ValueError(
                "training.parallel.expert: the model has no experts to divide; remove the table, "
                'or set model.feedforward.kind = "MixtureOfExperts"'
            )
        self.check_experts(model)
        if objective not in BY_ROW:
            raise ValueError(
                f"training.parallel.expert: objective {objective} does not support divided rows; "
                f'remove the table, or set objective.kind = "{instead}"'
            )
        for stage in batches:
            if stage.micro_batch % self.ranks:
                above = stage.micro_batch + self.ranks - stage.micro_batch % self.ranks
                raise ValueError(
                    f"training.parallel.expert.ranks ({self.ranks}) does not divide the "
                    f"{stage.micro_batch} rows of a micro-batch, which workers share equally; set "
                    f"batches.micro_batch to {above}"
                )

    def check_experts(self, model: DecoderConfig, of: str = "") -> None:
        """Raise ValueError if `model` has experts that the workers cannot divide equally.

        `of`: words for the message that say whose experts they are.
        """
        mixture = model.feedforward
        if isinstance(mixture, MixtureOfExperts) and mixture.experts % self.ranks:
            fitting = [str(n) for n in range(2, mixture.experts + 1) if mixture.experts % n == 0]
            raise ValueError(
                f"training.parallel.expert.ranks ({self.ranks}) does not divide the "
                f"{mixture.experts} experts of a layer{of}; use {', '.join(fitting)}"
            )

    @staticmethod
    def check_optimizers(
        shapes: Mapping[str, tuple[int, ...]],
        groups: Mapping[str, NamedGroup],
        optimizer: Optimizer,
    ) -> None:
        """Raise ConfigError if experts have an optimizer that gathers whole tensors.

        `shapes`: shapes of the parameters by name. The optimizer is that of the parameter's group,
        or else `optimizer`.
        """
        for name in shapes:
            group = groups.get(name)
            chosen = (group and group.optimizer) or optimizer
            frozen = group is not None and group.freeze
            if EXPERTS in name and isinstance(chosen, Muon | Adafactor) and not frozen:
                raise ConfigError(
                    f"training.parallel.expert: {chosen.kind} gathers whole tensors, but experts "
                    "are divided; give them another optimizer, as [[training.groups]] with match "
                    f"= '*{EXPERTS}*' and optimizer.kind = 'AdamW'"
                )
