"""Batched greedy decoding.

All rows of a batch are at the same position: rows with shorter prompts already generate while the
longer prompts are still read. So no row needs padding on the left, and each token attends to the
same tokens as without a batch.
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
    """The conditions that end an answer."""

    ids: Collection[int]  # stop tokens, which are not part of the answer
    maximum_tokens: int
    entries: int  # vocabulary size; higher ids only pad the embedding table
    done: Callable[[Sequence[int]], bool]  # returns True if the answer's tokens are complete


@torch.inference_mode()
def answer_greedily(
    model: Decoder, requests: Sequence[GenerationRequest], stop: StopRule, batch_tokens: int
) -> list[Ids]:
    """Return the tokens of the greedy answer to each prompt, in the order of `requests`.

    A batch has at most `batch_tokens` tokens, answers and padding included, or else one request.
    """
    answers: list[Ids] = [()] * len(requests)
    for batch in _iterate_batches(requests, stop.maximum_tokens, batch_tokens):
        prompts = [requests[number].prompt for number in batch]
        for number, answer in zip(batch, _answer(model, prompts, stop), strict=True):
            answers[number] = answer
    return answers


def _iterate_batches(
    requests: Sequence[GenerationRequest], answer_tokens: int, batch_tokens: int
) -> Iterator[list[int]]:
    """Yield batches of indices of requests, with the shortest prompts first."""
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
    """One prompt, with the answer generated so far."""

    def __init__(self, prompt: Ids) -> None:
        self.prompt = prompt
        self.answer = list[int]()
        self.ended = False

    def find_token(self, at: int) -> int:
        """Return the token at position `at`, in the prompt or in the answer."""
        return self.prompt[at] if at < len(self.prompt) else self.answer[at - len(self.prompt)]

    def take(self, at: int, likeliest: int, stop: StopRule) -> None:
        """Append `likeliest` to the answer, unless it has ended or `at` is in the prompt."""
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
        if 2 * len(going) <= len(live):  # drop ended rows once they are half of all
            live = [live[number] for number in going]
            reader = reader.select_rows(going)
        logits_BV = reader.read_last([[0] if row.ended else [row.find_token(at)] for row in live])
        at += 1


def _prefill(model: Decoder, prompts: Sequence[Ids]) -> tuple[Reader, Tensor]:
    """Read the prompts up to the length of the shortest; return the reader and logits [B, V]."""
    shortest = min(map(len, prompts))
    shared = min(count_common_prefix(prompts), shortest - 1)
    reader = Reader(model)
    if len(prompts) > 1 and shared:
        reader.read([prompts[0][:shared]])
        reader = reader.select_rows([0] * len(prompts))
    begin = len(reader)
    return reader, reader.read_last([prompt[begin:shortest] for prompt in prompts])
