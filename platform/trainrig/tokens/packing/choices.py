"""Run-file settings for packing: how the documents of a source become rows of equal length."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.tokens.packing.best_fit_rows import BestFitRows
from trainrig.tokens.packing.concatenated import Concatenated, Shuffled
from trainrig.tokens.packing.layout import Layout
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import TokenShards


class Concatenate(Settings):
    """Packing that concatenates all documents and cuts the result every `sequence_length` ids."""

    kind: Literal["Concatenate"] = "Concatenate"
    # Whether documents are ordered by the shuffle plan that `tokenize` wrote instead of by their
    # place in the shards. Neighbours in a row are then unrelated.
    shuffle_documents: bool = False


class BestFit(Settings):
    """Packing that combines whole documents into full rows and cuts only longer documents.

    Ding et al. 2024, "Fewer Truncations Improve Language Modeling", arXiv:2404.10830. Reads the
    plan that `tokenize` wrote for the run's sequence length.
    """

    kind: Literal["BestFit"] = "BestFit"


# Add a new packing here, and to `open_layout`.
Packing = Annotated[Concatenate | BestFit, Field(discriminator="kind")]


def open_layout(
    packing: Concatenate | BestFit,
    shards: TokenShards,
    sequence_length: int,
    cache: BlockCache | None = None,
) -> Layout:
    """Open the rows of `shards` under `packing`, in base windows of `sequence_length` positions.

    `cache` keeps blocks of a plan that is in a bucket. Raises ConfigError if the packing needs a
    plan that tokenizing did not write, DataError if the plan is damaged or for other shards.
    """
    if isinstance(packing, BestFit):
        return BestFitRows(shards, sequence_length, cache)
    if packing.shuffle_documents:
        return Shuffled(shards, sequence_length, cache)
    return Concatenated(shards, sequence_length)


__all__ = ["BestFit", "Concatenate", "Layout", "Packing", "open_layout"]
