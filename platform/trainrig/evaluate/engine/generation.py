"""Greedy answers to prompts, many at a time.

Rows of a batch stand at one position: what is shorter is written on while the rest of the longer
prompts is still read. So none is padded on the left, and each token sees what it would see alone.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig.evaluate.engine.encoding import GenerationRequest
from trainrig.evaluate.engine.prefix_reading import Ids, Reader, count_common_prefix
from trainrig.models.decoder import Decoder


@dataclass(frozen=True)
class StopRule:
    """When an answer ends."""

    ids: Collection[int]  # at one of these, which is no part of it
    maximum_tokens: int
    entries: int  # ids from here on only pad the model's table
    done: Callable[[Sequence[int]], bool]  # whether the text of these tokens is all that is wanted


@torch.inference_mode()
def answer_greedily(
    model: Decoder, requests: Sequence[GenerationRequest], stop: StopRule, batch_tokens: int
) -> list[Ids]:
    """The tokens that `model` goes on with after each prompt, in the order of `requests`."""
    answers: list[Ids] = [()] * len(requests)
    for batch in _iterate_batches(requests, stop.maximum_tokens, batch_tokens):
        prompts = [requests[number].prompt for number in batch]
        for number, answer in zip(batch, _answer(model, prompts, stop), strict=True):
            answers[number] = answer
    return answers


def _iterate_batches(
    requests: Sequence[GenerationRequest], answer_tokens: int, batch_tokens: int
) -> Iterator[list[int]]:
    """Numbers of requests, the shortest prompts first."""
    order = sorted(range(len(requests)), key=lambda n: (len(requests[n].prompt), n))
    batch: list[int] = []
    for number in order:
        length = len(requests[number].prompt) + answer_tokens
        if batch and (len(batch) + 1) * length > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


class _Row:
    """One prompt, and what was written after it."""

    def __init__(self, prompt: Ids) -> None:
        self.prompt, self.answer, self.ended = prompt, list[int](), False

    def find_token(self, at: int) -> int:
        """The token at position `at`."""
        return self.prompt[at] if at < len(self.prompt) else self.answer[at - len(self.prompt)]

    def take(self, at: int, likeliest: int, stop: StopRule) -> None:
        """Go on with `likeliest` at position `at`, where the prompt has ended."""
        if at < len(self.prompt) or self.ended:
            return
        if likeliest in stop.ids:
            self.ended = True
            return
        self.answer.append(likeliest)
        self.ended = len(self.answer) >= stop.maximum_tokens or stop.done(self.answer)


def _answer(model: Decoder, prompts: Sequence[Ids], stop: StopRule) -> list[Ids]:
    rows = [_Row(prompt) for prompt in prompts]
    live = rows
    reader, logits_BV = _prefill(model, prompts)
    at = len(reader)
    while True:
        likeliest = logits_BV[:, : stop.entries].float().argmax(-1).tolist()
        for row, token in zip(live, likeliest, strict=True):
            row.take(at, token, stop)
        going = [number for number, row in enumerate(live) if not row.ended]
        if not going or at >= model.config.positions:
            return [tuple(row.answer) for row in rows]
        if 2 * len(going) <= len(live):  # what has ended is read on until it is half of all
            live = [live[number] for number in going]
            reader = reader.select_rows(going)
        logits_BV = reader.read_last([[0] if row.ended else [row.find_token(at)] for row in live])
        at += 1


def _prefill(model: Decoder, prompts: Sequence[Ids]) -> tuple[Reader, Tensor]:
    """A reader of what all prompts have, and the logits [B, V] after it."""
    shortest = min(map(len, prompts))
    shared = min(count_common_prefix(prompts), shortest - 1)
    reader = Reader(model)
    if len(prompts) > 1 and shared:
        reader.read([prompts[0][:shared]])
        reader = reader.select_rows([0] * len(prompts))
    begin = len(reader)
    return reader, reader.read_last([prompt[begin:shortest] for prompt in prompts])
