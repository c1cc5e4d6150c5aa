"""Orders of the rows of projections in Transformers' files that differ from trainrig's.

Each function returns, for each row of a tensor of theirs, the number of the row among those of
trainrig's tensors, stacked in the order of the tensor table.
"""

import functools

from trainrig.models.architecture.attention_settings import LatentAttention
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, Rope


def order_query_pairs(config: DecoderConfig) -> tuple[int, ...]:
    """Return the order of query rows in files that rotate neighbouring channels together.

    trainrig rotates channel i of the first half of a head together with channel i of the second
    half. Products of queries and keys stay the same if both are reordered.
    """
    return _order_pairs(config, config.shape.heads)


def order_key_pairs(config: DecoderConfig) -> tuple[int, ...]:
    """Return the order of key rows in files that rotate neighbouring channels together."""
    return _order_pairs(config, config.shape.kv_heads)


def _order_pairs(config: DecoderConfig, heads: int) -> tuple[int, ...]:
    width = config.shape.head_channels
    rope = config.position_embedding
    rotated = rope.count_rotated_channels(width) if isinstance(rope, Rope) else 0
    return _interleave_halves(heads, width, rotated)


@functools.lru_cache(maxsize=16)  # All layers of a model share one order.
def _interleave_halves(heads: int, width: int, rotated: int) -> tuple[int, ...]:
    half = rotated // 2
    pairs = [channel for first in range(half) for channel in (first, first + half)]
    inside = (*pairs, *range(rotated, width))
    return tuple(head * width + channel for head in range(heads) for channel in inside)


def alternate_gate_and_up(config: DecoderConfig) -> tuple[int, ...]:
    """Return the order of hidden channels of experts in files that alternate gate and up."""
    experts = config.feedforward
    own = experts.expert_channels if isinstance(experts, MixtureOfExperts) else None
    between = own or config.shape.feedforward_channels
    return tuple(part * between + channel for channel in range(between) for part in range(2))


def order_latent_queries(config: DecoderConfig) -> tuple[int, ...]:
    """Return the order of query rows of latent attention, whose rotated pairs end a head.

    In trainrig the rotated channels begin a head, and the two of a pair are in different halves.
    """
    width = config.shape.head_channels
    pairs = _interleave_halves(1, config.rotary_channels, config.rotary_channels)
    inside = (*range(config.rotary_channels, width), *pairs)
    return tuple(head * width + channel for head in range(config.shape.heads) for channel in inside)


def order_latent(config: DecoderConfig) -> tuple[int, ...]:
    """Return the order of rows of a latent and of the rotated pairs of its key."""
    latent = _find_latent(config).latent_channels
    pairs = _interleave_halves(1, config.rotary_channels, config.rotary_channels)
    return (*range(latent), *(latent + channel for channel in pairs))


def order_keys_and_values(config: DecoderConfig) -> tuple[int, ...]:
    """Return the order of rows that hold the key and value of one head after another."""
    heads = config.shape.heads
    keys = config.shape.head_channels - config.rotary_channels
    values = _find_latent(config).value_channels
    return tuple(
        row
        for head in range(heads)
        for row in (
            *range(head * keys, (head + 1) * keys),
            *range(heads * keys + head * values, heads * keys + (head + 1) * values),
        )
    )


def _find_latent(config: DecoderConfig) -> LatentAttention:
    assert isinstance(config.attention, LatentAttention), "the family is one of latent attention"
    return config.attention


def order_by_head(config: DecoderConfig) -> tuple[int, ...]:
    """Return the order of rows that hold the query, key and value of one head after another."""
    return _stack_heads(config.shape.heads, config.shape.head_channels)


@functools.lru_cache(maxsize=16)
def _stack_heads(heads: int, width: int) -> tuple[int, ...]:
    return tuple(
        (part * heads + head) * width + channel
        for head in range(heads)
        for part in range(3)
        for channel in range(width)
    )
