"""How a run file says that layers are shared: over how many workers, and which layers can be."""

import math
from collections.abc import Iterable

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.architecture.positions import Alibi
from trainrig.models.decoder_config import DecoderConfig
from trainrig.objectives import OF_ANSWERS, OF_PLACES

WHERE = "training.parallel.tensor"
BY_ELEMENT = ("AdamW", "Adam", "SGD", "Lion")  # optimizers to which each number is one by itself

# Objectives that ask of a vocabulary the nats of targets alone, or of a model scores.
OF_PARTS = (*OF_PLACES, *OF_ANSWERS)


class TensorSplit(Settings):
    """Each worker has some heads of every layer, some channels of its feed-forward network, and
    some entries of the vocabulary (Shoeybi et al. 2019, arXiv:1909.08053)."""

    ranks: int = Field(ge=2)  # workers that share each layer; neighbours, best on one machine
    # Whether each of them has some places of what flows between layers, and norms those alone: for
    # as many bytes sent forward, and half as many again backward (Korthikanti et al. 2022,
    # arXiv:2205.05198); else all have all places.
    sequence_parallel: bool = False

    def count_sent(self, model: DecoderConfig, size: int) -> float:
        """The bytes that each worker sends to share the layers of `model`, forward and backward,
        for a token of its replica, in numbers of `size` bytes; what is computed again comes on
        top."""
        times = 10 if self.sequence_parallel else 8
        stream = model.channels * size
        return times * model.layers * stream * (self.ranks - 1) / self.ranks

    def check_workers(self, workers: int, replica: int) -> None:
        """Raise ConfigError unless `workers` are whole groups of `replica`, which work together."""
        if workers % replica:
            below = workers - workers % replica
            nearest = " or ".join(str(n) for n in (below, below + replica) if n)
            raise ConfigError(
                f"{WHERE}.ranks ({self.ranks}): {workers} workers are no whole groups of "
                f"{replica}, which share layers; use {nearest}"
            )

    def check_training(self, compute: str, optimizers: Iterable[str]) -> None:
        """Raise ValueError for numbers or optimizers that shared layers do not go with."""
        if compute == "float8":
            raise ValueError(
                f"{WHERE}: float8 scales whole matrices, of which a worker has a part; set "
                'training.precision.compute = "bfloat16"'
            )
        for kind in optimizers:
            if kind not in BY_ELEMENT:
                raise ValueError(
                    f"{WHERE}: {kind} looks at whole matrices, of which a worker has a part; use "
                    f"one of {', '.join(BY_ELEMENT)}"
                )

    def check_length(self, length: int, context: int) -> None:
        """Raise ValueError unless what flows between layers can be divided by its places, in rows
        of `length` tokens that `context` workers share."""
        if not self.sequence_parallel:
            return
        # A context axis cuts rows into a head and a tail for each worker as well: what is named as
        # the nearest has to suit both.
        ranks = math.lcm(self.ranks, 2) if context > 1 else self.ranks
        pieces = ranks * context
        if length % pieces:
            below = length - length % pieces
            nearest = " or ".join(str(n) for n in (below, below + pieces) if n)
            raise ValueError(
                f"{WHERE}.sequence_parallel: sequences of {length} tokens are not a multiple of "
                f"{pieces}, for {self.ranks} workers to have as many places each; the nearest: "
                f"{nearest}"
            )

    def check_run(self, model: DecoderConfig, objective: str, instead: str = "CausalLM") -> None:
        """Raise ValueError unless `ranks` workers can each have an equal part of `model`, and learn
        `objective` of it; `instead`: the one to name then. A vocabulary that is not settled is
        passed over."""
        if objective not in OF_PARTS:
            raise ValueError(
                f"{WHERE}: objective {objective} is not computed of parts of logits; leave it out, "
                f'or set objective.kind = "{instead}"'
            )
        self.check_model(model)

    def check_model(self, model: DecoderConfig) -> None:
        """Raise ValueError unless `ranks` workers can each have an equal part of `model`."""
        other = (
            (model.kind != "Decoder", f'model.kind "{model.kind}"', 'kind = "Decoder"'),
            (
                isinstance(model.position_embedding, Alibi),
                "ALiBi, whose distances go by head,",
                "Rope, LearnedPositions or NoPositions",
            ),
            (
                model.attention.qk_norm == "projection",
                "a norm of all heads together",
                'model.attention.qk_norm = "head"',
            ),
        )
        for there, what, instead in other:
            if there:
                raise ValueError(
                    f"{WHERE}: {what} is not shared; leave it out, or choose {instead}"
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
