"""Writing on from prompts, one token at a time, many prompts at once.

Prompts of different length are filled up on the left; what fills them is seen by no token. A prompt
that several requests share is read once. What a request draws is keyed by its seed and the place,
so it depends on its own logits alone.

Shapes: B batch, P different prompts, T positions of the longest, V entries of the vocabulary.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.decoder import Decoder
from trainrig.models.generation.kv_cache import PreallocatedCache, WindowCache
from trainrig.models.generation.sampling import NextToken, Sampling, derive_stream, draw
from trainrig.models.output import ModelOutput

Stopped = Literal["end", "stop", "length", "positions"]


@dataclass(frozen=True)
class Request:
    """A prompt, and how it is written on from."""

    prompt: tuple[int, ...]
    sampling: Sampling
    # Told of each new id as it is drawn; true: the text is complete with it.
    listen: Callable[[int], bool] = lambda _: False
    # Tokens of the answer that end the prompt, as it is gone on with: the next is drawn by the
    # number that it would be drawn by had the answer not been left off.
    written: int = 0


@dataclass(frozen=True)
class Generation:
    """New tokens, and what ended them: a stop id, who listened, the wanted length, or the model's
    positions."""

    ids: tuple[int, ...]  # without prompt and without the stop id
    stopped: Stopped
    stop_id: int | None = None  # the one that ended it, where one did


@dataclass(frozen=True)
class ScoredGeneration:
    """New tokens with what the model gave for each."""

    generation: Generation
    # Of each id at the temperature of the request, before `top_k`, `top_p` and `min_p`; of the stop
    # id too.
    log_probabilities: tuple[float, ...]


def generate(
    model: Decoder,
    prompt: Sequence[int],
    sampling: Sampling,
    stop: Collection[int],
    entries: int | None = None,
) -> Generation:
    """Continue `prompt` until an id of `stop`, `sampling.maximum_tokens`, or the model's positions.

    As `generate_batch` for one request.
    """
    return generate_batch(model, [Request(tuple(prompt), sampling)], stop, entries)[0]


@torch.inference_mode()
def generate_batch(
    model: Decoder,
    requests: Sequence[Request],
    stop: Collection[int],
    entries: int | None = None,
) -> list[Generation]:
    """Continue each prompt until an id of `stop`, its `maximum_tokens`, or the model's positions.

    `entries` is the tokenizer's number of ids: those from there on only pad the model's table and
    are never drawn. The same arguments give the same tokens, on one kind of machine; a request gets
    the same in another batch, as far as the machine's kernels give a row the same bits in a batch
    of another shape.

    Raises DataError for a prompt that is empty or does not fit.
    """
    return [row.finish() for row in _write_on(model, requests, stop, entries)]


@torch.no_grad()
def generate_scored(
    model: Decoder,
    requests: Sequence[Request],
    stop: Collection[int],
    entries: int | None = None,
) -> list[ScoredGeneration]:
    """As `generate_batch`, with the log-probability of each id that was drawn.

    Without inference mode: what a sharded model gathers here may be trained on after. Raises
    ValueError for a temperature of 0, under which nothing is likely.
    """
    if any(request.sampling.temperature == 0 for request in requests):
        raise ValueError("log-probabilities are of a temperature above 0")
    rows = _write_on(model, requests, stop, entries, scored=True)
    return [row.finish_scored() for row in rows]


def _write_on(
    model: Decoder,
    requests: Sequence[Request],
    stop: Collection[int],
    entries: int | None,
    scored: bool = False,
) -> "list[OpenRequest]":
    rows = [OpenRequest(request, model.config.positions, stop) for request in requests]
    if not rows:
        return []
    batch = _Batch(model, rows)
    logits_BV = batch.read_prompts()
    while True:
        logits_BV = logits_BV[:, :entries]
        drawn_B = _draw_ids(logits_BV, rows)
        given_B = _log_probabilities(logits_BV, drawn_B, rows) if scored else [0.0] * len(rows)
        for row, drawn, given in zip(rows, drawn_B, given_B, strict=True):
            row.take(drawn, given)
        if all(row.stopped for row in rows):
            return rows
        logits_BV = batch.read(torch.tensor([[row.last] for row in rows]))


@dataclass
class OpenRequest:
    """One request on its way, which takes ids until it is complete."""

    request: Request
    positions: int
    stop: Collection[int]
    new: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    stopped: Stopped | None = None
    stop_id: int | None = None
    last: int = 0
    stream: int = field(init=False)  # of the numbers that it is drawn by

    def __post_init__(self) -> None:
        length = len(self.request.prompt)
        if not 1 <= length <= self.positions:
            raise DataError(
                f"a prompt of {length} tokens: this model reads from 1 to {self.positions}; "
                + ("shorten it" if length else "begin with the end-of-text token")
            )
        self._check_room()
        self.stream = derive_stream(self.request.sampling)

    @property
    def most(self) -> int:
        """New tokens, at most."""
        room = self.positions - len(self.request.prompt)
        return min(self.request.sampling.maximum_tokens, room)

    @property
    def next(self) -> NextToken:
        """The token that is drawn next."""
        sampling, said = self.request.sampling, tuple[int, ...]()
        if sampling.repetition_penalty != 1:
            said = (*self.request.prompt, *self.new)
        return NextToken(sampling, self.stream, self.request.written + len(self.new), said)

    def finish(self) -> Generation:
        """What came of it."""
        return Generation(tuple(self.new), self.stopped or "end", self.stop_id)

    def finish_scored(self) -> ScoredGeneration:
        """The same, with the log-probability of each id."""
        return ScoredGeneration(self.finish(), tuple(self.log_probabilities))

    def take(self, drawn: int, log_probability: float) -> None:
        """Write `drawn` down, unless the text is complete."""
        self.last = drawn
        if self.stopped:
            return
        self.log_probabilities.append(log_probability)
        if drawn in self.stop:
            self.stopped, self.stop_id = "end", drawn
            return
        self.new.append(drawn)
        if self.request.listen(drawn):
            self.stopped = "stop"
        elif len(self.new) == self.request.sampling.maximum_tokens:
            self.stopped = "length"
        else:
            self._check_room()

    def _check_room(self) -> None:
        if len(self.request.prompt) + len(self.new) == self.positions:
            self.stopped = "positions"


class _Batch:
    """The model's side: what it has read of all rows."""

    def __init__(self, model: Decoder, rows: Sequence[OpenRequest]) -> None:
        self._model, self._device = model, model.embedding.weight.device
        first: dict[tuple[int, ...], int] = {}  # of each prompt, its place among those read
        self._prompt_of = [first.setdefault(row.request.prompt, len(first)) for row in rows]
        self._prompts = list(first)
        lengths = torch.tensor([len(prompt) for prompt in self._prompts])
        self._width = int(lengths.max())
        # The last token that is drawn is not read.
        capacity = self._width + max(max(row.most for row in rows) - 1, 0)
        self._read = 0
        self._pads_B1: Tensor | None = None
        if int(lengths.min()) < self._width:
            self._pads_B1 = (self._width - lengths).to(self._device)[:, None]
        window = model.config.attention.window
        self._caches: list[PreallocatedCache | WindowCache] = [
            WindowCache(window.size, capacity)
            if window is not None and window.is_local(layer)
            else PreallocatedCache(capacity)
            for layer in range(model.config.layers)
        ]

    def read_prompts(self) -> Tensor:
        """The logits [B, V] after each prompt."""
        padded = [
            [prompt[0]] * (self._width - len(prompt)) + list(prompt) for prompt in self._prompts
        ]
        logits_PV = self.read(torch.tensor(padded))
        if len(self._prompts) == len(self._prompt_of):
            return logits_PV
        rows_B = torch.tensor(self._prompt_of, device=self._device)
        self._caches = [cache.select(rows_B) for cache in self._caches]
        if self._pads_B1 is not None:
            self._pads_B1 = self._pads_B1[rows_B]
        return logits_PV[rows_B]

    def read(self, ids_BT: Tensor) -> Tensor:
        """The logits [B, V] after the last of `ids_BT`, which follow what was read before."""
        ids_BT = ids_BT.to(self._device)
        rows, new = ids_BT.shape
        begin, self._read = self._read, self._read + new
        last_B = torch.arange(1, rows + 1, device=self._device) * new - 1
        positions_BT = documents_BS = None
        if self._pads_B1 is not None:
            places = torch.arange(self._read, device=self._device)[None, :] - self._pads_B1
            # A complete row is read on with the rest, which may take it beyond the positions.
            positions_BT = places[:, begin:].clamp(0, self._model.config.positions - 1)
            documents_BS = (places >= 0).long()
        output: ModelOutput = self._model(
            ids_BT, self._caches, positions_BT, documents_BS, places_N=last_B
        )
        return output.logits


def _draw_ids(logits_BV: Tensor, rows: Sequence[OpenRequest]) -> list[int]:
    """The next id of each row; of complete ones, any."""
    if all(row.request.sampling.plain for row in rows):
        return [int(each) for each in logits_BV.argmax(-1).tolist()]
    going = [index for index, row in enumerate(rows) if not row.stopped]
    going_BV = logits_BV if len(going) == len(rows) else logits_BV[going]
    drawn_B = [row.last for row in rows]
    for index, drawn in zip(going, draw(going_BV, [rows[i].next for i in going]), strict=True):
        drawn_B[index] = drawn
    return drawn_B


def _log_probabilities(
    logits_BV: Tensor, ids_B: Sequence[int], rows: Sequence[OpenRequest]
) -> list[float]:
    temperatures = [row.request.sampling.temperature for row in rows]
    scaled_BV = logits_BV.float() / torch.tensor(temperatures, device=logits_BV.device)[:, None]
    index_B1 = torch.tensor(ids_B, device=logits_BV.device)[:, None]
    given_B1 = scaled_BV.gather(1, index_B1) - scaled_BV.logsumexp(1, keepdim=True)
    found: list[float] = given_B1[:, 0].tolist()
    return found
