"""Greedy decoding and log-likelihoods in batches, which read common prefixes once.

In decoding, all rows of a batch are at the same position: rows with shorter prompts already
generate while the longer prompts are still read. So no row needs padding on the left, and each
token attends to the same tokens as without a batch.

A batch of log-likelihoods depends on its requests alone: the common prefix of all its contexts (the
few-shot rows) is read once, then each context once, then each continuation once. So a score is
bit-identical on every worker; its last digits may change only if the batch changes.

Shapes: B rows, T positions, N tokens of continuations or places, V entries of the vocabulary.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig.evaluate.engine.request_encoding import GenerationRequest, LikelihoodRequest
from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import Decoder

Ids = tuple[int, ...]


class Reader:
    """A model with the cached keys and values of B rows of the same length."""

    def __init__(self, model: Decoder, caches: list[KeyValueCache] | None = None) -> None:
        self.model = model
        self.device = model.embedding.weight.device
        self._caches = caches or [KeyValueCache() for _ in model.layers]

    def __len__(self) -> int:
        """Return the number of positions read."""
        return len(self._caches[0])

    def read(self, ids_BT: Sequence[Sequence[int]], places: Sequence[int] = ()) -> Tensor:
        """Append `ids_BT` to the cached rows and return the logits [N, V] at `places`.

        `places` are indices into the B * T new positions, counted row by row.
        """
        ids = torch.tensor([list(row) for row in ids_BT], device=self.device)
        wanted_N = torch.tensor(list(places), dtype=torch.long, device=self.device)
        logits_NV: Tensor = self.model(ids, self._caches, places_N=wanted_N).logits
        return logits_NV

    def read_last(self, ids_BT: Sequence[Sequence[int]]) -> Tensor:
        """Append `ids_BT` and return the logits [B, V] of the token after each row."""
        width = len(ids_BT[0])
        return self.read(ids_BT, [row * width + width - 1 for row in range(len(ids_BT))])

    def select_rows(self, chosen: Sequence[int]) -> "Reader":
        """Return a reader of the rows `chosen`, indices that may repeat."""
        if not len(self):
            return Reader(self.model)
        places = torch.tensor(list(chosen), device=self.device)
        return Reader(self.model, [cache.select(places) for cache in self._caches])


def count_common_prefix(rows: Sequence[Ids]) -> int:
    """Return the length of the common prefix of all `rows`."""
    first = min(rows)  # the lexical extremes have no longer common prefix than all rows
    last = max(rows)
    count = 0
    for mine, other in zip(first, last, strict=False):
        if mine != other:
            break
        count += 1
    return count


def pad_rows(rows: Sequence[Ids]) -> list[Ids]:
    """Return `rows` padded on the right to the same length, which a causal model ignores."""
    longest = max(map(len, rows))
    return [row + (0,) * (longest - len(row)) for row in rows]


LEAST_SHARED = 8  # shortest common prefix, in tokens, for which reading it separately pays


@dataclass(frozen=True)
class ContinuationScore:
    """The likelihood of one continuation."""

    log_likelihood: float  # nats, summed over its tokens
    greedy: bool  # true: each token is the model's likeliest
    tokens: int


@dataclass
class _Group:
    """Requests with the same context; requests may share a row of input tokens."""

    context: Ids
    requests: list[int]  # indices of the requests
    rows: list[Ids]  # context and continuation without its last token
    places: list[int]  # index of the row of each request

    @property
    def longest(self) -> int:
        return max(map(len, self.rows))


@torch.inference_mode()
def score_continuations(
    model: Decoder, requests: Sequence[LikelihoodRequest], batch_tokens: int
) -> list[ContinuationScore]:
    """Return the score of each request, in the order of `requests`.

    A batch has at most `batch_tokens` tokens, padding included, or else a single context.
    """
    scores: dict[int, ContinuationScore] = {}
    for batch in _iterate_group_batches(_group_by_context(requests), batch_tokens):
        asked = [number for group in batch for number in group.requests]
        nats_N, likeliest_N = _read(model, batch, requests)
        place = 0
        for number in asked:
            count = len(requests[number].continuation)
            own = slice(place, place + count)
            scores[number] = ContinuationScore(
                float(nats_N[own].double().sum()), bool(likeliest_N[own].all()), count
            )
            place += count
    return [scores[number] for number in range(len(requests))]


def _group_by_context(requests: Sequence[LikelihoodRequest]) -> list[_Group]:
    """Group requests by context, with the shortest contexts first."""
    by_context: dict[Ids, list[int]] = {}
    for number, request in enumerate(requests):
        by_context.setdefault(request.context, []).append(number)
    groups = [_group(context, numbers, requests) for context, numbers in by_context.items()]
    return sorted(groups, key=lambda group: (len(group.context), group.longest, group.requests[0]))


def _group(context: Ids, numbers: list[int], requests: Sequence[LikelihoodRequest]) -> _Group:
    """Build the group of one context, without rows that are prefixes of other rows.

    Answers of one token all share one row.
    """
    inputs = [context + requests[number].continuation[:-1] for number in numbers]
    rows: list[Ids] = []
    for tokens in sorted(set(inputs), key=len, reverse=True):
        if not any(row[: len(tokens)] == tokens for row in rows):
            rows.append(tokens)
    places = [next(i for i, row in enumerate(rows) if row[: len(x)] == x) for x in inputs]
    return _Group(context, numbers, rows, places)


def _iterate_group_batches(groups: Sequence[_Group], batch_tokens: int) -> Iterator[list[_Group]]:
    batch: list[_Group] = []
    rows = longest = 0
    for group in groups:
        wide = max(longest, group.longest)
        if batch and (rows + len(group.rows)) * wide > batch_tokens:
            yield batch
            batch = []
            rows = 0
            wide = group.longest
        batch.append(group)
        rows = rows + len(group.rows)
        longest = wide
    if batch:
        yield batch


def _read(
    model: Decoder, batch: Sequence[_Group], requests: Sequence[LikelihoodRequest]
) -> tuple[Tensor, Tensor]:
    """Return the log-likelihood of each continuation token, and whether it is the likeliest.

    Both have shape [N]. Tokens are in the order of groups and their requests. The last token of a
    context is read together with the continuation, since it predicts the continuation's first
    token.
    """
    shortest = min(len(group.context) for group in batch) - 1
    shared = min(count_common_prefix([group.context for group in batch]), shortest)
    reader = Reader(model)
    if len(batch) > 1 and shared >= LEAST_SHARED:
        reader.read([batch[0].context[:shared]])
        reader = reader.select_rows([0] * len(batch))
    if any(len(group.rows) > 1 for group in batch) and shortest > len(reader):
        begin = len(reader)
        reader.read([group.context[begin:shortest] for group in batch])
    owners = [number for number, group in enumerate(batch) for _ in group.rows]
    offset = len(reader)
    if owners != list(range(len(batch))):
        reader = reader.select_rows(owners)
    rows = pad_rows([row[offset:] for group in batch for row in group.rows])
    places = list[int]()
    targets = list[int]()
    first = 0  # row of the group
    for group in batch:
        for number, row in zip(group.requests, group.places, strict=True):
            asked = requests[number]
            begin = (first + row) * len(rows[0]) + len(asked.context) - 1 - offset
            places += range(begin, begin + len(asked.continuation))
            targets += asked.continuation
        first += len(group.rows)
    nats_NV = reader.read(rows, places).float().log_softmax(-1)
    targets_N = torch.tensor(targets, device=reader.device)
    chosen_N = nats_NV.gather(-1, targets_N[:, None])[:, 0]
    return chosen_N.cpu(), (nats_NV.argmax(-1) == targets_N).cpu()


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
    for batch in _iterate_prompt_batches(requests, stop.maximum_tokens, batch_tokens):
        prompts = [requests[number].prompt for number in batch]
        for number, answer in zip(batch, _answer(model, prompts, stop), strict=True):
            answers[number] = answer
    return answers


def _iterate_prompt_batches(
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
