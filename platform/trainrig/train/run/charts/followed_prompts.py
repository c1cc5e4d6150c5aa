"""A few prompts for the report, with the model's answers over the run."""

from collections.abc import Sequence

from trainrig.report import Block, SampleGroup, Text, TextSample
from trainrig.train.run.scores.answers import AnswerAt, FollowedPrompt

LONGEST = 600  # characters shown of a text: a phone's screen then holds a prompt and an answer


def build_followed_prompts(followed: Sequence[FollowedPrompt], what: str) -> list[Block]:
    """Build blocks with each prompt and its answers in order of steps; [] without prompts.

    `what` describes the answers.
    """
    if not followed:
        return []
    said = Text(f"The same prompts during the run: {what}. Equal answers in a row are shown once.")
    return [said, *map(_group, followed)]


def _group(followed: FollowedPrompt) -> SampleGroup:
    expected = "" if followed.expected is None else f"expected: {_shorten(followed.expected)}"
    samples = [TextSample(followed.source, _shorten(followed.prompt), expected)]
    for same in _group_equal(followed.answers):
        first = same[0]
        last = same[-1]
        steps = f"Step {first.step:,}"
        if first is not last:
            steps += f" to {last.step:,}, unchanged"
        note = f"{first.measure} {first.worth:.3g}"
        if not first.text.strip():
            note = f"no answer; {note}"
        samples.append(TextSample(steps, _shorten(first.text), note))
    return SampleGroup(tuple(samples), headed=True)


def _group_equal(answers: Sequence[AnswerAt]) -> list[list[AnswerAt]]:
    found: list[list[AnswerAt]] = []
    for answer in answers:
        same = found and (found[-1][-1].text, found[-1][-1].worth) == (answer.text, answer.worth)
        if same:
            found[-1].append(answer)
        else:
            found.append([answer])
    return found


def _shorten(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} […] {text[-half:]}"
