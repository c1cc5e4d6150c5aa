"""Division of layers into pipeline stages: neighbouring layers, with costs as equal as possible.

Costs are counted, not measured: the FLOPs of a token's forward pass (`trainrig.flops`), in rows as
long as the model's positions. The backward pass takes twice that in every layer, so it does not
change the division. The embedding lookup costs
nothing, and the last stage has the head. The division therefore depends on the model alone, the
same on every machine.
"""

from functools import lru_cache

from trainrig.flops import compute_mean_keys
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.shapes import count_multiplications


def count_layer_flops(model: DecoderConfig) -> tuple[tuple[float, ...], float]:
    """Return the forward FLOPs of a token in each layer of `model`, and in its head."""
    shape = model.shape
    window = model.attention.window
    costs = []
    for number, layer in enumerate(model.shapes.layers):
        size = window.size if window is not None and window.is_local(number) else None
        keys = compute_mean_keys(model.positions, size, causal=True, both_sides=False)
        costs.append(
            2.0 * count_multiplications(layer) + 4.0 * shape.heads * shape.head_channels * keys
        )
    return tuple(costs), 2.0 * model.outputs * shape.channels


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
