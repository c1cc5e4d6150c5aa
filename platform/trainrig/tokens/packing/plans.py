"""The packing plans that tokenizing writes beside its shards, for packings that need one."""

from typing import Annotated, Any

from pydantic import Field

from trainrig.config import Settings
from trainrig.manifest import FileSum
from trainrig.tokens.packing.best_fit_plan import write_best_fit_plan
from trainrig.tokens.packing.shuffle_plan import write_shuffle_plan
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import TokenShards


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
