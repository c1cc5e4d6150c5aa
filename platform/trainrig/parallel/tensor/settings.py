"""How a run file says that layers are shared: over how many workers, and which layers can be."""

from collections.abc import Iterable

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.architecture.positions import Alibi
from trainrig.models.decoder_config import DecoderConfig

WHERE = "training.parallel.tensor"
BY_ELEMENT = ("AdamW", "Adam", "SGD", "Lion")  # optimizers to which each number is one by itself


class TensorSplit(Settings):
    """Each worker has some heads of every layer, some channels of its feed-forward network, and
    some entries of the vocabulary (Shoeybi et al. 2019, arXiv:1909.08053)."""

    ranks: int = Field(ge=2)  # workers that share each layer; neighbours, best on one machine

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

    def check_run(self, model: DecoderConfig, objective: str) -> None:
        """Raise ValueError unless `ranks` workers can each have an equal part of `model`, and learn
        `objective` of it. A vocabulary that is not settled is passed over."""
        if objective != "CausalLM":
            raise ValueError(
                f"{WHERE}: objective {objective} is not computed of parts of logits; leave it out, "
                'or set objective.kind = "CausalLM"'
            )
        other = (
            (model.head != "tokens", f'model.head "{model.head}"', 'head = "tokens"'),
            (model.kind != "Decoder", f'model.kind "{model.kind}"', 'kind = "Decoder"'),
            (
                isinstance(model.feedforward, MixtureOfExperts),
                "a mixture of experts",
                "a dense model.feedforward",
            ),
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
        for name, size in (
            ("heads", sizes.heads),
            ("feedforward_channels", sizes.feedforward_channels),
            ("vocabulary", sizes.vocabulary),
        ):
            if size % ranks:
                below = size - size % ranks
                nearest = " or ".join(str(n) for n in (below, below + ranks) if n)
                raise ValueError(
                    f"{WHERE}.ranks ({ranks}) does not divide model.{name} ({size}); the nearest: "
                    f"{nearest}"
                )
        if sizes.kv_heads % ranks and ranks % sizes.kv_heads:
            fitting = [n for n in range(1, sizes.heads + 1) if not (n % ranks and ranks % n)]
            fitting = [n for n in fitting if sizes.heads % n == 0]
            raise ValueError(
                f"{WHERE}.ranks ({ranks}) neither divides model.kv_heads ({sizes.kv_heads}) nor is "
                f"a multiple of it; kv_heads may be {', '.join(map(str, fitting))}"
            )
