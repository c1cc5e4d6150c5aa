"""Sample completions for the report: the worst, the best, and the overrated ones.

Overrated completions are those that a trained reward rates high and a verifier low.
"""

from collections.abc import Sequence

from trainrig.report import Block, Details, SampleGroup, Text, TextSample, format_percent
from trainrig.train.run.stored_answers import BatchAnswers, StoredAnswer

SHOWN = 2  # samples from either end of a batch


def build_answer_samples(batches: Sequence[BatchAnswers], measured: Sequence[str]) -> list[Block]:
    """Build blocks with completions of some batches, the newest one unfolded.

    `measured`: parts of the reward that have no weight in it. Returns [] without batches.
    """
    if not batches:
        return []
    last = batches[-1]
    said = Text(
        f"The worst and the best of {len(last.answers):,} completions in the last batch, "
        f"sampled after {last.step:,} updates. Earlier batches are folded below."
    )
    blocks: list[Block] = [said, *_pick_ends(last)]
    blocks += [
        overrated for name in measured if (overrated := _find_overrated(last, name)) is not None
    ]
    for batch in reversed(batches[:-1]):
        summary = f"The worst and the best after {batch.step:,} updates"
        blocks.append(Details(summary, tuple(_pick_ends(batch))))
    return blocks


def _pick_ends(batch: BatchAnswers) -> list[SampleGroup]:
    ordered = batch.sort_by_worth()
    some = min(SHOWN, len(ordered) // 2)
    if not some:
        return [SampleGroup((_build_sample("The only one", ordered[0]),))]
    worst = ordered[:some]
    best = ordered[-some:][::-1]
    return [
        SampleGroup(tuple(_build_sample(label, answer) for answer in some_of))
        for label, some_of in (("Among the worst", worst), ("Among the best", best))
    ]


def _find_overrated(batch: BatchAnswers, name: str) -> Block | None:
    """Build a block with completions whose reward is high although the part `name` is low.

    That is a reward of at least the batch's mean, with a score by the part `name`, which has no
    weight in the reward, below its mean. Returns None if there are none.
    """
    known = [answer for answer in batch.answers if name in answer.parts]
    if not known:
        return None
    mean = sum(answer.reward for answer in known) / len(known)
    of_part = sum(answer.parts[name] for answer in known) / len(known)
    found = [e for e in known if e.reward >= mean and e.parts[name] < of_part]
    if not found:
        return None
    found.sort(key=lambda answer: -answer.reward)
    samples = tuple(_build_sample("Overrated", answer) for answer in found[:SHOWN])
    said = Text(
        f"{format_percent(len(found), len(known))} of the completions after "
        f"{batch.step:,} updates have at least the mean reward, but less than the mean "
        f"'{name}', which is measured but not trained on. The trained reward may be "
        "misleading there."
    )
    return Details(f"High reward, but low '{name}'", (said, SampleGroup(samples)))


def _build_sample(label: str, answer: StoredAnswer) -> TextSample:
    parts = ", ".join(f"{name} {score:.3g}" for name, score in answer.parts.items())
    note = f"reward {answer.reward:.3g}, advantage {answer.advantage:+.2f}"
    return TextSample(label, f"{answer.prompt}\n→ {answer.text}", f"{note}; {parts}".rstrip("; "))
