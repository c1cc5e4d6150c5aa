"""How tokens look at the tokens before them, or at those around them.

Shapes: B batch, T new positions, S positions seen in all (cached ones first), C channels of the
stream, H query heads, K key and value heads, D channels of one head.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.attention import AttentionSettings, hides_by_distance
from trainrig.models.architecture.norms import Normalisation
from trainrig.models.architecture.shapes import (
    AttentionShape,
    NormShape,
    ProjectionShape,
    VectorShape,
)
from trainrig.models.feedforward import Multiply, build_projection, multiply_each
from trainrig.models.kernels.biased_attention import biased_attention, is_learnt
from trainrig.models.kernels.blocked_attention import blocked_attention
from trainrig.models.kernels.choice import Kernel
from trainrig.models.kernels.document_attention import document_attention, reads_documents
from trainrig.models.kernels.prepared_rows import PreparedRows, attend_prepared
from trainrig.models.norm import Norm
from trainrig.models.positions import Rotation, alibi_slopes
from trainrig.on_host import find_on_host, remember_copy


class Cache(Protocol):
    """The keys and values that one layer has computed so far."""

    def __len__(self) -> int:
        """Positions read, also those that it no longer holds."""
        ...

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of the newest positions; all that the layer may see, in order, newest last."""
        ...


class KeyValueCache:
    """The keys and values that one layer has computed so far, so that generation need not again."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def __len__(self) -> int:
        """Positions held."""
        return 0 if self._keys is None else self._keys.shape[2]

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of the newest positions; all that there are, [B, K, S, D] each."""
        if self._keys is not None and self._values is not None:
            keys_BKTD = torch.cat((self._keys, keys_BKTD), dim=2)
            values_BKTD = torch.cat((self._values, values_BKTD), dim=2)
        self._keys, self._values = keys_BKTD, values_BKTD
        return keys_BKTD, values_BKTD

    def select(self, rows: Tensor) -> "KeyValueCache":
        """A cache of the rows `rows`, one of them as often as it is named."""
        chosen = KeyValueCache()
        if self._keys is not None and self._values is not None:
            chosen._keys = self._keys.index_select(0, rows)
            chosen._values = self._values.index_select(0, rows)
        return chosen


@dataclass(frozen=True)
class MaskRegions:
    """What tokens see of their document, where that is not what is before them."""

    prefixes_BS: Tensor | None = None  # true: all of the document sees the token
    # Of which branch of the document a token is: it sees those of branch 0, and of its own.
    branches_BS: Tensor | None = None


class Sight:
    """What the tokens of a row may see in layers of one kind, and how they are turned for it.

    A plain object for the reason that `Rotation` is one.
    """

    def __init__(
        self,
        rotation: Rotation | None = None,
        documents_BS: Tensor | None = None,
        window: int | None = None,
        mask_B1TS: Tensor | None = None,
        causal: bool = True,
        added_B1TS: Tensor | None = None,
        kernel: Kernel | None = None,
        rows: PreparedRows | None = None,
    ) -> None:
        """`documents_BS`: the document of each position; None: one a row. `mask_B1TS` says the same
        for kernels that take one: true where a query may look, whatever the window; or numbers
        [B, H, T, S] that are added to logits, minus infinity where it may not; None beside
        documents: they are read each by itself, in layers that hide none. `added_B1TS`: what
        is true or false there, as such numbers. `causal` false: also those after it are seen, and
        the window is around it. `kernel`: the one that was chosen for what torch's own
        attention does not compute; `rows`: what it needs to know of these rows, None if nothing."""
        self.rotation, self.window, self.causal = rotation, window, causal
        self.documents_BS, self.mask_B1TS = documents_BS, mask_B1TS
        self.added_B1TS = added_B1TS
        self.kernel, self.rows = kernel, rows
        # False for the queries that are padding, for experts to leave out; None: there are none.
        self.text_BT: Tensor | None = None

    def mask_for(self, dtype: torch.dtype) -> Tensor | None:
        """What a kernel takes whose queries have that `dtype`. Given true and false, torch makes
        numbers of them at each call, which every layer then keeps for its backward pass; numbers
        that are there already are one tensor for all layers."""
        added = self.added_B1TS
        return added if added is not None and added.dtype == dtype else self.mask_B1TS

    def hides_by_distance(self, seen: int) -> bool:
        """Whether the window is narrow enough to hide any of `seen` positions."""
        return hides_by_distance(self.window, seen, self.causal)


# What computes attention: torch's kernels, told by what is true of all rows, by a mask or by
# document; the kernel that the rows were prepared for; or plain products in blocks.
Way = Literal["causal", "all", "mask", "documents", "prepared", "blocks"]


class Attention(nn.Module):
    """Attention in which groups of query heads share a key and value head.

    Grouped queries: Ainslie et al. 2023, arXiv:2305.13245; with as many key heads as query heads
    it is the multi-head attention of Vaswani et al. 2017, arXiv:1706.03762, with one the
    multi-query attention of Shazeer 2019, arXiv:1911.02150.
    """

    sinks: nn.Parameter | None

    def __init__(
        self,
        shape: AttentionShape,
        head_channels: int,
        norm: Normalisation,
        settings: AttentionSettings,
        alibi: bool = False,
    ) -> None:
        super().__init__()
        self.head_channels, self.settings, self.alibi = head_channels, settings, alibi
        self.query_scale, self.logit_cap = settings.query_scale, settings.logit_cap
        self.query = build_projection(shape.query)
        self.key = build_projection(shape.key)
        self.value = build_projection(shape.value)
        self.output = build_projection(shape.output)
        # An attribute so that another way to multiply can take its place.
        self.multiply: Multiply = multiply_each
        self.query_norm = None if shape.query_norm is None else Norm(shape.query_norm, norm)
        self.key_norm = None if shape.key_norm is None else Norm(shape.key_norm, norm)
        self.sinks = (
            None if shape.sinks is None else nn.Parameter(torch.zeros(shape.sinks.channels))
        )
        for name, part in shape.added.items():
            self._add(name, part, norm)

    def forward(self, x_BTC: Tensor, sight: Sight, cache: Cache | None = None) -> Tensor:
        """[B, T, C] to [B, T, C]; `cache`, if given, is extended by these T positions."""
        if x_BTC.shape[0] == 0:  # of rows that ranks divide one may have none; kernels take some
            return x_BTC
        query_BTE, key_BTE, value_BTE = self.multiply(x_BTC, (self.query, self.key, self.value))
        query_BHTD = self._split_heads(query_BTE, self.query_norm)
        key_BKSD = self._split_heads(key_BTE, self.key_norm)
        if sight.rotation is not None:
            query_BHTD, key_BKSD = sight.rotation(query_BHTD), sight.rotation(key_BKSD)
        value_BKSD = self._split_heads(value_BTE, None)
        del query_BTE, key_BTE, value_BTE  # turned ones take their place, so those may go
        if cache is not None:
            key_BKSD, value_BKSD = cache.extend(key_BKSD, value_BKSD)
        see = functools.partial(self.attend, sight=sight)
        seen_BHTD = self.settings.attend(self, x_BTC, query_BHTD, key_BKSD, value_BKSD, see)
        mixed_BTC: Tensor = self.output(seen_BHTD.transpose(1, 2).flatten(2))
        return mixed_BTC

    def attend(
        self, query_BHTD: Tensor, key_BKSD: Tensor, value_BKSD: Tensor, sight: Sight
    ) -> Tensor:
        """What each query sees, [B, H, T, D]; the queries are those of the last T of S positions.

        By torch's kernel where it can, else by ours. Apart from `forward` so that another way to
        attend (over devices, say) can take its place.
        """
        new, seen = query_BHTD.shape[2], key_BKSD.shape[2]
        way = self.choose_way(new, seen, sight)
        if way in ("prepared", "blocks"):
            rows = sight.rows if way == "prepared" else None
            return self._attend_by_reach(query_BHTD, key_BKSD, value_BKSD, sight, rows)
        if way == "documents":
            assert sight.documents_BS is not None
            return document_attention(
                query_BHTD,
                key_BKSD,
                value_BKSD,
                sight.documents_BS,
                scale=self.query_scale or 1 / math.sqrt(self.head_channels),
                causal=sight.causal,
            )
        mask_B1TS = sight.mask_for(query_BHTD.dtype) if way == "mask" else None
        if mask_B1TS is not None:
            mask_B1TS = mask_B1TS[..., mask_B1TS.shape[-1] - seen :]
            if is_learnt(mask_B1TS, query_BHTD, key_BKSD):
                scale = self.query_scale or 1 / math.sqrt(self.head_channels)
                return biased_attention(query_BHTD, key_BKSD, value_BKSD, mask_B1TS, scale=scale)
        elif way == "mask":
            mask_B1TS = _make_causal_mask(new, seen, query_BHTD.device)
        return F.scaled_dot_product_attention(
            query_BHTD,
            key_BKSD,
            value_BKSD,
            attn_mask=mask_B1TS,
            is_causal=way == "causal",
            scale=self.query_scale,
            enable_gqa=query_BHTD.shape[1] != key_BKSD.shape[1],
        )

    def choose_way(self, new: int, seen: int, sight: Sight) -> Way:
        """How the last `new` of `seen` positions are attended for. Which kernel of torch's that
        comes to is in docs/performance.md."""
        if sight.rows is not None and (sight.rows.queries, sight.rows.keys) == (new, seen):
            return "prepared"
        if self.logit_cap is not None or self.sinks is not None or self.alibi:
            return "blocks"
        if sight.hides_by_distance(seen):
            return "blocks"
        if sight.mask_B1TS is not None:
            return "mask"
        if sight.documents_BS is not None:
            apart = sight.documents_BS.device.type == "cpu" and sight.kernel is None
            return "documents" if apart else "blocks"
        if not sight.causal:
            return "all"
        if new == seen:
            return "causal"
        return "mask" if new > 1 else "all"  # one alone sees all there is

    def _attend_by_reach(
        self,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        value_BKSD: Tensor,
        sight: Sight,
        rows: PreparedRows | None,
    ) -> Tensor:
        """Return what each query sees, by the kernel that `rows` were prepared for; None: in blocks
        of plain products."""
        seen, documents_BS, slopes_H = key_BKSD.shape[2], sight.documents_BS, None
        if documents_BS is not None:
            documents_BS = documents_BS[:, documents_BS.shape[1] - seen :]
        if self.alibi:
            heads = query_BHTD.shape[1]
            slopes_H = torch.tensor(alibi_slopes(heads), device=query_BHTD.device)
        parts = query_BHTD, key_BKSD, value_BKSD
        scale = self.query_scale or 1 / math.sqrt(self.head_channels)
        if rows is not None:
            return attend_prepared(
                *(*parts, rows),
                scale=scale,
                window=sight.window,
                causal=sight.causal,
                cap=self.logit_cap,
                slopes_H=slopes_H,
                sinks_H=self.sinks,
            )
        return blocked_attention(
            *parts,
            scale=scale,
            window=sight.window,
            cap=self.logit_cap,
            documents_BS=documents_BS,
            slopes_H=slopes_H,
            sinks_H=self.sinks,
            causal=sight.causal,
        )

    def _split_heads(self, x_BTE: Tensor, norm: Norm | None) -> Tensor:
        """[B, heads, T, D], normed if there is a norm: of all channels, or those of each head."""
        if norm is not None and norm.weight.shape[0] == x_BTE.shape[-1] != self.head_channels:
            x_BTE, norm = norm(x_BTE), None
        x_BTHD = x_BTE.view(*x_BTE.shape[:2], -1, self.head_channels)
        if norm is not None:
            x_BTHD = norm(x_BTHD)
        return x_BTHD.transpose(1, 2)

    def _add(
        self,
        name: str,
        part: ProjectionShape | NormShape | VectorShape,
        norm: Normalisation,
    ) -> None:
        """Have the part `name`, which the settings have added."""
        if isinstance(part, VectorShape):
            self.register_parameter(name, nn.Parameter(torch.zeros(part.channels)))
        elif isinstance(part, NormShape):
            self.add_module(name, Norm(part, norm))
        else:
            self.add_module(name, build_projection(part))


def number_documents(positions_BT: Tensor) -> Tensor:
    """[B, T], the document of each token. `positions_BT` [B, T] counts from 0 in each; a row may
    begin inside one."""
    documents_BT = (positions_BT == 0).cumsum(dim=1)
    on_host = find_on_host(positions_BT)
    if on_host is not None:  # so that nobody has to ask the device for them
        remember_copy(documents_BT, (on_host == 0).cumsum(dim=1))
    return documents_BT


def needs_mask(documents_BS: Tensor, new: int, dtype: torch.dtype, kernel: Kernel | None) -> bool:
    """Whether the last `new` queries, of `dtype`, are read under a mask of whole rows: where no
    `kernel` was chosen that tells documents apart, or one is better at it."""
    return kernel is None and not reads_documents(documents_BS, new, dtype)


def make_document_mask(
    documents_BS: Tensor, new: int, causal: bool = True, marks: MaskRegions | None = None
) -> Tensor:
    """[B, 1, T, S], true where one of the last `new` positions may look: at itself and before it,
    in its own document, but for what `marks` say; not `causal`, anywhere in it.

    Takes B * T * S bytes, and attention is computed over whole rows, of which it drops most.
    """
    past = documents_BS.shape[1] - new
    together_BTS = documents_BS[:, past:, None] == documents_BS[:, None, :]
    marks = marks or MaskRegions()
    if marks.branches_BS is not None:
        branches_BS = marks.branches_BS
        same_BTS = branches_BS[:, past:, None] == branches_BS[:, None, :]
        together_BTS = together_BTS & (same_BTS | (branches_BS == 0)[:, None, :])
    if causal:
        seen_BTS = together_BTS.tril(past)
        if marks.prefixes_BS is not None:
            seen_BTS = seen_BTS | (together_BTS & marks.prefixes_BS[:, None])
        together_BTS = seen_BTS
    return together_BTS[:, None]


def make_added_mask(mask_B1TS: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, T, S], what to add to logits of `dtype` for `mask_B1TS`, as torch's kernels do."""
    shown = torch.zeros((), dtype=dtype, device=mask_B1TS.device)
    return torch.where(mask_B1TS, shown, -math.inf)


def _make_causal_mask(new: int, seen: int, device: torch.device) -> Tensor:
    """[T, S], true where the query may look: torch's own causal mask counts from the other end."""
    return torch.ones(new, seen, dtype=torch.bool, device=device).tril(seen - new)
