"""Conversations as token ids, with the loss weight of each token.

The chat template renders a conversation as one text, and the tokenizer encodes the text, as in
Transformers. Each answer is trained on as inference produces it (`chat_answers.py`): after the
prompt that the template renders at that turn, up to the special token that ends the turn. One
sample holds all answers that its text renders just as at their own turns. Some templates render
earlier turns differently once more turns follow: they drop the reasoning (Qwen3), an empty
reasoning block (Qwen3.5) or the stop token (gpt-oss). Such a conversation makes several samples,
and each answer is a target in one of them. The text of a message never becomes a special token.
If a message contains the name of a special token, BREAK is inserted into the name before
rendering and removed afterwards.

Published templates differ in the form of messages that they read.

The content is a text for most templates, and a list of parts for those of multimodal models. The
arguments of a tool call are an object for most, and JSON text for some. A tool call without text
has empty content for most, and null content for some. A template that gets the wrong form often
drops the content without an error, so the form is found by rendering a test conversation in each.
"""

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trainrig.tokens.chat.chat_answers import AnswerFinder, RenderedAnswer
from trainrig.tokens.chat.chat_messages import BREAK, BadRow, Conversation, Message, to_hundredths
from trainrig.tokens.chat_template import TemplateRefusal, render_chat
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.encode import Encoder

_QUESTION = "probing question"
_ANSWER = "probing answer"
_CALL = {
    "id": "callprobe",
    "type": "function",
    "function": {"name": "probed_tool", "arguments": {"place": "probed value"}},
}

Render = Callable[[Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True)
class MessageForm:
    """The choices in which the messages of different templates differ."""

    parts: bool = False  # content is a list of parts
    text_arguments: bool = False  # arguments of a tool call are JSON text
    null_content: bool = False  # the content of a tool call without text is null

    def apply(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return `message` in this form."""
        shown = dict(message)
        calls = shown.get("tool_calls")
        if calls and self.text_arguments:
            shown["tool_calls"] = [_with_text_arguments(call) for call in calls]
        if calls and self.null_content and not shown["content"]:
            shown["content"] = None
        elif self.parts:
            shown["content"] = [{"type": "text", "text": shown["content"]}]
        return shown


def find_message_form(render: Render) -> MessageForm:
    """Return the form of messages in which the template renders a test conversation completely.

    The plain form is taken if it works, or if no form works.
    """
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _ANSWER},
    ]
    form = MessageForm()
    if not _shows(render, form, turns, (_QUESTION, _ANSWER)):
        in_parts = MessageForm(parts=True)
        if _shows(render, in_parts, turns, (_QUESTION, _ANSWER)):
            form = in_parts
    calling = [
        turns[0],
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    ]
    for null_content in (False, True):
        for text_arguments in (False, True):
            tried = replace(form, null_content=null_content, text_arguments=text_arguments)
            if _shows(render, tried, calling, ("probed_tool", "probed value")):
                return tried
    return form


def _shows(
    render: Render, form: MessageForm, turns: Sequence[Mapping[str, Any]], words: Sequence[str]
) -> bool:
    try:
        text = render([form.apply(turn) for turn in turns])
    except TemplateRefusal:
        return False
    return all(word in text for word in words)


def _with_text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", call))
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": function} if "function" in call else function


Span = tuple[int, int]  # first character in the rendered text, and the one after the last


@dataclass(frozen=True)
class Rendered:
    """A conversation as token ids with loss weights, and as rendered text."""

    ids: Integers  # [T]
    weights: NDArray[np.uint8]  # [T] hundredths; 0: not trained on
    text: str
    turns: tuple[int, ...]  # indices of the turns that are trained on

    @property
    def prompt(self) -> int:
        """Number of tokens before the first that is trained on."""
        return int(np.flatnonzero(self.weights)[0])


@dataclass(frozen=True)
class _Sample:
    """A rendered text with the answers in it that are trained on."""

    text: str
    answers: tuple[RenderedAnswer, ...]


class ChatRenderer:
    """A chat template with its tokenizer, which can be pickled."""

    def __init__(
        self,
        encoder: Encoder,
        template: str,
        variables: Mapping[str, Any] | None = None,
        where: str = "chat_template",
    ) -> None:
        """Compile the template and find the form of messages that it reads.

        `variables` are variables of the template, such as `bos_token`; `where` names the template
        in errors. Raises ConfigError for a template that is not valid Jinja, or tries to leave its
        sandbox.
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
        """Return `messages` as rendered text; `prompt` opens the assistant's next turn."""
        return self._render(*self._break_all(messages, tools), prompt, {})

    def encode_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the token ids of `messages` as a prompt for the assistant's next turn.

        Raises TemplateRefusal if the template does not accept the messages.
        """
        ids, _ = self._encode_text(self.render_text(messages, tools, prompt=True))
        return ids

    def render(self, chat: Conversation) -> Rendered:
        """Return the sample of `chat` with its last answer.

        Earlier answers are targets too if the sample renders them unchanged. Raises BadRow if the
        template refuses the conversation or loses the words of an answer, and for a sample of which
        no token or every token would be trained on.
        """
        return self._encode_sample(self._find_samples(chat)[-1], chat)

    def render_samples(self, chat: Conversation) -> list[Rendered]:
        """Return the samples of `chat`, which together have each answer as a target once.

        There is one sample, unless the template renders earlier turns differently once more turns
        follow. The last sample is the one that `render` returns. Raises BadRow as `render` does.
        """
        return [self._encode_sample(sample, chat) for sample in self._find_samples(chat)]

    def ends_turns(self) -> bool:
        """Return whether a special token ends an answer, from which the model learns to stop.

        Returns True if the template refuses the plain conversation used for the test.
        """
        chat = Conversation((Message("user", "a"), Message("assistant", "b")))
        try:
            answer = self._answers.find(*self._break_all(chat.messages, ()), 1)
        except (TemplateRefusal, BadRow):
            return True
        return self._special.search(answer.closed, answer.begin) is not None

    def step_ends(self, chat: Conversation, steps: Sequence[str]) -> list[int]:
        """Return the index of the last token of each of `steps`, which make up the last turn.

        Indices count the token ids of `render`. Raises BadRow if the template changes the text of a
        step, or two steps end within one token.
        """
        sample = self._find_samples(chat)[-1]
        answer = sample.answers[-1]
        at = answer.begin
        ends = []
        for step in steps:
            shown: str = self._break_special_names(step)
            if (found := sample.text.find(shown, at)) < 0:
                raise BadRow(
                    "template_rewrites", f"the chat template changes the step {step[:40]!r}"
                )
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
        """Return `messages` as rendered text, with template variables replaced by `changed`.

        `messages` and `tools` contain no names of special tokens.
        """
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
        """Return the texts to train on, each with the answers rendered as at their own turns."""
        if not chat.trained_turns:
            raise BadRow("empty_mask", "the row has no turn of the assistant to train on")
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
        weights[:1] = 0  # the first token has no context to be predicted from
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
        """Return messages and tools as templates read them, with BREAK in special tokens' names."""
        return (
            [self._break_special_names(message.to_json()) for message in messages],
            [self._break_special_names(tool) for tool in tools],
        )

    def _break_special_names(self, value: Any) -> Any:
        """Return `value` with BREAK inserted into each name of a special token in its texts."""
        if isinstance(value, str):
            return self._special.sub(lambda m: m[0][:1] + BREAK + m[0][1:], value)
        if isinstance(value, Mapping):
            return {key: self._break_special_names(item) for key, item in value.items()}
        return (
            [self._break_special_names(item) for item in value]
            if isinstance(value, list | tuple)
            else value
        )

    def _encode_in_pieces(self, sample: _Sample) -> tuple[list[int], list[Span]]:
        """Return the token ids and spans of a sample, with no token across the end of a prompt.

        Inference encodes the prompt alone. If the pieces would decode to a different text, as with
        tokenizers that add a space before each text, the sample is encoded as a whole.
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
        """Return the token ids of a rendered text, and the span of each token in it."""
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
        """Append the ids and spans of `text`, ordinary text that begins at position `at`."""
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
    """Return the tokenizer with offsets that cover all of a text; some trim spaces from them."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not special
    tokenizer.post_processor = tokenizers.processors.Sequence([])
    return tokenizer
