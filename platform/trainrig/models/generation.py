"""Batched generation from prompts, one token at a time, with preallocated key-value caches.

Shorter prompts are padded on the left; no token attends to the padding. A prompt that several
requests share is read one time. Random numbers are keyed by the request's seed and the token's
index, so a request's tokens depend only on its own logits.

Shapes: B batch, P different prompts, T new positions, V vocabulary entries, K key and value
heads, S positions held, D channels of one head, R chosen rows.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.decoder import Decoder
from trainrig.models.output import ModelOutput
from trainrig.models.token_sampling import NextToken, Sampling, derive_stream, draw


class PreallocatedCache:
    """Keys and values of one layer for up to `capacity` positions in all."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._length = 0
        self._keys = self._values = torch.empty(0)

    def __len__(self) -> int:
        """Return the number of positions that were appended."""
        return self._length

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all that are held, [B, K, S, D] each."""
        begin = self._length
        end = self._length + keys_BKTD.shape[2]
        if begin == 0:
            rows, heads, _, channels = keys_BKTD.shape
            size = (rows, heads, self._capacity, channels)
            self._keys = keys_BKTD.new_empty(size)
            self._values = values_BKTD.new_empty(size)
        if end > self._capacity:
            raise ValueError(f"{end} positions exceed the cache's capacity of {self._capacity}")
        self._keys[:, :, begin:end] = keys_BKTD
        self._values[:, :, begin:end] = values_BKTD
        self._length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def select(self, rows_R: Tensor) -> "PreallocatedCache":
        """Return a cache of the batch rows `rows_R`, each repeated as often as its index occurs."""
        chosen = copy.copy(self)
        chosen._keys = self._keys.index_select(0, rows_R)
        chosen._values = self._values.index_select(0, rows_R)
        return chosen


class WindowCache:
    """Keys and values of a layer with a sliding window, held for at most 2 * `window` positions.

    Positions are appended until the memory is full; then those still needed are moved to its start.
    That happens at most one time in `window` positions. `capacity` is the largest number of
    positions ever appended; it is not checked.
    """

    def __init__(self, window: int, capacity: int) -> None:
        self._window = window
        self._size = min(capacity, 2 * window)
        self._appended = self._held = 0
        self._keys = self._values = torch.empty(0)

    def __len__(self) -> int:
        """Return the number of positions that were appended, including those no longer held."""
        return self._appended

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all that the new positions attend to."""
        new = keys_BKTD.shape[2]
        if self._appended == 0:
            rows, heads, _, channels = keys_BKTD.shape
            size = (rows, heads, self._size, channels)
            self._keys = keys_BKTD.new_empty(size)
            self._values = values_BKTD.new_empty(size)
        self._appended += new
        # number of earlier positions that the first new one attends to
        past = min(self._held, self._window - 1)
        if self._held + new > self._size:
            keys = torch.cat((self._view_last(self._keys, past), keys_BKTD), dim=2)
            values = torch.cat((self._view_last(self._values, past), values_BKTD), dim=2)
            self._held = min(keys.shape[2], self._window)  # later positions need no more
            self._keys[:, :, : self._held] = keys[:, :, keys.shape[2] - self._held :]
            self._values[:, :, : self._held] = values[:, :, keys.shape[2] - self._held :]
            return keys, values
        begin = self._held
        end = self._held + new
        self._keys[:, :, begin:end] = keys_BKTD
        self._values[:, :, begin:end] = values_BKTD
        self._held = end
        return self._view_last(self._keys, past + new), self._view_last(self._values, past + new)

    def select(self, rows_R: Tensor) -> "WindowCache":
        """Return a cache of the batch rows `rows_R`, each repeated as often as its index occurs."""
        chosen = copy.copy(self)
        chosen._keys = self._keys.index_select(0, rows_R)
        chosen._values = self._values.index_select(0, rows_R)
        return chosen

    def _view_last(self, held_BKSD: Tensor, count: int) -> Tensor:
        return held_BKSD[:, :, self._held - count : self._held]


Stopped = Literal["end", "stop", "length", "positions"]


@dataclass(frozen=True)
class Request:
    """A prompt, and how to continue it."""

    prompt: tuple[int, ...]
    sampling: Sampling
    # Called with each new id as it is drawn; generation stops if the call returns true.
    listen: Callable[[int], bool] = lambda _: False
    # Number of answer tokens at the end of the prompt, when an interrupted answer is continued. The
    # next token uses the random number that it would have had without the interruption.
    written: int = 0


@dataclass(frozen=True)
class Generation:
    """New tokens, and why generation stopped.

    The reasons: "end" a stop id, "stop" the request's `listen`, "length" its maximum number of
    tokens, and "positions" the model's number of positions.
    """

    ids: tuple[int, ...]  # ids without the prompt and the stop id
    stopped: Stopped
    stop_id: int | None = None  # the stop id that was drawn, if one was


@dataclass(frozen=True)
class ScoredGeneration:
    """New tokens, with the log-probability of each."""

    generation: Generation
    # Log-probability of each id, and of the stop id, at the temperature of the request and before
    # `top_k`, `top_p` and `min_p`.
    log_probabilities: tuple[float, ...]


def generate(
    model: Decoder,
    prompt: Sequence[int],
    sampling: Sampling,
    stop: Collection[int],
    entries: int | None = None,
) -> Generation:
    """Continue `prompt` until an id of `stop`, `sampling.maximum_tokens`, or the model's positions.

    The same as `generate_batch` with one request.
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

    `entries` is the tokenizer's number of ids: larger ids only pad the model's table and are never
    drawn. The same arguments give the same tokens on the same kind of machine. A request also gets
    the same tokens in another batch, if the machine's kernels give a row the same bits in a batch
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
    """Continue each prompt as `generate_batch` does, with the log-probability of each drawn id.

    This does not use inference mode, because a sharded model's gathered parameters may be trained
    afterwards. Raises ValueError for a temperature of 0, which has no log-probabilities.
    """
    if any(request.sampling.temperature == 0 for request in requests):
        raise ValueError("log-probabilities need a temperature above 0")
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
    """Request in progress, which collects ids until it is complete."""

    request: Request
    positions: int
    stop: Collection[int]
    new: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    stopped: Stopped | None = None
    stop_id: int | None = None
    last: int = 0
    stream: int = field(init=False)  # stream of its random numbers

    def __post_init__(self) -> None:
        length = len(self.request.prompt)
        if not 1 <= length <= self.positions:
            raise DataError(
                f"the prompt has {length} tokens, but this model reads from 1 to {self.positions}; "
                + ("shorten it" if length else "give at least the end-of-text token")
            )
        self._stop_at_last_position()
        self.stream = derive_stream(self.request.sampling)

    @property
    def most(self) -> int:
        """Most new tokens that this request can get."""
        room = self.positions - len(self.request.prompt)
        return min(self.request.sampling.maximum_tokens, room)

    @property
    def next(self) -> NextToken:
        """The sampling of the next token."""
        sampling = self.request.sampling
        said = tuple[int, ...]()
        if sampling.repetition_penalty != 1:
            said = (*self.request.prompt, *self.new)
        return NextToken(sampling, self.stream, self.request.written + len(self.new), said)

    def finish(self) -> Generation:
        """Return the generation."""
        return Generation(tuple(self.new), self.stopped or "end", self.stop_id)

    def finish_scored(self) -> ScoredGeneration:
        """Return the generation with the log-probability of each id."""
        return ScoredGeneration(self.finish(), tuple(self.log_probabilities))

    def take(self, drawn: int, log_probability: float) -> None:
        """Append the id `drawn`, unless the request is complete."""
        self.last = drawn
        if self.stopped:
            return
        self.log_probabilities.append(log_probability)
        if drawn in self.stop:
            self.stopped = "end"
            self.stop_id = drawn
            return
        self.new.append(drawn)
        if self.request.listen(drawn):
            self.stopped = "stop"
        elif len(self.new) == self.request.sampling.maximum_tokens:
            self.stopped = "length"
        else:
            self._stop_at_last_position()

    def _stop_at_last_position(self) -> None:
        if len(self.request.prompt) + len(self.new) == self.positions:
            self.stopped = "positions"


class _Batch:
    """The model and its caches for all rows of a batch."""

    def __init__(self, model: Decoder, rows: Sequence[OpenRequest]) -> None:
        self._model = model
        self._device = model.embedding.weight.device
        first: dict[tuple[int, ...], int] = {}  # index of each distinct prompt
        self._prompt_of = [first.setdefault(row.request.prompt, len(first)) for row in rows]
        self._prompts = list(first)
        lengths = torch.tensor([len(prompt) for prompt in self._prompts])
        self._width = int(lengths.max())
        # The last drawn token is never read.
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
        """Return the logits [B, V] after each prompt."""
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
        """Return the logits [B, V] after the last of `ids_BT`, which follow all that was read."""
        ids_BT = ids_BT.to(self._device)
        rows, new = ids_BT.shape
        begin = self._read
        self._read = self._read + new
        last_B = torch.arange(1, rows + 1, device=self._device) * new - 1
        positions_BT = documents_BS = None
        if self._pads_B1 is not None:
            places = torch.arange(self._read, device=self._device)[None, :] - self._pads_B1
            # Complete rows are still read with the others, perhaps beyond the model's positions.
            positions_BT = places[:, begin:].clamp(0, self._model.config.positions - 1)
            documents_BS = (places >= 0).long()
        output: ModelOutput = self._model(
            ids_BT, self._caches, positions_BT, documents_BS, places_N=last_B
        )
        return output.logits


def _draw_ids(logits_BV: Tensor, rows: Sequence[OpenRequest]) -> list[int]:
    """Return the next id of each row; complete rows get an arbitrary id."""
    if all(row.request.sampling.plain for row in rows):
        return [int(drawn) for drawn in logits_BV.argmax(-1).tolist()]
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
