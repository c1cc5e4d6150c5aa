"""Run-file settings for pipeline parallelism, and checks that a run supports it."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.objectives import OF_ANSWERS, OF_PLACES
from trainrig.parallel.pipeline.cut import cut_for_ranks
from trainrig.parallel.pipeline.schedule import Schedule

# Objectives with a single forward pass whose loss only the last stage computes. KTO first needs two
# passes, of the model and of a reference.
OF_ROWS = (*OF_PLACES, *(kind for kind in OF_ANSWERS if kind != "KTO"))


class Pipeline(Settings):
    """Pipeline parallelism: each worker of a group has some of the layers."""

    # number of workers that divide the layers among them; at most the number of layers
    ranks: int = Field(ge=2)
    # Order of forward and backward passes. `GPipe`: all micro-batches of a step forward, then all
    # backward (arXiv:1811.06965). `1F1B`: backward as early as possible, so that a stage never
    # keeps more micro-batches than there are stages (arXiv:2104.04473, section 2.2.1).
    # `interleaved`: 1F1B with several stages per worker, which reduces waiting (section 2.2.2).
    schedule: Schedule = "1F1B"
    # Number of stages per worker, which are not adjacent: 2 or more with `interleaved`, otherwise
    # 1.
    chunks: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check_chunks(self) -> Self:
        if self.schedule == "interleaved" and self.chunks == 1:
            raise ValueError(
                'schedule = "interleaved" needs several stages per worker; set chunks = 2 or '
                'more, or schedule = "1F1B"'
            )
        if self.schedule != "interleaved" and self.chunks > 1:
            raise ValueError(
                f'schedule = "{self.schedule}" has one stage per worker, but chunks is '
                f'{self.chunks}; remove chunks, or set schedule = "interleaved"'
            )
        return self

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError unless `workers` are whole groups of `ranks`."""
        if workers % self.ranks:
            below = workers - workers % self.ranks
            nearest = [str(n) for n in (below, below + self.ranks) if n]
            raise ConfigError(
                f"training.parallel.pipeline.ranks ({self.ranks}) does not divide {workers} "
                f"workers: each group of {self.ranks} holds the layers once; use "
                f"{' or '.join(nearest)}"
            )

    def check_run(self, model: DecoderConfig, objective: str, instead: str = "CausalLM") -> None:
        """Raise ValueError if `model`, trained by `objective`, cannot be cut into stages.

        `instead`: objective to suggest in the message.
        """
        where = "training.parallel.pipeline"
        if self.ranks > model.layers:
            raise ValueError(
                f"{where}.ranks ({self.ranks}) is above the {model.layers} layers of the model; "
                f"use at most {model.layers}"
            )
        if self.ranks * self.chunks > model.layers:
            most = model.layers // self.ranks
            instead = f"at most {most}" if most > 1 else 'schedule = "1F1B"'
            raise ValueError(
                f"{where}.chunks ({self.chunks}) makes more stages on {self.ranks} workers than "
                f"the {model.layers} layers of the model; use {instead}"
            )
        if type(model) is not DecoderConfig:
            raise ValueError(
                f"{where}: a model of kind {model.kind} cannot be cut into stages; remove the "
                'table, or set model.kind = "Decoder"'
            )
        if objective not in OF_ROWS:
            raise ValueError(
                f"{where}: objective {objective} cannot be computed in stages; remove the table, "
                f'or set objective.kind = "{instead}"'
            )

    def check_adapters(self, model: DecoderConfig, lora: LoRA) -> None:
        """Raise ValueError unless each stage has an adapter to train."""
        chosen = [name.split(".") for name in lora.choose(model)]
        there = {int(parts[1]) for parts in chosen if parts[0] == "layers"}
        for stages in cut_for_ranks(model, self.ranks, self.chunks):
            for layers in stages:
                if there.isdisjoint(layers):
                    raise ValueError(
                        f"training.parallel.pipeline: the stage of layers {layers.start} to "
                        f"{layers.stop - 1} has no adapter to train; add a layer of it to "
                        "lora.targets, or use fewer ranks"
                    )

    def check_batch(self, global_batch: int, micro_batch: int, replicas: int) -> None:
        """Raise ValueError if interleaved stages get an incomplete group of micro-batches.

        The micro-batches of each of `replicas` must be a multiple of `ranks`.
        """
        step = self.ranks * micro_batch * replicas
        if self.schedule != "interleaved" or global_batch % step == 0:
            return
        below = global_batch - global_batch % step
        nearest = " or ".join(str(n) for n in (below, below + step) if n)
        raise ValueError(
            f"training.parallel.pipeline: interleaved stages take {self.ranks} micro-batches at a "
            f"time, so batches.global_batch ({global_batch}) must be a multiple of {step}, with "
            f"{micro_batch} sequences per micro-batch and {replicas} replicas; use {nearest}, or "
            'schedule = "1F1B"'
        )

    def check_frozen(self, model: DecoderConfig, trained: Iterable[str]) -> None:
        """Raise ConfigError unless each stage has one of the `trained` parameters."""
        there = set(trained)
        for stages in cut_for_ranks(model, self.ranks, self.chunks):
            for layers in stages:
                own = [f"layers.{number}." for number in layers]
                own += ["embedding.", "position_embedding."] if layers.start == 0 else []
                own += ["norm.", "head."] if layers.stop == model.layers else []
                if not any(name.startswith(tuple(own)) for name in there):
                    raise ConfigError(
                        "training.parallel.pipeline: training.groups freeze the whole stage of "
                        f"layers {layers.start} to {layers.stop - 1}, which then has nothing to "
                        "train; unfreeze a part of it, or use fewer ranks"
                    )
