"""Run-file settings for packing: how documents become rows of equal length, and by which plans.

Tokenizing writes the plans beside its shards, for packings that need one.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.manifest import FileSum
from trainrig.tokens.rows.best_fit import BestFitRows, write_best_fit_plan
from trainrig.tokens.rows.concatenated import Concatenated, Shuffled, write_shuffle_plan
from trainrig.tokens.shards.block_cache import BlockCache
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
) -> Concatenated | BestFitRows:
    """Open the rows of `shards` under `packing`, in base windows of `sequence_length` positions.

    `cache` keeps blocks of a plan that is in a bucket. Raises ConfigError if the packing needs a
    plan that tokenizing did not write, DataError if the plan is damaged or for other shards.
    """
    if isinstance(packing, BestFit):
        return BestFitRows(shards, sequence_length, cache)
    if packing.shuffle_documents:
        return Shuffled(shards, sequence_length, cache)
    return Concatenated(shards, sequence_length)


class PackingPlan(Settings):
    """Packing plans to write beside new shards; plans of existing shards are never changed."""

    # Whether to write the plan that the packing `Concatenate` needs for `shuffle_documents`.
    shuffle_documents: bool = False
    seed: int = 0  # random seed of that shuffle
    # Sequence lengths, in tokens, for which to write a plan for the packing `BestFit`.
    best_fit: tuple[Annotated[int, Field(ge=1)], ...] = ()


def write_plans(
    folder: str, plans: PackingPlan, cache: BlockCache | None = None, *, padding: int
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Write `plans` for the shards in `folder`; return counts, and file sums by relative path.

    Plans depend on the order of the shards, which is that of their names. `padding` is the id that
    fills the rest of best-fit rows; `cache` keeps blocks of shards that are in a bucket.
    """
    counts: dict[str, Any] = {}
    files: dict[str, FileSum] = {}
    if not plans.shuffle_documents and not plans.best_fit:
        return counts, files
    shards = TokenShards.open(folder, cache)
    if plans.shuffle_documents:
        counts["shuffle"], written = write_shuffle_plan(shards, plans.seed)
        files |= written
    for length in sorted(set(plans.best_fit)):
        counts.setdefault("best_fit", {})[str(length)], written = write_best_fit_plan(
            shards, length, padding
        )
        files |= written
    return counts, files
