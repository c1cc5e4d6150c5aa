"""Which layers each stage of a pipeline has: neighbours, of as equal cost as can be.

A cost is counted, not measured: the FLOPs of a token's forward pass (`trainrig.flops`) in rows as
long as the model reads; the backward pass takes twice that everywhere. Looking up the embedding
costs none; the head is the last stage's. So the cut is a function of the model alone, the same on
every machine.
"""

from functools import lru_cache

from trainrig.flops import compute_mean_keys
from trainrig.models.architecture.shapes import count_multiplications
from trainrig.models.decoder_config import DecoderConfig


def count_layer_flops(model: DecoderConfig) -> tuple[tuple[float, ...], float]:
    """Of a token's forward pass: those of each layer of `model`, and of its head."""
    shape, window = model.shape, model.attention.window
    costs = []
    for number, layer in enumerate(model.shapes.layers):
        size = window.size if window is not None and window.is_local(number) else None
        keys = compute_mean_keys(model.positions, size, causal=True, around=False)
        costs.append(
            2.0 * count_multiplications(layer) + 4.0 * shape.heads * shape.head_channels * keys
        )
    return tuple(costs), 2.0 * model.outputs * shape.channels


def cut_layers(model: DecoderConfig, stages: int) -> tuple[range, ...]:
    """The layers of each of `stages`. Raises ConfigError while the vocabulary is not settled."""
    return cut_evenly(*count_layer_flops(model), stages)


def cut_for_ranks(model: DecoderConfig, ranks: int, chunks: int) -> tuple[tuple[range, ...], ...]:
    """The layers of each of `chunks` stages of each of `ranks`, which stages go round."""
    stages = cut_layers(model, ranks * chunks)
    return tuple(stages[rank::ranks] for rank in range(ranks))


def describe_cut(model: DecoderConfig, ranks: int, chunks: int) -> str:
    """The layers of each rank and the share of a token's FLOPs that it has, for people."""
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
    """The ranges of layers of `parts` stages, the dearest of which is as cheap as can be.

    `costs`: of each layer; `last`: what the last stage has beside. Each has a layer at least.
    """
    low, high = 0.0, (sum(costs) + last) * (1 + 1e-9)  # sums round by their order
    best = _fill(costs, last, parts, high)
    assert best is not None, "fewer layers than stages"
    for _ in range(40):
        middle = (low + high) / 2
        found = _fill(costs, last, parts, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _fill(
    costs: tuple[float, ...], last: float, parts: int, most: float
) -> tuple[range, ...] | None:
    """Stages that cost `most` at most, each filled from the end on; None: there are none."""
    if parts > len(costs):
        return None
    ranges, end, room = [], len(costs), most - last
    for left in range(parts - 1, -1, -1):
        begin = end - 1
        spent = costs[begin]
        while begin > left and spent + costs[begin - 1] <= room:
            begin -= 1
            spent += costs[begin]
        if spent > room:
            return None
        ranges.append(range(begin, end))
        end, room = begin, most
    return tuple(reversed(ranges)) if end == 0 else None
