"""Check, before a run starts, that it has enough data for its steps."""

import math
from collections.abc import Mapping

from trainrig.errors import ConfigError
from trainrig.tokens.mixing.timeline import Timeline


def check(timeline: Timeline, caps: Mapping[str, float], steps: int) -> dict[str, float]:
    """Return the epochs of each source that `steps` steps read; a fraction counts as such.

    Raises ConfigError if a source exceeds its entry of `caps`, or if all sources of a stage end
    too early. The message is about the source that reaches its cap first, and suggests values that
    would work.
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
        source = min(beyond, key=lambda name: (beyond[name], name))
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
    """Return the share of `source` in the first `samples` samples."""
    total = 0
    firsts = [segment.first for segment in timeline.segments]
    for segment, past in zip(timeline.segments, [*firsts[1:], samples], strict=True):
        count = min(past, samples) - segment.first
        if count > 0:
            total += segment.mixture.count_samples(count).get(source, 0)
    return total / samples
