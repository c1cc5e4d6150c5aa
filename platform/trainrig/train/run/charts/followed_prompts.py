"""The report's look at a few prompts over the run: how the answers to each change with steps."""

from collections.abc import Sequence

from trainrig.report import Block, SampleGroup, Text, TextSample
from trainrig.train.run.scores.answers import AnswerAt, FollowedPrompt

LONGEST = 600  # characters shown of a text: a screenful of a phone holds a prompt and an answer


def build_followed_prompts(followed: Sequence[FollowedPrompt], what: str) -> list[Block]:
    """Each prompt with its answers in order of steps; `what` those are. No blocks for no prompt."""
    if not followed:
        return []
    said = Text(f"The same prompts over the run: {what}. Equal ones in a row are shown once.")
    return [said, *map(_group, followed)]


def _group(followed: FollowedPrompt) -> SampleGroup:
    expected = "" if followed.expected is None else f"expected: {_shorten(followed.expected)}"
    samples = [TextSample(followed.source, _shorten(followed.prompt), expected)]
    for same in _group_equal(followed.answers):
        first, last = same[0], same[-1]
        steps = f"Step {first.step:,}"
        if first is not last:
            steps += f" to {last.step:,}, the same"
        note = f"{first.measure} {first.worth:.3g}"
        if not first.text.strip():
            note = f"nothing; {note}"
        samples.append(TextSample(steps, _shorten(first.text), note))
    return SampleGroup(tuple(samples), headed=True)


def _group_equal(answers: Sequence[AnswerAt]) -> list[list[AnswerAt]]:
    found: list[list[AnswerAt]] = []
    for each in answers:
        same = found and (found[-1][-1].text, found[-1][-1].worth) == (each.text, each.worth)
        if same:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _shorten(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} […] {text[-half:]}"
