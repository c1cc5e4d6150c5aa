"""How the documents of a source become rows of equal length: the choices that a run file has."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.tokens.packing.best_fit_rows import BestFitRows
from trainrig.tokens.packing.concatenated import Concatenated, Shuffled
from trainrig.tokens.packing.layout import Layout
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import TokenShards


class Concatenate(Settings):
    """Documents laid end to end and cut every T tokens, wherever that falls."""

    kind: Literal["Concatenate"] = "Concatenate"
    # Whether to lay documents in the order of the shuffle plan that `tokenize` left, rather than of
    # the shards: neighbours in a row are then strangers.
    shuffle_documents: bool = False


class BestFit(Settings):
    """Whole documents put together so that they fill rows; only longer ones are cut.

    Ding et al. 2024, "Fewer Truncations Improve Language Modeling", arXiv:2404.10830. Reads the
    plan that tokenizing left for the run's sequence length.
    """

    kind: Literal["BestFit"] = "BestFit"


# Add a new one here, and to `open_layout`.
Packing = Annotated[Concatenate | BestFit, Field(discriminator="kind")]


def open_layout(
    packing: Concatenate | BestFit,
    shards: TokenShards,
    sequence_length: int,
    cache: BlockCache | None = None,
) -> Layout:
    """`packing` of `shards` in base windows of `sequence_length` positions.

    `cache` is where blocks of a plan are kept if that is in a bucket. Raises ConfigError when the
    packing needs a plan that tokenizing did not write, DataError for a plan that is torn or was
    made for other shards.
    """
    if isinstance(packing, BestFit):
        return BestFitRows(shards, sequence_length, cache)
    if packing.shuffle_documents:
        return Shuffled(shards, sequence_length, cache)
    return Concatenated(shards, sequence_length)


__all__ = ["BestFit", "Concatenate", "Layout", "Packing", "open_layout"]
