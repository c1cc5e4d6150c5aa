"""Settings of context, expert and tensor parallelism, and checks that a run supports them.

The settings of pipeline parallelism are in pipeline_schedule.py.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Alibi, MixtureOfExperts
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.optim import Optimizer, list_optimizers
from trainrig.optim.named_groups import NamedGroup

if TYPE_CHECKING:
    from trainrig.tokens.rows.batch_stages import StageSizes


def name_nearest_multiples(number: int, divisor: int) -> str:
    """Return the multiples of `divisor` around `number`, such as "6 or 8", for a message."""
    below = number - number % divisor
    return " or ".join(str(n) for n in (below, below + divisor) if n)


class AxisSettings(Settings):
    """Base of the settings of an axis: the workers of a group share or divide something.

    A subclass declares what the axis composes with, and is a field of `WorkerLayout`.
    """

    name: ClassVar[str]  # key in `training.parallel`
    grouping: ClassVar[str]  # clause on a group of `{ranks}` workers, for messages
    whole: ClassVar[str]  # need of a verb without this axis, on each worker
    divides: ClassVar[str]  # ability of a verb with this axis
    # Place among the axes where a layout is described.
    position: ClassVar[int]
    # Whether the workers of a group compute the same micro-batches, or share a layer.
    shares_micro_batches: ClassVar[bool] = True
    # Data that are sent within layers, so that layers cannot be compiled; None: no data.
    within_layers: ClassVar[str | None] = None
    # Why other axes cannot be used beside this one, by their names.
    excludes: ClassVar[Mapping[str, str]] = {}

    if TYPE_CHECKING:  # subclasses declare it among their other fields
        ranks: int

    def check_workers(self, workers: int, replica: int) -> None:
        """Raise ConfigError unless `workers` are whole groups of `ranks`.

        `replica`: number of workers that compute a micro-batch together, along all axes.
        """
        if workers % self.ranks:
            nearest = name_nearest_multiples(workers, self.ranks)
            raise ConfigError(
                f"training.parallel.{self.name}.ranks ({self.ranks}) does not divide {workers} "
                f"workers: {self.grouping.format(ranks=self.ranks)}; use {nearest}"
            )

    def check_beside(
        self, names: Container[str], compiled: bool, recompute: str | None, fused: bool
    ) -> None:
        """Raise ValueError for settings that the axis does not compose with.

        `names`: those of all axes of the layout. `fused`: whether projections are.
        """
        if self.within_layers and compiled:
            raise ValueError(
                f"parallel.{self.name} {self.within_layers} within layers, so layers cannot be "
                f"compiled; remove [training.compile] or [training.parallel.{self.name}]"
            )
        for name, reason in self.excludes.items():
            if name in names:
                raise ValueError(f"parallel.{self.name} {reason}; remove one of the two")


class _Context(AxisSettings):
    """Settings that both kinds of context parallelism share."""

    name: ClassVar[str] = "context"
    grouping: ClassVar[str] = "they share rows in groups of {ranks}"
    whole: ClassVar[str] = "whole rows"
    divides: ClassVar[str] = "share rows"
    position: ClassVar[int] = 2
    within_layers: ClassVar[str | None] = "sends keys and values"
    keys: ClassVar[Literal["gather", "ring"]]  # how keys and values reach other workers

    # workers that share each row; sequence length must be a multiple of twice this number
    ranks: int = Field(ge=2)

    def check_length(self, length: int) -> None:
        """Raise ValueError unless rows of `length` tokens are cut into equal parts."""
        chunks = 2 * self.ranks
        if length % chunks:
            raise ValueError(
                f"sequences of {length} tokens are not a multiple of {chunks}, twice "
                f"training.parallel.context.ranks ({self.ranks}): each worker has a part of the "
                f"head and one of the tail; the nearest: {name_nearest_multiples(length, chunks)}"
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


EXPERTS = ".experts."  # part of the names of parameters that are divided


class Expert(AxisSettings):
    """Expert parallelism: workers that divide the experts of each layer among them.

    Each worker also has some rows of each micro-batch, and sends their tokens to the workers that
    have their experts.
    """

    name: ClassVar[str] = "expert"
    grouping: ClassVar[str] = "they divide experts in groups of {ranks}"
    whole: ClassVar[str] = "all experts"
    divides: ClassVar[str] = "divide them"
    position: ClassVar[int] = 3
    within_layers: ClassVar[str | None] = "sends tokens"
    excludes: ClassVar[Mapping[str, str]] = {
        "context": "needs whole rows, but parallel.context cuts them"
    }

    # Number of workers that divide the experts and rows; must divide both numbers.
    ranks: int = Field(ge=2)

    def check_beside(
        self, names: Container[str], compiled: bool, recompute: str | None, fused: bool
    ) -> None:
        """Raise ValueError for other axes, compiled layers, or a kind of recomputation."""
        super().check_beside(names, compiled, recompute, fused)
        if recompute == "Selective":
            raise ValueError(
                "parallel.expert gathers experts within layers, which recompute.kind = "
                "'Selective' does not support; set recompute.kind = 'Full', or remove "
                "[training.recompute]"
            )

    def check_run(
        self,
        model: DecoderConfig,
        objective: ObjectiveSettings,
        batches: "Sequence[StageSizes]",
        instead: str = "CausalLM",
    ) -> None:
        """Raise ValueError unless experts and rows can be divided equally over the workers.

        `objective` must support divided rows. `instead`: objective to suggest in the message.
        """
        mixture = model.feedforward
        if not isinstance(mixture, MixtureOfExperts):
            raise ValueError(
                "training.parallel.expert: the model has no experts to divide; remove the table, "
                'or set model.feedforward.kind = "MixtureOfExperts"'
            )
        self.check_experts(model)
        if "expert" not in objective.axes:
            raise ValueError(
                f"training.parallel.expert: objective {objective.kind} does not support divided "
                f'rows; remove the table, or set objective.kind = "{instead}"'
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
            if EXPERTS in name and not chosen.elementwise and not frozen:
                raise ConfigError(
                    f"training.parallel.expert: {chosen.kind} gathers whole tensors, but experts "
                    "are divided; give them another optimizer, as [[training.groups]] with match "
                    f"= '*{EXPERTS}*' and optimizer.kind = 'AdamW'"
                )


WHERE = "training.parallel.tensor"


class TensorSplit(AxisSettings):
    """Tensor parallelism: workers that share every layer.

    Each worker has some heads and some feed-forward channels of every layer, and some entries of
    the vocabulary (Shoeybi et al. 2019, arXiv:1909.08053).
    """

    name: ClassVar[str] = "tensor"
    whole: ClassVar[str] = "whole layers"
    divides: ClassVar[str] = "share them"
    position: ClassVar[int] = 0
    within_layers: ClassVar[str | None] = "adds results of workers"

    # number of workers that share each layer; neighbouring ranks, best on one machine
    ranks: int = Field(ge=2)
    # Whether each worker has some positions of the hidden states between layers, and normalizes
    # only those (sequence parallelism). It sends as many bytes forward, and half as many again
    # backward (Korthikanti et al. 2022, arXiv:2205.05198). If false, each worker has all positions.
    sequence_parallel: bool = False

    def count_sent(self, model: DecoderConfig, size: int) -> float:
        """Return the bytes per token that each worker sends to share the layers of `model`.

        Forward and backward, for a token of its replica, at `size` bytes per number. Recomputation
        adds to this.
        """
        times = 10 if self.sequence_parallel else 8
        stream = model.channels * size
        return times * model.layers * stream * (self.ranks - 1) / self.ranks

    def check_workers(self, workers: int, replica: int) -> None:
        """Raise ConfigError unless `workers` form whole groups of `replica` workers."""
        if workers % replica:
            raise ConfigError(
                f"{WHERE}.ranks ({self.ranks}): {workers} workers do not form whole groups of "
                f"{replica}, which share layers; use {name_nearest_multiples(workers, replica)}"
            )

    def check_beside(
        self, names: Container[str], compiled: bool, recompute: str | None, fused: bool
    ) -> None:
        """Raise ValueError for compiled layers or fused projections."""
        super().check_beside(names, compiled, recompute, fused)
        if fused:
            raise ValueError(
                "parallel.tensor cuts the matrices of queries, keys and values separately; remove "
                "training.fuse_projections or [training.parallel.tensor]"
            )

    def check_training(self, compute: str, optimizers: Iterable[Optimizer]) -> None:
        """Raise ValueError for number formats or optimizers that do not support shared layers."""
        if compute == "float8":
            raise ValueError(
                f"{WHERE}: float8 scales whole matrices, but a worker has only a part; set "
                'training.precision.compute = "bfloat16"'
            )
        for optimizer in optimizers:
            if not optimizer.elementwise:
                fitting = [kind.__name__ for kind in list_optimizers() if kind.elementwise]
                raise ValueError(
                    f"{WHERE}: {optimizer.kind} needs whole matrices, but a worker has only a "
                    f"part; use one of {', '.join(fitting)}"
                )

    def check_length(self, length: int, context: int) -> None:
        """Raise ValueError unless positions can be divided equally with `sequence_parallel`.

        Rows have `length` tokens, which `context` workers share.
        """
        if not self.sequence_parallel:
            return
        # A context axis also cuts rows into a head and a tail for each worker. The suggested
        # lengths must suit both.
        ranks = math.lcm(self.ranks, 2) if context > 1 else self.ranks
        pieces = ranks * context
        if length % pieces:
            raise ValueError(
                f"{WHERE}.sequence_parallel: sequences of {length} tokens are not a multiple of "
                f"{pieces}, so {self.ranks} workers cannot share positions equally; the nearest: "
                f"{name_nearest_multiples(length, pieces)}"
            )

    def check_run(
        self, model: DecoderConfig, objective: ObjectiveSettings, instead: str = "CausalLM"
    ) -> None:
        """Raise ValueError unless `ranks` workers can each train an equal part of `model`.

        `objective` must be computable from parts of the logits. `instead`: objective to suggest in
        the message. A vocabulary size that is not known yet is not checked.
        """
        if "tensor" not in objective.axes:
            raise ValueError(
                f"{WHERE}: objective {objective.kind} cannot be computed from parts of the logits; "
                f'remove the table, or set objective.kind = "{instead}"'
            )
        self.check_model(model)

    def check_model(self, model: DecoderConfig) -> None:
        """Raise ValueError unless `ranks` workers can each have an equal part of `model`."""
        mixture = model.feedforward
        experts = mixture if isinstance(mixture, MixtureOfExperts) else None
        other = (
            (model.kind != "Decoder", f'model.kind "{model.kind}"', 'kind = "Decoder"'),
            (
                isinstance(model.position_embedding, Alibi),
                "ALiBi, whose slopes depend on the head,",
                "Rope, LearnedPositions or NoPositions",
            ),
            (
                model.attention.qk_norm == "projection",
                "a norm over all heads",
                'model.attention.qk_norm = "head"',
            ),
            (
                model.attention.unshared is not None,
                model.attention.unshared,
                'model.attention.kind = "Attention"',
            ),
            (
                experts is not None and experts.shared_gate,
                "a gate of shared experts",
                "model.feedforward.shared_gate = false",
            ),
            (
                experts is not None and model.biases.feedforward,
                "biases of experts",
                "model.biases.feedforward = false",
            ),
        )
        for there, what, instead in other:
            if there:
                raise ValueError(
                    f"{WHERE}: {what} cannot be shared; remove the table, or choose {instead}"
                )
        self._check_sizes(model)

    def _check_sizes(self, model: DecoderConfig) -> None:
        ranks = self.ranks
        sizes = model.model_copy(update={"vocabulary": model.vocabulary or ranks}).shape
        named = {"heads": sizes.heads, "vocabulary": sizes.vocabulary}
        mixture = model.feedforward
        if not isinstance(mixture, MixtureOfExperts) or mixture.dense_layers:
            named["feedforward_channels"] = sizes.feedforward_channels
        if isinstance(mixture, MixtureOfExperts):
            own = mixture.expert_channels
            name = "feedforward.expert_channels" if own else "feedforward_channels"
            named[name] = own or sizes.feedforward_channels
        for name, size in named.items():
            if size % ranks:
                raise ValueError(
                    f"{WHERE}.ranks ({ranks}) does not divide model.{name} ({size}); the nearest "
                    f"model.{name} that it divides: {name_nearest_multiples(size, ranks)}"
                )
        if sizes.kv_heads % ranks and ranks % sizes.kv_heads:
            fitting = [n for n in range(1, sizes.heads + 1) if not (n % ranks and ranks % n)]
            fitting = [n for n in fitting if sizes.heads % n == 0]
            raise ValueError(
                f"{WHERE}.ranks ({ranks}) neither divides model.kv_heads ({sizes.kv_heads}) nor is "
                f"a multiple of it; kv_heads may be {', '.join(map(str, fitting))}"
            )
