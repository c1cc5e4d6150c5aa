"""Conversations as ids, with what each id counts as a target.

The template makes one text of a conversation, and the tokenizer ids of the text, as Transformers
does. Each answer is trained on as inference makes it (`answers.py`): behind the prompt that the
template gives at its turn, up to the special token that ends it there.

One sample holds all answers that stand in its text as they stand at their own turns. Some templates
render earlier turns otherwise later: they drop thoughts (Qwen3), an empty block of thoughts
(Qwen3.5) or the token by which a model stops (gpt-oss). Then there are several samples, and each
answer is a target in one of them.

No text can make a special token. Where a message has the name of one, BREAK is put into it before
it is rendered and taken out after.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trainrig.tokens.chat.answers import Answer, AnswerFinder
from trainrig.tokens.chat.message_forms import MessageForm, find_message_form
from trainrig.tokens.chat.messages import (
    BREAK,
    BadRow,
    Conversation,
    Message,
    to_hundredths,
)
from trainrig.tokens.chat_template import TemplateRefusal, render_chat
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.shard_files import FULL_WEIGHT

Span = tuple[int, int]  # characters of the rendered text


@dataclass(frozen=True)
class Rendered:
    """A conversation as ids, and as the text they are of."""

    ids: Integers  # [T]
    weights: NDArray[np.uint8]  # [T] hundredths; 0: not trained on
    text: str
    turns: tuple[int, ...]  # numbers of the turns that are trained on

    @property
    def prompt(self) -> int:
        """Ids before the first that is trained on."""
        return int(np.flatnonzero(self.weights)[0])


@dataclass(frozen=True)
class _Sample:
    """A text with the answers in it that are trained on."""

    text: str
    answers: tuple[Answer, ...]


class ChatRenderer:
    """A chat template with its tokenizer. May be pickled."""

    def __init__(
        self,
        encoder: Encoder,
        template: str,
        variables: Mapping[str, Any] | None = None,
        where: str = "chat_template",
    ) -> None:
        """`variables`: what the template may name, such as `bos_token`; `where`: see errors.

        Raises ConfigError for a template that is no Jinja, or reaches out of its sandbox.
        """
        self._given = (encoder, template, dict(variables or {}), where)
        self._encoder, self._template, self._variables, self._where = self._given
        self._names = sorted(encoder.special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, self._names)) or r"(?!)")
        self._form = MessageForm()
        self._form = find_message_form(self._render_plain)
        self._answers = AnswerFinder(self._special, self._render)

    def __reduce__(self) -> tuple[type["ChatRenderer"], tuple[Any, ...]]:
        return ChatRenderer, self._given

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], prompt: bool = False
    ) -> str:
        """What the template makes of `messages`; `prompt`: and the assistant is to speak."""
        return self._render(*self._break_all(messages, tools), prompt, {})

    def encode_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The ids after which the assistant is to speak. Raises TemplateRefusal."""
        ids, _ = self._encode_text(self.render_text(messages, tools, prompt=True))
        return ids

    def render(self, chat: Conversation) -> Rendered:
        """Return the sample of `chat` that holds its last answer, and earlier ones that stand in
        it unchanged.

        Raises BadRow for a conversation that the template does not take, for an answer that it
        renders without its words, and for a sample of which nothing or all would be trained on.
        """
        return self._encode_sample(self._find_samples(chat)[-1], chat)

    def render_samples(self, chat: Conversation) -> list[Rendered]:
        """Return the samples of `chat`, in which each answer is a target once.

        There is one, unless the template renders earlier turns otherwise once others follow. The
        last one is that of `render`. Raises BadRow as `render` does.
        """
        return [self._encode_sample(sample, chat) for sample in self._find_samples(chat)]

    def ends_turns(self) -> bool:
        """Whether a special token ends what the assistant says, by which a model learns to stop.
        True, too, for a template that takes no plain conversation: rows will tell."""
        chat = Conversation((Message("user", "a"), Message("assistant", "b")))
        try:
            answer = self._answers.find(*self._break_all(chat.messages, ()), 1)
        except (TemplateRefusal, BadRow):
            return True
        return self._special.search(answer.closed, answer.begin) is not None

    def step_ends(self, chat: Conversation, steps: Sequence[str]) -> list[int]:
        """The number of the last id of each of `steps`, of which the last turn of `chat` is made.

        Ids are those of `render`. Raises BadRow where the template renders steps otherwise, or two
        end within one token.
        """
        sample = self._find_samples(chat)[-1]
        answer = sample.answers[-1]
        at = answer.begin
        ends = []
        for step in steps:
            shown: str = self._break_special_names(step)
            if (found := sample.text.find(shown, at)) < 0:
                raise BadRow("template_rewrites", f"the step {step[:40]!r} is rendered otherwise")
            at = found + len(shown)
            ends.append(at)
        _, offsets = self._encode_in_pieces(sample)
        firsts = np.array(offsets, dtype=np.int64).reshape(-1, 2)[:, 0]
        places: list[int] = (np.searchsorted(firsts, ends) - 1).tolist()
        if len(set(places)) < len(places):
            raise BadRow("steps_share_a_token", "two steps end within one token")
        return places

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        prompt: bool,
        changed: Mapping[str, Any],
    ) -> str:
        """The text of `messages` without special names; `changed`: variables of the template."""
        return render_chat(
            self._template,
            [self._form.apply(message) for message in messages],
            {**self._variables, "tools": list(tools) or None, **changed},
            add_generation_prompt=prompt,
            where=self._where,
        )

    def _render_plain(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self._render(messages, (), False, {})

    def _find_samples(self, chat: Conversation) -> list[_Sample]:
        """The texts to train on, each with the answers that stand in it as at their own turns."""
        if not chat.trained_turns:
            raise BadRow("empty_mask", "no turn of the assistant would be trained on")
        messages, tools = self._break_all(chat.messages, chat.tools)
        try:
            left = [self._answers.find(messages, tools, number) for number in chat.trained_turns]
            whole = self._render(messages, tools, False, {})
        except TemplateRefusal as error:
            raise BadRow("template_refuses", str(error)) from None
        samples = []
        while left:
            last = left[-1]
            text = whole if whole.startswith(last.closed) else last.text
            there = tuple(answer for answer in left if text.startswith(answer.closed))
            samples.append(_Sample(text, there))
            left = [answer for answer in left if answer not in there]
        return samples[::-1]

    def _encode_sample(self, sample: _Sample, chat: Conversation) -> Rendered:
        ids, offsets = self._encode_in_pieces(sample)
        weights = np.zeros(len(ids), dtype=np.uint8)
        firsts, pasts = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
        for answer in sample.answers:
            weight = to_hundredths(chat.messages[answer.number].weight)
            weights[(firsts < len(answer.closed)) & (pasts > answer.begin)] = weight
        weights[:1] = 0  # nothing stands before it to predict it from
        if not weights.any():
            raise BadRow("empty_mask", "nothing of the rendered text would be trained on")
        if len(ids) > 1 and weights[1:].all():
            raise BadRow("full_mask", "all of the rendered text would be trained on")
        text = sample.text.replace(BREAK, "")
        turns = tuple(answer.number for answer in sample.answers)
        return Rendered(np.array(ids, dtype=np.int64), weights, text, turns)

    def _break_all(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Messages and tools as the template reads them, with no name of a special token."""
        return (
            [self._break_special_names(message.as_json()) for message in messages],
            [self._break_special_names(tool) for tool in tools],
        )

    def _break_special_names(self, value: Any) -> Any:
        """`value` with BREAK in each name of a special token that its texts have."""
        if isinstance(value, str):
            return self._special.sub(lambda m: m[0][:1] + BREAK + m[0][1:], value)
        if isinstance(value, Mapping):
            return {key: self._break_special_names(each) for key, each in value.items()}
        return (
            [self._break_special_names(each) for each in value]
            if isinstance(value, list | tuple)
            else value
        )

    def _encode_in_pieces(self, sample: _Sample) -> tuple[list[int], list[Span]]:
        """Ids of a sample, in which no token holds both the end of a prompt and what follows it:
        inference gives the ids of the prompt alone.

        Where the pieces would be another text, as of tokenizers that begin each text with a space,
        tokens stay as they are.
        """
        ids, offsets = self._encode_text(sample.text)
        begins = [answer.begin for answer in sample.answers]
        cuts = sorted(at for at in begins if any(first < at < past for first, past in offsets))
        if not cuts:
            return ids, offsets
        pieces: list[int] = []
        places: list[Span] = []
        for begin, end in itertools.pairwise([0, *cuts, len(sample.text)]):
            found, there = self._encode_text(sample.text[begin:end])
            pieces += found
            places += [(begin + first, begin + past) for first, past in there]
        same = self._encoder.decode_bytes(pieces) == self._encoder.decode_bytes(ids)
        return (pieces, places) if same else (ids, offsets)

    def _encode_text(self, text: str) -> tuple[list[int], list[Span]]:
        """Ids of a rendered text, and where each stands in it."""
        if BREAK not in text:
            found = self._tokenizer.encode(text, add_special_tokens=False)
            return found.ids, found.offsets
        ids: list[int] = []
        offsets: list[Span] = []
        at = 0
        for match in [*self._special.finditer(text), None]:
            begin, end = match.span() if match else (len(text), len(text))
            self._extend(ids, offsets, text[at:begin], at)
            if match:
                ids.append(self._encoder.special_ids[match[0]])
                offsets.append((begin, end))
            at = end
        return ids, offsets

    def _extend(self, ids: list[int], offsets: list[Span], text: str, at: int) -> None:
        """Add the ids of a text between special tokens, at `at`, none of them special."""
        plain = text.replace(BREAK, "")
        places = [n for n, character in enumerate(text) if character != BREAK] + [len(text)]
        found = self._plain_tokenizer.encode(plain, add_special_tokens=False)
        ids += found.ids
        offsets += [(at + places[begin], at + places[end]) for begin, end in found.offsets]

    @functools.cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        return _disable_trimming(self._encoder.text, special=True)

    @functools.cached_property
    def _plain_tokenizer(self) -> tokenizers.Tokenizer:
        return _disable_trimming(self._encoder.text, special=False)


def _disable_trimming(tokenizer_json: str, special: bool) -> tokenizers.Tokenizer:
    """The tokenizer, whose offsets cover all of a text: some leave spaces out of them."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not special
    tokenizer.post_processor = tokenizers.processors.Sequence([])
    return tokenizer


__all__ = ["FULL_WEIGHT", "ChatRenderer", "Rendered"]
