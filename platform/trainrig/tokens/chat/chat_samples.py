"""Training samples of an example: rendered by the chat template, split, and short enough."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainrig.tokens.chat.chat_messages import BadRow, Conversation
from trainrig.tokens.chat.example_rows import Example
from trainrig.tokens.chat.rendering import ChatRenderer, Rendered
from trainrig.tokens.shards.shard_files import RIGHT_STEP, WRONG_STEP


@dataclass(frozen=True)
class SampleRules:
    """Rules for examples that are too long, or that the template renders as several samples."""

    longest: int  # most tokens of a sample
    drop_turns: bool = False  # drop turns of an example that is too long; False: refuse the example
    split: bool = True  # train on all samples of a conversation; False: only on the last one


@dataclass(frozen=True)
class Samples:
    """The samples of an example, with counts of the turns and answers that were left out."""

    rendered: tuple[Rendered, ...]  # a pair has two: chosen, rejected
    turns_dropped: int = 0  # turns dropped to make the samples short enough
    answers_left_out: int = 0  # answers that no sample trains on

    @property
    def tokens_repeated(self) -> int:
        """Number of tokens in all samples but the last, which has the text of the conversation."""
        return sum(len(sample.ids) for sample in self.rendered[:-1])


def render_example(renderer: ChatRenderer, example: Example, chat: Conversation) -> Rendered:
    """Return `chat` of `example` as token ids with weights.

    For a solution in steps the weights mark the end of each step as right or wrong. Raises BadRow.
    """
    rendered = renderer.render(chat)
    if not example.steps:
        return rendered
    weights = np.zeros_like(rendered.weights)
    ends = renderer.step_ends(chat, example.steps)
    labels = np.array(example.step_labels or [0] * len(ends))
    weights[ends] = np.where(labels, RIGHT_STEP, WRONG_STEP)
    return replace(rendered, weights=weights)


def build_samples(renderer: ChatRenderer, example: Example, rules: SampleRules) -> Samples:
    """Render `example` as its training samples.

    A conversation makes one sample, or several if the template renders earlier turns differently
    once more turns follow. An answer to a prompt always makes one sample, for its last turn. Raises
    BadRow if the template cannot render the example, or a sample is too long.
    """
    chats = example.chats
    first = rendered = _render_all(renderer, example, chats, rules)
    dropped = 0
    while any(len(sample.ids) > rules.longest for sample in rendered) and rules.drop_turns:
        shorter = [_drop_turn(chat, example.kind) for chat in chats]
        if any(chat is None for chat in shorter):
            break
        left = tuple(chat for chat in shorter if chat is not None)
        dropped += len(chats[0].messages) - len(left[0].messages)
        chats = left
        rendered = _render_all(renderer, example, chats, rules)
    if any(len(sample.ids) > rules.longest for sample in rendered):
        longest = max(first, key=lambda sample: len(sample.ids))
        detail = f"{len(longest.ids)} tokens ({longest.prompt} before the answer), of "
        raise BadRow("too_long", f"{detail}{rules.longest}")
    answers = sum(len(chat.trained_turns) for chat in chats)
    left_out = answers - sum(len(sample.turns) for sample in rendered)
    return Samples(tuple(rendered), dropped, left_out)


def _render_all(
    renderer: ChatRenderer, example: Example, chats: Sequence[Conversation], rules: SampleRules
) -> list[Rendered]:
    if example.kind == "conversations" and rules.split:
        return [sample for chat in chats for sample in renderer.render_samples(chat)]
    return [render_example(renderer, example, chat) for chat in chats]


def _drop_turn(chat: Conversation, kind: str) -> Conversation | None:
    """Return `chat` with fewer turns, or None if no turn can be dropped.

    A conversation loses its last answer and all turns after the answer before that; an answer to a
    prompt loses the first turns of its prompt.
    """
    trained = chat.trained_turns
    if kind == "conversations":
        left = replace(chat, messages=chat.messages[: trained[-1]])
        last = max((n for n in left.trained_turns), default=None)
        return None if last is None else replace(left, messages=left.messages[: last + 1])
    kept = 1 if chat.messages[0].role in ("system", "developer") else 0
    users = [n for n, m in enumerate(chat.messages[: trained[0]]) if m.role == "user" and n > kept]
    if not users:
        return None
    return replace(chat, messages=chat.messages[:kept] + chat.messages[users[0] :])
