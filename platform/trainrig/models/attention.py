"""Attention layers: causal or bidirectional, with document masks, sliding windows and caches.

Shapes: B batch, T new positions, S key positions in all (cached ones first), C channels of the
residual stream, H query heads, K key and value heads, D channels of one head, E channels of all
heads together.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models import layer_parts
from trainrig.models.architecture import shapes
from trainrig.models.architecture.attention_settings import AttentionSettings, hides_by_distance
from trainrig.models.architecture.layer_settings import Normalisation
from trainrig.models.kernels import cpu_attention
from trainrig.models.kernels.blocked_attention import blocked_attention
from trainrig.models.kernels.kernel_choice import Kernel
from trainrig.models.kernels.prepared_rows import PreparedRows, attend_prepared
from trainrig.sync_free_reads import find_on_host, remember_copy


class Cache(Protocol):
    """Keys and values that one layer has computed so far."""

    def __len__(self) -> int:
        """Return the number of positions read so far, including those no longer held."""
        ...

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all that the layer attends to.

        The positions are in order, the newest last.
        """
        ...


class KeyValueCache:
    """Keys and values that one layer has computed so far, kept whole for generation."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of positions held."""
        return 0 if self._keys is None else self._keys.shape[2]

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all that are held, [B, K, S, D] each."""
        if self._keys is not None and self._values is not None:
            keys_BKTD = torch.cat((self._keys, keys_BKTD), dim=2)
            values_BKTD = torch.cat((self._values, values_BKTD), dim=2)
        self._keys = keys_BKTD
        self._values = values_BKTD
        return keys_BKTD, values_BKTD

    def select(self, rows: Tensor) -> "KeyValueCache":
        """Return a cache of the batch rows `rows`, each repeated as often as its index appears."""
        chosen = KeyValueCache()
        if self._keys is not None and self._values is not None:
            chosen._keys = self._keys.index_select(0, rows)
            chosen._values = self._values.index_select(0, rows)
        return chosen


@dataclass(frozen=True)
class MaskRegions:
    """Exceptions from the causal mask within a document: prefixes and branches."""

    prefixes_BS: Tensor | None = None  # true for a token that the whole document may attend to
    # Number of the branch that each token belongs to. A token attends to branch 0 and to its own
    # branch.
    branches_BS: Tensor | None = None


class Sight:
    """The mask, the rotary angles and the kernel that layers of one kind share in a forward pass.

    A plain object, because FSDP would cast tensor arguments to the dtype of a layer (see
    `Rotation`).
    """

    def __init__(
        self,
        rotation: layer_parts.Rotation | None = None,
        documents_BS: Tensor | None = None,
        window: int | None = None,
        mask_B1TS: Tensor | None = None,
        causal: bool = True,
        added_B1TS: Tensor | None = None,
        kernel: Kernel | None = None,
        rows: PreparedRows | None = None,
    ) -> None:
        """Keep the mask and the kernel of one kind of layer.

        Args:
            rotation: Turns queries and keys by their position; None without rotary positions.
            documents_BS: Number of the document of each position; None if each row is one document.
            window: Positions that a token attends to, counting itself; None for no limit.
            mask_B1TS: For kernels that take a mask: true where a query may look, regardless of the
                window, or numbers [B, H, T, S] added to the logits, minus infinity where it may not
                look. None if no layer takes a mask, as when documents are computed one by one.
            causal: Whether tokens attend to earlier positions only. If false, the window extends to
                both sides.
            added_B1TS: A boolean `mask_B1TS` as numbers to add to the logits.
            kernel: Kernel chosen for what torch's own attention does not compute.
            rows: What that kernel has prepared for these rows; None if it needs nothing.
        """
        self.rotation = rotation
        self.window = window
        self.causal = causal
        self.documents_BS = documents_BS
        self.mask_B1TS = mask_B1TS
        self.added_B1TS = added_B1TS
        self.kernel = kernel
        self.rows = rows
        # False for padding queries, which a mixture of experts leaves out. None if there is no
        # padding.
        self.text_BT: Tensor | None = None

    def mask_for(self, dtype: torch.dtype) -> Tensor | None:
        """Return the mask for a kernel whose queries have `dtype`.

        torch converts a boolean mask to numbers at each call, and every layer would keep its copy
        for the backward pass. Numbers that exist already are one tensor for all layers.
        """
        added = self.added_B1TS
        return added if added is not None and added.dtype == dtype else self.mask_B1TS

    def hides_by_distance(self, seen: int) -> bool:
        """Return whether the window hides any of `seen` positions from some query."""
        return hides_by_distance(self.window, seen, self.causal)


# Ways to compute attention: torch's kernels (causal, over all positions, with a mask, or one
# document at a time), the kernel that the rows were prepared for, or plain products in blocks.
Way = Literal["causal", "all", "mask", "documents", "prepared", "blocks"]


class Attention(nn.Module):
    """Multi-head attention in which groups of query heads share a key and value head.

    Grouped queries: Ainslie et al. 2023, arXiv:2305.13245. With as many key heads as query heads
    this is the multi-head attention of Vaswani et al. 2017, arXiv:1706.03762; with one key head,
    the multi-query attention of Shazeer 2019, arXiv:1911.02150.
    """

    sinks: nn.Parameter | None

    def __init__(
        self,
        shape: shapes.AttentionShape,
        head_channels: int,
        norm: Normalisation,
        settings: AttentionSettings,
        alibi: bool = False,
        rotated: bool = True,
    ) -> None:
        super().__init__()
        self.head_channels = head_channels
        # A model with rotary positions may leave them out in some layers.
        self.rotated = rotated
        self.settings = settings
        self.alibi = alibi
        self.query_scale = settings.query_scale
        self.logit_cap = settings.logit_cap
        self.query = layer_parts.build_projection(shape.query)
        self.key = layer_parts.build_projection(shape.key)
        self.value = layer_parts.build_projection(shape.value)
        self.output = layer_parts.build_projection(shape.output)
        # This is an attribute so that it can be replaced, for example by `fuse_projections`.
        self.multiply: layer_parts.Multiply = layer_parts.multiply_each
        self.query_norm = (
            None if shape.query_norm is None else layer_parts.Norm(shape.query_norm, norm)
        )
        self.key_norm = None if shape.key_norm is None else layer_parts.Norm(shape.key_norm, norm)
        self.sinks = (
            None if shape.sinks is None else nn.Parameter(torch.zeros(shape.sinks.channels))
        )
        for name, part in shape.added.items():
            self._add(name, part, norm)

    def forward(self, x_BTC: Tensor, sight: Sight, cache: Cache | None = None) -> Tensor:
        """Return the attention output [B, T, C] of `x_BTC`.

        The T positions are appended to `cache` if it is given.
        """
        # Where ranks divide the rows, one may have none, and not all kernels accept an empty batch.
        if x_BTC.shape[0] == 0:
            return x_BTC
        query_BTE, key_BTE, value_BTE = self.multiply(x_BTC, (self.query, self.key, self.value))
        query_BHTD = self._split_heads(query_BTE, self.query_norm)
        key_BKSD = self._split_heads(key_BTE, self.key_norm)
        if self.rotated and sight.rotation is not None:
            query_BHTD = sight.rotation(query_BHTD)
            key_BKSD = sight.rotation(key_BKSD)
        value_BKSD = self._split_heads(value_BTE, None)
        # The unrotated tensors are not needed again, so their memory is freed.
        del query_BTE, key_BTE, value_BTE
        if cache is not None:
            key_BKSD, value_BKSD = cache.extend(key_BKSD, value_BKSD)
        see = functools.partial(self.attend, sight=sight)
        seen_BHTD = self.settings.attend(self, x_BTC, query_BHTD, key_BKSD, value_BKSD, see)
        mixed_BTC: Tensor = self.output(seen_BHTD.transpose(1, 2).flatten(2))
        return mixed_BTC

    def attend(
        self, query_BHTD: Tensor, key_BKSD: Tensor, value_BKSD: Tensor, sight: Sight
    ) -> Tensor:
        """Return the attention output of each query, [B, H, T, D].

        The queries are the last T of S positions. Uses torch's kernel where it can, and trainrig's
        otherwise. This is a method of its own so that it can be replaced, for example by attention
        across devices.
        """
        new = query_BHTD.shape[2]
        seen = key_BKSD.shape[2]
        way = self.choose_way(new, seen, sight)
        if way in ("prepared", "blocks"):
            rows = sight.rows if way == "prepared" else None
            return self._attend_by_reach(query_BHTD, key_BKSD, value_BKSD, sight, rows)
        if way == "documents":
            assert sight.documents_BS is not None
            return cpu_attention.document_attention(
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
            if cpu_attention.suits_biased_attention(mask_B1TS, query_BHTD, key_BKSD):
                scale = self.query_scale or 1 / math.sqrt(self.head_channels)
                return cpu_attention.biased_attention(
                    query_BHTD, key_BKSD, value_BKSD, mask_B1TS, scale=scale
                )
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
        """Return how attention of the last `new` of `seen` positions is computed.

        docs/attention.md lists which of torch's kernels each way leads to.
        """
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
        return "mask" if new > 1 else "all"  # a single query attends to all positions

    def _attend_by_reach(
        self,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        value_BKSD: Tensor,
        sight: Sight,
        rows: PreparedRows | None,
    ) -> Tensor:
        """Return the attention output of each query, by the kernel that `rows` were prepared for.

        Without `rows`, the output is computed by plain products in blocks.
        """
        seen = key_BKSD.shape[2]
        documents_BS = sight.documents_BS
        slopes_H = None
        if documents_BS is not None:
            documents_BS = documents_BS[:, documents_BS.shape[1] - seen :]
        if self.alibi:
            heads = query_BHTD.shape[1]
            slopes_H = torch.tensor(
                layer_parts.compute_alibi_slopes(heads), device=query_BHTD.device
            )
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

    def _split_heads(self, x_BTE: Tensor, norm: layer_parts.Norm | None) -> Tensor:
        """Return `x_BTE` as [B, heads, T, D].

        A `norm` is applied over all channels or over those of each head, by its size.
        """
        if norm is not None and norm.weight.shape[0] == x_BTE.shape[-1] != self.head_channels:
            x_BTE = norm(x_BTE)
            norm = None
        x_BTHD = x_BTE.view(*x_BTE.shape[:2], -1, self.head_channels)
        if norm is not None:
            x_BTHD = norm(x_BTHD)
        return x_BTHD.transpose(1, 2)

    def _add(
        self,
        name: str,
        part: shapes.ProjectionShape | shapes.NormShape | shapes.VectorShape,
        norm: Normalisation,
    ) -> None:
        """Register the part `name`, which a kind of attention adds to the plain kind."""
        if isinstance(part, shapes.VectorShape):
            self.register_parameter(name, nn.Parameter(torch.zeros(part.channels)))
        elif isinstance(part, shapes.NormShape):
            self.add_module(name, layer_parts.Norm(part, norm))
        else:
            self.add_module(name, layer_parts.build_projection(part))


def number_documents(positions_BT: Tensor) -> Tensor:
    """Return the number of the document of each token, [B, T].

    `positions_BT` [B, T] counts from 0 in each document; a row may begin inside a document.
    """
    documents_BT = (positions_BT == 0).cumsum(dim=1)
    on_host = find_on_host(positions_BT)
    # This avoids a copy from the device when the numbers are read on the host.
    if on_host is not None:
        remember_copy(documents_BT, (on_host == 0).cumsum(dim=1))
    return documents_BT


def needs_mask(documents_BS: Tensor, new: int, dtype: torch.dtype, kernel: Kernel | None) -> bool:
    """Return whether attention of the last `new` queries, of `dtype`, needs a mask of whole rows.

    That is so where no `kernel` was chosen that separates documents and documents are not computed
    one by one either.
    """
    return kernel is None and not cpu_attention.reads_documents(documents_BS, new, dtype)


def make_document_mask(
    documents_BS: Tensor, new: int, causal: bool = True, marks: MaskRegions | None = None
) -> Tensor:
    """Return a mask [B, 1, T, S], true where one of the last T = `new` positions may look.

    A token may look at itself and at earlier tokens of its own document; if not `causal`, at the
    whole document. `marks` adds prefixes and branches. The mask takes B * T * S bytes, and
    attention is computed over whole rows, most of which it hides.
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
    """Return what to add to logits of `dtype`: 0 where the mask is true, else minus infinity."""
    shown = torch.zeros((), dtype=dtype, device=mask_B1TS.device)
    return torch.where(mask_B1TS, shown, -math.inf)


def _make_causal_mask(new: int, seen: int, device: torch.device) -> Tensor:
    """Return a causal mask [T, S] of the last T positions; torch's own is for the first T."""
    return torch.ones(new, seen, dtype=torch.bool, device=device).tril(seen - new)
