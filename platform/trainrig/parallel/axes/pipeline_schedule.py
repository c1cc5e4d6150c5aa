"""Pipeline parallelism without torch: its settings, the cut into stages, and the order of passes.

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B, and interleaved 1F1B, in which a rank has several
stages: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2. In all of them each stage
runs backward passes in the order of micro-batches, as a single process does, so gradients are added
in one order.

With chunks, stages go round the ranks: chunk c of rank p of P is stage c P + p.

Stages are neighbouring layers, with costs as equal as possible.

Costs are counted, not measured: the FLOPs of a token's forward pass (`trainrig.flops`), in rows as
long as the model's positions. The backward pass takes twice that in every layer, so it does not
change the division. The embedding lookup costs
nothing, and the last stage has the head. The division therefore depends on the model alone, the
same on every machine.

All stages together count each parameter once (`StageShare`).
"""

import itertools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from trainrig.errors import ConfigError
from trainrig.flops import count_layer_flops
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.parallel.axes.axis_settings import AxisSettings, name_nearest_multiples

Schedule = Literal["1F1B", "GPipe", "interleaved"]


class Turn(NamedTuple):
    """One pass of a micro-batch through one of the rank's stages."""

    forward: bool  # a forward pass, else a backward pass
    number: int  # number of the micro-batch within the replica's step
    chunk: int = 0  # number of the rank's stage


def plan_turns(
    schedule: Schedule, rank: int, ranks: int, count: int, chunks: int = 1
) -> list[Turn]:
    """Return the passes of `rank` for `count` micro-batches, in order.

    Each of `ranks` ranks has `chunks` stages. A single stage runs each micro-batch forward and then
    backward.
    """
    if schedule == "interleaved":
        return _interleave(rank, ranks, count, chunks)
    assert chunks == 1, "one stage a rank"
    ahead = count if schedule == "GPipe" else ranks - 1 - rank
    forward = [Turn(True, number) for number in range(count)]
    return _alternate(forward, [Turn(False, number) for number in range(count)], ahead)


def _interleave(rank: int, ranks: int, count: int, chunks: int) -> list[Turn]:
    """Return the interleaved 1F1B order.

    Groups of as many micro-batches as there are ranks go through the first chunk, then through the
    second, and so on. The last group may be incomplete: the order is made as if it were complete,
    so that no two ranks wait for each other, and the missing micro-batches are left out.
    """
    groups = [range(n, n + ranks) for n in range(0, count, ranks)]
    forward = [Turn(True, n, chunk) for group in groups for chunk in range(chunks) for n in group]
    backward = [
        Turn(False, n, chunk)
        for group in groups
        for chunk in reversed(range(chunks))
        for n in group
    ]
    order = _alternate(forward, backward, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
    return [turn for turn in order if turn.number < count]


def _alternate(forward: list[Turn], backward: list[Turn], ahead: int) -> list[Turn]:
    """Return the first `ahead` forward passes, then one forward and one backward pass in turn."""
    order = forward[:ahead]
    for number, turn in enumerate(backward):
        order += [*forward[ahead + number : ahead + number + 1], turn]
    return order


def find_held_at_once(order: list[Turn]) -> list[Turn]:
    """Return the forward passes of `order` that wait for their backward passes at the peak.

    The peak is the time when the most passes wait.
    """
    held: list[Turn] = []
    most: list[Turn] = []
    for turn in order:
        if turn.forward:
            held.append(turn)
            most = max(most, list(held), key=len)
        else:
            held.remove(Turn(True, turn.number, turn.chunk))
    return most


def compute_idle_share(ranks: int, count: int, chunks: int = 1) -> float:
    """Return the fraction of a step in which a rank waits (the bubble).

    All stages are assumed to take equally long. The bubble is (P - 1) / (chunks M) of the computing
    time, for P ranks and M micro-batches. GPipe and 1F1B have the same bubble.
    """
    return (ranks - 1) / (chunks * count + ranks - 1)


def cut_layers(model: DecoderConfig, stages: int) -> tuple[range, ...]:
    """Return the layers of each of `stages` stages.

    Raises ConfigError if the size of the vocabulary is not known yet.
    """
    return cut_evenly(*count_layer_flops(model), stages)


def cut_for_ranks(model: DecoderConfig, ranks: int, chunks: int) -> tuple[tuple[range, ...], ...]:
    """Return the layers of the `chunks` stages of each rank: rank r has stages r, r + ranks, …."""
    stages = cut_layers(model, ranks * chunks)
    return tuple(stages[rank::ranks] for rank in range(ranks))


def describe_cut(model: DecoderConfig, ranks: int, chunks: int) -> str:
    """Return in words the layers of each rank and its share of a token's FLOPs."""
    costs, head = count_layer_flops(model)
    words = []
    for stages in cut_for_ranks(model, ranks, chunks):
        spent = sum(sum(costs[layers.start : layers.stop]) for layers in stages)
        spent += head if stages[-1].stop == len(costs) else 0.0
        own = " and ".join(f"{layers.start}-{layers.stop - 1}" for layers in stages)
        words.append(f"{own} ({spent / (sum(costs) + head):.0%})")
    return f"layers {', '.join(words)}"


@lru_cache(maxsize=4096)
def cut_evenly(costs: tuple[float, ...], last: float, parts: int) -> tuple[range, ...]:
    """Return layers of `parts` stages, with the most expensive stage as cheap as possible.

    `costs`: cost of each layer. `last`: extra cost of the last stage. Each stage has at least one
    layer.
    """
    # a margin, as the rounding of sums depends on their order
    low = 0.0
    high = (sum(costs) + last) * (1 + 1e-9)
    best = _fill(costs, last, parts, high)
    assert best is not None, "fewer layers than stages"
    for _ in range(40):
        middle = (low + high) / 2
        found = _fill(costs, last, parts, middle)
        if found is None:
            low = middle
        else:
            best = found
            high = middle
    return best


def _fill(
    costs: tuple[float, ...], last: float, parts: int, most: float
) -> tuple[range, ...] | None:
    """Return stages that cost at most `most` each, filled from the end, or None if impossible."""
    if parts > len(costs):
        return None
    ranges = []
    end = len(costs)
    room = most - last
    for stages_before in range(parts - 1, -1, -1):
        begin = end - 1
        spent = costs[begin]
        while begin > stages_before and spent + costs[begin - 1] <= room:
            begin -= 1
            spent += costs[begin]
        if spent > room:
            return None
        ranges.append(range(begin, end))
        end = begin
        room = most
    return tuple(reversed(ranges)) if end == 0 else None


COPIED = "embedding"  # the module that the last stage copies for a tied head


@dataclass(frozen=True)
class StageShare:
    """Parameters of the whole model, and which of them one stage counts."""

    # Number of rows of each trained parameter of the whole model, by name, in the order of a single
    # process.
    whole: Mapping[str, int]
    copies: bool = False  # True if this stage has a copy of the first stage's embedding

    def counts(self, name: str) -> bool:
        """Return whether this stage counts its parameter `name`.

        Also accepts names of saved state: `model.NAME` and `optimizer.state.NAME.…`.
        """
        return not (self.copies and f".{COPIED}." in f".{name}.")

    def find_firsts(self, names: Iterable[str]) -> list[int | None]:
        """Return the row of the whole model at which each of this stage's parameters begins.

        None for parameters that another stage counts.
        """
        begins = itertools.accumulate(self.whole.values(), initial=0)
        first = dict(zip(self.whole, begins, strict=False))
        return [first[name] if self.counts(name) else None for name in names]


class Pipeline(AxisSettings):
    """Pipeline parallelism: each worker of a group has some of the layers."""

    name: ClassVar[str] = "pipeline"
    grouping: ClassVar[str] = "each group of {ranks} holds the layers once"
    whole: ClassVar[str] = "all layers"
    divides: ClassVar[str] = "divide them"
    position: ClassVar[int] = 1
    shares_micro_batches: ClassVar[bool] = False

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

    def check_beside(
        self, names: Container[str], compiled: bool, recompute: str | None, fused: bool
    ) -> None:
        """Raise ValueError for a kind of recomputation that the schedule does not support."""
        super().check_beside(names, compiled, recompute, fused)
        if recompute == "Budget" and self.schedule == "GPipe":
            raise ValueError(
                "recompute.kind = 'Budget' does not support parallel.pipeline.schedule = 'GPipe', "
                "which keeps all micro-batches of a step; set schedule = '1F1B'"
            )

    def check_run(
        self, model: DecoderConfig, objective: ObjectiveSettings, instead: str = "CausalLM"
    ) -> None:
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
        if "pipeline" not in objective.axes:
            raise ValueError(
                f"{where}: objective {objective.kind} cannot be computed in stages; remove the "
                f'table, or set objective.kind = "{instead}"'
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
        nearest = name_nearest_multiples(global_batch, step)
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
