"""Ring attention: keys and values travel around the ranks of a context axis.

Liu et al. 2023, arXiv:2310.01889. No rank holds the keys of a whole row. At each of c turns a rank
attends to the keys and values of one rank while they are being sent to the next. The results are
merged by their log-sum-exp, as FlashAttention merges blocks (Dao et al. 2022, arXiv:2205.14135). In
the backward pass keys and values travel around once more. Their gradients travel with them in
float32, from the rank after the owner to the owner, which adds its own part last: one order for
each layout.

In the forward pass a rank receives 2 B K T D (c - 1) / c elements, the same as with gathering. In
the backward pass it receives as many again, and as many gradients of 4 bytes. It holds two of the c
parts at a time.

Shapes: B rows, H query heads, K key heads, t positions of a rank, n = t / 2 of a chunk, D channels.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.models.kernels.attention_blocks import (
    Blocks,
    compute_mean_gradients,
    differentiate,
    differentiate_sinks,
    look,
)
from trainrig.models.kernels.kernel_support import Reach, find_document_ends, find_reach
from trainrig.parallel.axes.context_parts import find_chunks

_LEAST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Ring:
    """The ranks of a ring, and parameters of their attention besides queries, keys and values."""

    group: dist.ProcessGroup
    documents_BT: Tensor  # document number of each position of the whole row
    scale: float
    window: int | None = None
    cap: float | None = None
    slopes_H: Tensor | None = None
    in_one_kernel: bool = False  # True if trainrig's GPU kernel computes each pair of chunks

    def attend(
        self,
        query_BHtD: Tensor,
        key_BKtD: Tensor,
        value_BKtD: Tensor,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output [B, H, t, D] of this rank's queries over the whole row.

        Collective, forward and backward.
        """
        keys_2BKtD = torch.stack((key_BKtD, value_BKtD))
        seen: Tensor = _Look.apply(  # type: ignore[no-untyped-call]
            query_BHtD, keys_2BKtD, sinks_H, self
        )
        return seen

    def rotate(self, keys_2BKtD: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (source rank, keys and values) for each rank of the ring, this rank's own first.

        The next ones are being sent while the caller uses the current ones.
        """
        rank = self.group.rank()
        degree = self.group.size()
        for turn in range(degree):
            coming = _RingTransfer(keys_2BKtD, self.group) if turn + 1 < degree else None
            yield (rank - turn) % degree, keys_2BKtD
            if coming:
                keys_2BKtD = coming.wait()

    def pair_chunks(self, size: int, source: int) -> Iterator["_Pair"]:
        """Yield each pair of a query chunk of this rank and a visible key chunk of rank `source`.

        `size`: positions of a chunk.
        """
        own = find_chunks(self.group.rank(), self.group.size())
        theirs = find_chunks(source, self.group.size())
        here = [slice(0, size), slice(size, 2 * size)]
        for queries, chunk in zip(here, own, strict=True):
            for keys, other in zip(here, theirs, strict=True):
                if other <= chunk:
                    yield _Pair(queries, chunk, keys, other)

    def look(
        self,
        pair: "_Pair",
        query_BHtD: Tensor,
        keys_2BKtD: Tensor,
        found: tuple[Tensor, Tensor],
    ) -> None:
        """Fill `found` with the attention output and log-sum-exp of a pair of chunks.

        See `attention_blocks.look`.
        """
        query, key, value = pair.cut(query_BHtD, keys_2BKtD)
        if self.in_one_kernel:
            from trainrig.models.kernels import attention_kernel

            given = query, key, value, self._find_reach(pair), pair.past
            attention_kernel.attend(*given, self.slopes_H, None, self.scale, self.cap, found)
        else:
            look(self._make_blocks(pair, query, key), value, None, *found)

    def differentiate(
        self,
        pair: "_Pair",
        query_BHtD: Tensor,
        keys_2BKtD: Tensor,
        gradient_BHtD: Tensor,
        mean_BHt: Tensor,
        sums_BHt: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the float32 gradients of queries, keys and values of a pair of chunks.

        See `attention_blocks.differentiate`.
        """
        query, key, value = pair.cut(query_BHtD, keys_2BKtD)
        gradient, mean, sums = (
            tensor[:, :, pair.queries] for tensor in (gradient_BHtD, mean_BHt, sums_BHt)
        )
        if not self.in_one_kernel:
            return differentiate(
                self._make_blocks(pair, query.float(), key), value, gradient, mean, sums
            )
        from trainrig.models.kernels import attention_kernel

        of_query, of_key, of_value = (
            torch.empty_like(tensor, dtype=torch.float32) for tensor in (query, key, value)
        )
        given = gradient, mean, sums, query, key, value, self._find_reach(pair), pair.past
        settings = self.slopes_H, self.scale, self.cap
        attention_kernel.differentiate(*given, *settings, (of_query, of_key, of_value))
        return of_query, of_key, of_value

    def _make_blocks(self, pair: "_Pair", query: Tensor, key: Tensor) -> Blocks:
        documents = torch.split(self.documents_BT, pair.size, dim=1)
        settings = self.slopes_H, self.scale, self.window, self.cap
        return Blocks(
            *(query, key, documents[pair.other], *settings),
            past=pair.past,
            own_BT=documents[pair.chunk],
        )

    def _find_reach(self, pair: "_Pair") -> Reach:
        return find_reach(self._ends, *pair.find_places(), self.window, causal=True)

    @functools.cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        documents_BT = self.documents_BT
        return find_document_ends(documents_BT, documents_BT.shape[1], documents_BT.device)


@dataclass(frozen=True)
class _Pair:
    """A chunk of queries and a chunk of keys: slices of the ranks' parts, numbers in the row."""

    queries: slice
    chunk: int
    keys: slice
    other: int

    @property
    def size(self) -> int:
        """Number of positions of a chunk."""
        return int(self.queries.stop - self.queries.start)

    @property
    def past(self) -> int:
        """Number of positions from the first key to the first query."""
        return (self.chunk - self.other) * self.size

    def cut(self, query_BHtD: Tensor, keys_2BKtD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of the two chunks."""
        key, value = keys_2BKtD[..., self.keys, :]
        return query_BHtD[:, :, self.queries], key, value

    def find_places(self) -> tuple[range, range]:
        """Return the positions in the row of the queries and of the keys."""
        first = self.chunk * self.size
        other = self.other * self.size
        return range(first, first + self.size), range(other, other + self.size)


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_BHtD: Tensor, keys_2BKtD: Tensor, sinks_H: Tensor | None, ring: Ring
    ) -> Tensor:
        seen = torch.zeros_like(query_BHtD, dtype=torch.float32)
        sums = seen.new_full(seen.shape[:-1], -torch.inf)
        size = seen.shape[2] // 2
        found = torch.empty_like(seen[:, :, :size]), torch.empty_like(sums[:, :, :size])
        for source, turned_2BKtD in ring.rotate(keys_2BKtD):
            for pair in ring.pair_chunks(size, source):
                ring.look(pair, query_BHtD, turned_2BKtD, found)
                _merge(seen[:, :, pair.queries], sums[:, :, pair.queries], *found)
        if sinks_H is not None:
            nothing = torch.zeros_like(seen), sinks_H.float()[:, None].expand_as(sums)
            _merge(seen, sums, *nothing)
        ctx.ring = ring
        seen_BHtD = seen.to(query_BHtD.dtype)
        ctx.save_for_backward(query_BHtD, keys_2BKtD, sinks_H, seen_BHtD, sums)
        return seen_BHtD

    @staticmethod
    def backward(ctx: Any, gradient_BHtD: Tensor) -> tuple[Tensor | None, ...]:
        query_BHtD, keys_2BKtD, sinks_H, seen_BHtD, sums = ctx.saved_tensors
        ring: Ring = ctx.ring
        mean = compute_mean_gradients(gradient_BHtD, seen_BHtD)
        of_query = torch.zeros_like(query_BHtD, dtype=torch.float32)
        own = torch.zeros_like(keys_2BKtD, dtype=torch.float32)
        travelling = torch.zeros_like(own)
        for turn, (source, turned_2BKtD) in enumerate(ring.rotate(keys_2BKtD)):
            if turn > 1:
                travelling = _RingTransfer(travelling, ring.group).wait()
            of_keys = travelling if turn else own
            for pair in ring.pair_chunks(query_BHtD.shape[2] // 2, source):
                saved = query_BHtD, turned_2BKtD, gradient_BHtD, mean, sums
                added, *others = ring.differentiate(pair, *saved)
                of_query[:, :, pair.queries] += added
                for total, part in zip(of_keys, others, strict=True):
                    total[..., pair.keys, :] += part
        own = _RingTransfer(travelling, ring.group).wait() + own
        of_sinks = None if sinks_H is None else differentiate_sinks(sinks_H, sums, mean)
        return of_query.to(query_BHtD.dtype), own.to(keys_2BKtD.dtype), of_sinks, None


def _merge(seen: Tensor, sums: Tensor, more: Tensor, more_sums: Tensor) -> None:
    """Merge attention over other keys, `more`, into the attention so far, `seen`, in place."""
    whole = torch.logaddexp(sums, more_sums)
    floor = whole.clamp(min=_LEAST)  # with no keys at all, the weights are 0 instead of NaN
    seen.mul_((sums - floor).exp()[..., None])
    seen.add_(more * (more_sums - floor).exp()[..., None])
    sums.copy_(whole)


class _RingTransfer:
    """Transfer of a tensor to the next rank, and receipt of the previous rank's tensor."""

    def __init__(self, tensor: Tensor, group: dist.ProcessGroup) -> None:
        rank = group.rank()
        degree = group.size()
        self._going = tensor.contiguous()
        self._coming = torch.empty_like(tensor)
        after = (rank + 1) % degree
        before = (rank - 1) % degree
        self._works: Sequence[dist.Work] = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._going, group=group, group_peer=after),
                dist.P2POp(dist.irecv, self._coming, group=group, group_peer=before),
            ]
        )

    def wait(self) -> Tensor:
        """Wait for the transfer, and return the received tensor."""
        for work in self._works:
            work.wait()
        return self._coming
