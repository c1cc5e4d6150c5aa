"""Log-likelihoods of continuations, in batches that compute common prefixes once.

A batch depends on its requests alone: the common prefix of all its contexts (the few-shot rows) is
read once, then each context once, then each continuation once. So a score is bit-identical on every
worker; its last digits may change only if the batch changes.

Shapes: N tokens of continuations, V entries of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig.evaluate.engine.encoding import LikelihoodRequest
from trainrig.evaluate.engine.prefix_reading import Ids, Reader, count_common_prefix, pad_rows
from trainrig.models.decoder import Decoder

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
    for batch in _iterate_batches(_group_by_context(requests), batch_tokens):
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


def _iterate_batches(groups: Sequence[_Group], batch_tokens: int) -> Iterator[list[_Group]]:
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
