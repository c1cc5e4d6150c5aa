"""Report on the rows that objectives make: places, their kinds, and padding."""

from collections.abc import Sequence

from trainrig.objectives import CausalLM, PrefixLM, SpanCorruption
from trainrig.objectives.denoising.mixture import MixtureBase
from trainrig.tokens.rows.batch_stages import (
    BatchSettings,
    StageSizes,
)


def describe_rows(objective: CausalLM, batches: BatchSettings) -> dict[str, str]:
    """Return a description of each kind of row that `objective` makes, at each sequence length.

    The share of padding is included if there is any. {} if rows stay as they are.
    """
    stages = batches.resolve_stages()
    lengths = sorted({stage.sequence_length for stage in stages})
    if isinstance(objective, MixtureBase):
        named = {f"rows_of_{part.name}": part.objective for part in objective.list_named()}
    else:
        named = {"rows": objective}
    described = {
        name: "; ".join(_describe(part, length) for length in lengths)
        for name, part in named.items()
        if isinstance(part, PrefixLM | SpanCorruption)
    }
    if not any(isinstance(part, SpanCorruption) for part in named.values()):
        return described
    share = max(compute_padded_share(objective, stage) for stage in stages)
    apart = (
        ", plus the padding of rows with fewer documents" if batches.attend == "document" else ""
    )
    return described | {"padded": f"{share:.1%} of positions{apart}"}


def _describe(objective: PrefixLM | SpanCorruption, length: int) -> str:
    if isinstance(objective, PrefixLM):
        said = objective.compute_trained_share(length) * length
        read = f"{length - said:g} seen in both directions and {said:g} predicted, on average"
        return f"{length} positions: {read}"
    read_places, said_places = objective.compute_lengths(length)
    if not objective.joined:
        return (
            f"{read_places} encoder positions and {said_places} decoder positions, from {length} "
            "tokens"
        )
    return (
        f"{objective.compute_row_length(length)} positions from {length} tokens: {read_places} "
        f"seen in both directions and {said_places} predicted, of which the last is not an input"
    )


def compute_padded_share(objective: CausalLM, stage: StageSizes) -> float:
    """Return the expected share of the places of `stage` that is padding.

    Rows are padded to the widest row of their micro-batch. 0 if all rows of a micro-batch are of
    one objective.
    """
    if not isinstance(objective, MixtureBase) or objective.one_per_micro_batch:
        return 0.0
    widths = [
        (share, _compute_widths(part, stage.sequence_length)) for share, part in objective.parts()
    ]
    filled = sum(share * sum(of_row) for share, of_row in widths)
    places = sum(
        _compute_mean_widest([(share, of_row[side]) for share, of_row in widths], stage.micro_batch)
        for side in (0, 1)
    )
    return 1 - filled / places


def _compute_widths(objective: CausalLM, length: int) -> tuple[int, int]:
    """Return the places of the encoder, or of a decoder alone, and of a decoder with an encoder."""
    if isinstance(objective, SpanCorruption):
        return (
            (objective.compute_row_length(length), 0)
            if objective.joined
            else objective.compute_lengths(length)
        )
    return length, 0


def _compute_mean_widest(widths: Sequence[tuple[float, int]], rows: int) -> float:
    """Return the mean width of the widest of `rows` rows, given the share of each width."""
    mean = 0.0
    below = 0.0
    up_to = 0.0
    for share, width in sorted(widths, key=lambda pair: pair[1]):
        up_to = min(up_to + share, 1.0)
        mean += width * (up_to**rows - below)
        below = up_to**rows
    return mean
