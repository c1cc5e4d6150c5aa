"""The report's look at completions themselves: the worst, the best, and those that a trained reward
likes and a verifier does not."""

from collections.abc import Sequence

from trainrig.report import Block, Details, SampleGroup, Text, TextSample, format_percent
from trainrig.train.run.stored_answers import BatchAnswers, StoredAnswer

SHOWN = 2  # at either end of a batch


def build_answer_samples(batches: Sequence[BatchAnswers], measured: Sequence[str]) -> list[Block]:
    """Blocks of what was said at some steps, the last one open; `measured`: parts of the reward
    that have no weight in it."""
    if not batches:
        return []
    last = batches[-1]
    said = Text(
        f"The worst and the best of {len(last.answers):,} completions of the last batch, drawn "
        f"after {last.step:,} updates; earlier ones are folded below."
    )
    blocks: list[Block] = [said, *_pick_ends(last)]
    blocks += [each for name in measured if (each := _find_overrated(last, name)) is not None]
    for batch in reversed(batches[:-1]):
        summary = f"The worst and the best after {batch.step:,} updates"
        blocks.append(Details(summary, tuple(_pick_ends(batch))))
    return blocks


def _pick_ends(batch: BatchAnswers) -> list[SampleGroup]:
    ordered = batch.sort_by_worth()
    some = min(SHOWN, len(ordered) // 2)
    if not some:
        return [SampleGroup((_build_sample("The only one", ordered[0]),))]
    worst, best = ordered[:some], ordered[-some:][::-1]
    return [
        SampleGroup(tuple(_build_sample(label, each) for each in some_of))
        for label, some_of in (("Among the worst", worst), ("Among the best", best))
    ]


def _find_overrated(batch: BatchAnswers, name: str) -> Block | None:
    """Those worth at least the batch's mean that the part `name`, which has no weight, gives less
    than its own; None: there are none."""
    known = [each for each in batch.answers if name in each.parts]
    if not known:
        return None
    mean = sum(each.reward for each in known) / len(known)
    of_part = sum(each.parts[name] for each in known) / len(known)
    found = [e for e in known if e.reward >= mean and e.parts[name] < of_part]
    if not found:
        return None
    found.sort(key=lambda each: -each.reward)
    samples = tuple(_build_sample("Overrated", each) for each in found[:SHOWN])
    said = Text(
        f"{format_percent(len(found), len(known))} of the completions after {batch.step:,} updates "
        f"are worth the mean or more, though '{name}', which is measured and not trained on, gives "
        "them less than its mean: where the trained reward may be fooled."
    )
    return Details(f"What the reward likes and '{name}' does not", (said, SampleGroup(samples)))


def _build_sample(label: str, answer: StoredAnswer) -> TextSample:
    parts = ", ".join(f"{name} {score:.3g}" for name, score in answer.parts.items())
    note = f"reward {answer.reward:.3g}, advantage {answer.advantage:+.2f}"
    return TextSample(label, f"{answer.prompt}\n→ {answer.text}", f"{note}; {parts}".rstrip("; "))
