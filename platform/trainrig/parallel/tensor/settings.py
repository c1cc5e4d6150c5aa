"""Run-file settings for tensor parallelism, and checks that a model supports it."""

import math
from collections.abc import Iterable

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Alibi, MixtureOfExperts
from trainrig.objectives import OF_ANSWERS, OF_PLACES

WHERE = "training.parallel.tensor"
BY_ELEMENT = ("AdamW", "Adam", "SGD", "Lion")  # optimizers that treat each element separately

# Objectives that need only the cross-entropy of targets, or scores of a model.
OF_PARTS = (*OF_PLACES, *OF_ANSWERS)


class TensorSplit(Settings):
    """Tensor parallelism: workers that share every layer.

    Each worker has some heads and some feed-forward channels of every layer, and some entries of
    the vocabulary (Shoeybi et al. 2019, arXiv:1909.08053).
    """

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
            below = workers - workers % replica
            nearest = " or ".join(str(n) for n in (below, below + replica) if n)
            raise ConfigError(
                f"{WHERE}.ranks ({self.ranks}): {workers} workers do not form whole groups of "
                f"{replica}, which share layers; use {nearest}"
            )

    def check_training(self, compute: str, optimizers: Iterable[str]) -> None:
        """Raise ValueError for number formats or optimizers that do not support shared layers."""
        if compute == "float8":
            raise ValueError(
                f"{WHERE}: float8 scales whole matrices, but a worker has only a part; set "
                'training.precision.compute = "bfloat16"'
            )
        for kind in optimizers:
            if kind not in BY_ELEMENT:
                raise ValueError(
                    f"{WHERE}: {kind} needs whole matrices, but a worker has only a part; use one "
                    f"of {', '.join(BY_ELEMENT)}"
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
            below = length - length % pieces
            nearest = " or ".join(str(n) for n in (below, below + pieces) if n)
            raise ValueError(
                f"{WHERE}.sequence_parallel: sequences of {length} tokens are not a multiple of "
                f"{pieces}, so {self.ranks} workers cannot share positions equally; the nearest: "
                f"{nearest}"
            )

    def check_run(self, model: DecoderConfig, objective: str, instead: str = "CausalLM") -> None:
        """Raise ValueError unless `ranks` workers can each train an equal part of `model`.

        `objective` must be computable from parts of the logits. `instead`: objective to suggest in
        the message. A vocabulary size that is not known yet is not checked.
        """
        if objective not in OF_PARTS:
            raise ValueError(
                f"{WHERE}: objective {objective} cannot be computed from parts of the logits; "
                f'remove the table, or set objective.kind = "{instead}"'
            )
        self.check_model(model)

    def check_model(self, model: DecoderConfig) -> None:
        """Raise ValueError unless `ranks` workers can each have an equal part of `model`."""
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
                below = size - size % ranks
                nearest = " or ".join(str(n) for n in (below, below + ranks) if n)
                raise ValueError(
                    f"{WHERE}.ranks ({ranks}) does not divide model.{name} ({size}); the nearest "
                    f"model.{name} that it divides: {nearest}"
                )
        if sizes.kv_heads % ranks and ranks % sizes.kv_heads:
            fitting = [n for n in range(1, sizes.heads + 1) if not (n % ranks and ranks % n)]
            fitting = [n for n in fitting if sizes.heads % n == 0]
            raise ValueError(
                f"{WHERE}.ranks ({ranks}) neither divides model.kv_heads ({sizes.kv_heads}) nor is "
                f"a multiple of it; kv_heads may be {', '.join(map(str, fitting))}"
            )
