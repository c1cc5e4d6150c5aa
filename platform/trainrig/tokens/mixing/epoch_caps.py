"""Checks before a run starts whether it has enough data for its steps."""

import math
from collections.abc import Mapping

from trainrig.errors import ConfigError
from trainrig.tokens.mixing.timeline import Timeline


def check(timeline: Timeline, caps: Mapping[str, float], steps: int) -> dict[str, float]:
    """The epochs that `steps` steps make of each source, of which `caps` allows so many.

    Raises ConfigError for the source that reaches its cap first, or if all that a stage reads end
    before; it says with numbers what would work.
    """
    samples = timeline.find_first_sample(steps)
    if timeline.end is not None and samples > timeline.end:
        enough = timeline.find_step(timeline.end)
        raise ConfigError(
            f"batches: {timeline.describe_last_read()} reach their caps of epochs after {enough} "
            f"whole steps, but training.steps is {steps}; train for {enough} steps or fewer, or "
            "raise batches.epochs"
        )
    read = timeline.count_epochs_read(samples)
    beyond = {
        source: timeline.find_first_beyond(source, caps[source])
        for source, epochs in read.items()
        if epochs > caps[source]
    }
    if beyond:
        source = min(beyond, key=lambda each: (beyond[each], each))
        raise ConfigError(_explain_excess(timeline, source, caps[source], steps, beyond[source]))
    return read


def _explain_excess(timeline: Timeline, source: str, cap: float, steps: int, first: int) -> str:
    samples = timeline.find_first_sample(steps)
    epochs = timeline.count_epochs_read(samples)[source]
    enough = timeline.find_step(first)
    fewer = f"train for {enough} steps or fewer, " if enough else ""
    share = _compute_share(timeline, source, samples)
    lower = math.floor(share * cap / epochs * 1e4) / 1e4
    return (
        f"batches: source '{source}' would be read {epochs:.2f} times in {steps} steps, beyond its "
        f"cap of {cap:g} epochs; {fewer}give it less weight (about {lower:g} of the samples, not "
        f"{share:.4g}), set epochs.{source} = {math.ceil(epochs * 100) / 100:g}, or set "
        'when_exhausted = "renormalise"'
    )


def _compute_share(timeline: Timeline, source: str, samples: int) -> float:
    """The part of the first `samples` samples that is of `source`."""
    total = 0
    firsts = [segment.first for segment in timeline.segments]
    for segment, past in zip(timeline.segments, [*firsts[1:], samples], strict=True):
        count = min(past, samples) - segment.first
        if count > 0:
            total += segment.mixture.count_samples(count).get(source, 0)
    return total / samples
