"""The samples that an example is trained on as: rendered, split, and short enough."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainrig.tokens.chat.messages import BadRow, Conversation
from trainrig.tokens.chat.rendering import ChatRenderer, Rendered
from trainrig.tokens.chat.rows import Example
from trainrig.tokens.shards.shard_files import RIGHT_STEP, WRONG_STEP


@dataclass(frozen=True)
class SampleRules:
    """What becomes of an example that is too long, or that makes several samples."""

    longest: int  # tokens of a sample at most
    drop_turns: bool = False  # leave turns out of an example that is longer; False: refuse it
    split: bool = True  # train on all samples of a conversation; False: on the last one alone


@dataclass(frozen=True)
class Samples:
    """The samples of an example, and what was left out of it."""

    rendered: tuple[Rendered, ...]  # of pairs: chosen, rejected
    turns_dropped: int = 0  # so that the samples fit
    answers_left_out: int = 0  # answers that no sample trains on

    @property
    def tokens_repeated(self) -> int:
        """Number of tokens in samples of a conversation beside the last one, which has its text."""
        return sum(len(sample.ids) for sample in self.rendered[:-1])


def render_example(renderer: ChatRenderer, example: Example, chat: Conversation) -> Rendered:
    """`chat` of `example` as ids with weights; of a solution, those that tell right steps from
    wrong ones. Raises BadRow."""
    rendered = renderer.render(chat)
    if not example.steps:
        return rendered
    weights = np.zeros_like(rendered.weights)
    ends = renderer.step_ends(chat, example.steps)
    labels = np.array(example.step_labels or [0] * len(ends))
    weights[ends] = np.where(labels, RIGHT_STEP, WRONG_STEP)
    return replace(rendered, weights=weights)


def build_samples(renderer: ChatRenderer, example: Example, rules: SampleRules) -> Samples:
    """Return the samples that `example` is trained on as.

    A conversation makes one, or several where the template renders earlier turns otherwise once
    others follow. An answer to a prompt always makes one: that of its last turn. Raises BadRow.
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
    """`chat` less its last turns, or, of an answer to a prompt, the prompt's first; None: it has
    none to spare."""
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
