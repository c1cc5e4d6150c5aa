"""Rows on which attention kernels are compared with plain matrix products."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from trainrig.models.kernels.blocked_attention import blocked_attention
from trainrig.models.kernels.kernel_choice import Kernel
from trainrig.models.kernels.prepared_rows import attend_prepared, prepare_rows
from trainrig.parallel.axes import context_ring


@dataclass(frozen=True)
class Rows:
    """Shapes and features of the rows that attention is computed for."""

    rows: int = 1
    heads: int = 2
    kv_heads: int = 1
    queries: int = 200  # the last of `keys`
    keys: int = 200
    width: int = 32  # channels of a head
    causal: bool = True
    mean: int | None = None  # length of a document; None means one document a row
    window: int | None = None
    cap: float | None = None
    slopes: bool = False
    sinks: bool = False

    @property
    def changes_logits(self) -> bool:
        """Whether there is a cap, a sink or a slope, which FlashAttention-2 lacks."""
        return self.cap is not None or self.slopes or self.sinks

    @property
    def scale(self) -> float:
        """Twice the usual scale, so that caps have an effect."""
        return 2 * self.width**-0.5

    def draw(self, device: str, dtype: torch.dtype) -> "Drawn":
        """Draw the same numbers on every device, rounded to `dtype`."""
        generator = torch.Generator().manual_seed(0)

        def draw(heads: int, places: int) -> torch.Tensor:
            size = self.rows, places, heads, self.width
            drawn = torch.randn(size, generator=generator).to(dtype)
            return drawn.to(device).transpose(1, 2)

        query, gradient = (draw(self.heads, self.queries) for _ in range(2))
        key, value = (draw(self.kv_heads, self.keys) for _ in range(2))
        documents = slopes = sinks = None
        if self.mean is not None:
            begins = torch.rand(self.rows, self.keys, generator=generator) < 1 / self.mean
            documents = begins.long().cumsum(1).to(device)
        if self.slopes:
            slopes = torch.rand(self.heads, generator=generator).to(device)
        if self.sinks:
            sinks = torch.randn(self.heads, generator=generator).to(device)
        return Drawn(self, (query, key, value), gradient, documents, slopes, sinks)


@dataclass(frozen=True)
class Drawn:
    """Tensors drawn for attention."""

    given: Rows
    parts: tuple[torch.Tensor, ...]  # queries, keys and values
    gradient: torch.Tensor  # gradient of attention's output
    documents: torch.Tensor | None
    slopes: torch.Tensor | None
    sinks: torch.Tensor | None

    def attend(self, kernel: Kernel) -> list[torch.Tensor]:
        """Return the output by `kernel`, and the gradients of queries, keys, values and sinks."""
        given = self.given
        parts = [part.detach().requires_grad_() for part in self.parts]
        sinks = None if self.sinks is None else self.sinks.detach().requires_grad_()
        settings: dict[str, Any] = {"scale": given.scale, "window": given.window}
        settings |= {"causal": given.causal, "cap": given.cap}
        settings |= {"slopes_H": self.slopes, "sinks_H": sinks}
        device = parts[0].device
        sizes = (given.queries, given.keys)
        rows = prepare_rows(kernel, self.documents, sizes, device, given.window, given.causal)
        if rows is None:
            seen = blocked_attention(*parts, documents_BS=self.documents, **settings)
        else:
            seen = attend_prepared(*parts, rows, **settings)
        learnt = parts if sinks is None else [*parts, sinks]
        return [seen.detach(), *torch.autograd.grad(seen, learnt, self.gradient)]

    def attend_in_ring(self) -> list[torch.Tensor]:
        """Return the same by a ring of one rank, which reads two chunks of keys in turn."""
        given = self.given
        parts = [part.detach().requires_grad_() for part in self.parts]
        sinks = None if self.sinks is None else self.sinks.detach().requires_grad_()
        documents = self.documents
        if documents is None:
            documents = torch.zeros(
                given.rows, given.keys, dtype=torch.long, device=parts[0].device
            )
        alone: Any = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
        settings = given.scale, given.window, given.cap, self.slopes, True
        with patch.object(
            context_ring, "_RingTransfer", lambda tensor, _: SimpleNamespace(wait=lambda: tensor)
        ):
            seen = context_ring.Ring(alone, documents, *settings).attend(*parts, sinks)  # type: ignore[call-arg]
            learnt = parts if sinks is None else [*parts, sinks]
            return [seen.detach(), *torch.autograd.grad(seen, learnt, self.gradient)]

    def attend_plainly(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the same by plain products under a mask, computed in `dtype`."""
        given = self.given
        parts = [part.detach().to(dtype).requires_grad_() for part in self.parts]
        sinks = None if self.sinks is None else self.sinks.detach().to(dtype).requires_grad_()
        groups = given.heads // given.kv_heads
        key, value = (part.repeat_interleave(groups, 1) for part in parts[1:])
        logits = parts[0] @ key.mT * given.scale
        if given.cap is not None:
            logits = torch.tanh(logits / given.cap) * given.cap
        past = given.keys - given.queries
        at_S = torch.arange(given.keys, device=logits.device)
        distance = at_S[past:, None] - at_S
        if self.slopes is not None:
            logits = logits - self.slopes[:, None, None] * distance.abs()
        hidden = distance < 0 if given.causal else torch.zeros_like(distance, dtype=torch.bool)
        if given.window is not None:
            reach = given.window - 1 if given.causal else (given.window - 1) // 2
            hidden = hidden | (distance.abs() > reach)
        hidden = hidden[None, None]
        if self.documents is not None:
            own = self.documents[:, None, past:, None]
            hidden = hidden | (own != self.documents[:, None, None, :])
        logits = logits.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            of_sinks = sinks[:, None, None].expand(*logits.shape[:3], 1)
            logits = torch.cat((logits, of_sinks), -1)
        seen = logits.softmax(-1)[..., : given.keys] @ value
        learnt = parts if sinks is None else [*parts, sinks]
        return [seen.detach(), *torch.autograd.grad(seen, learnt, self.gradient.to(dtype))]


ROWS = [
    Rows(rows=2, heads=4, kv_heads=2, mean=30),
    Rows(width=24, kv_heads=2, queries=130, keys=130, mean=50),
    Rows(rows=2, width=64, queries=150, keys=150, mean=40, causal=False),
    Rows(width=16, queries=64, keys=64),
    Rows(width=128, kv_heads=2, queries=300, keys=300, mean=3),
    Rows(width=16, queries=257, keys=257, mean=7, causal=False),
    Rows(window=20),
    Rows(window=2, width=16),
    Rows(rows=2, window=33, mean=90, queries=260, keys=260),
    Rows(window=41, causal=False, mean=60),
    Rows(cap=2.0, mean=60, rows=2),
    Rows(slopes=True, heads=4, kv_heads=4),
    Rows(sinks=True, window=30, heads=4, kv_heads=2, rows=2),
    Rows(sinks=True, slopes=True, cap=1.5, window=50, mean=70),
    Rows(queries=70, keys=200, mean=45, rows=2),
    Rows(queries=100, keys=300, slopes=True, window=120, sinks=True),
    Rows(width=200, queries=90, keys=90, cap=3.0, mean=40),
    Rows(width=256, queries=70, keys=70, window=9),
]
# Rows that a ring can read: causal, whole rows, of two chunks.
RINGS = [row for row in ROWS if row.causal and row.queries == row.keys and row.queries % 2 == 0]
