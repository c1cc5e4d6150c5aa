"""A causal language model, assembled from the parts that its settings choose.

With default settings it follows Llama (Touvron et al. 2023, arXiv:2302.13971): root-mean-square
norms before each part, rotary positions, grouped queries, SwiGLU, no biases.

Shapes: B batch, T positions, S positions including cached ones, C channels, V vocabulary entries, N
chosen places.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from trainrig.models import attention
from trainrig.models.architecture.attention_settings import find_maskless_setting, hides_by_distance
from trainrig.models.architecture.decoder_config import (
    DecoderConfig,
    count_parameters,
)
from trainrig.models.architecture.layer_settings import Alibi, MixtureOfExperts, PostNorm, Rope
from trainrig.models.architecture.shapes import (
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    NormShape,
)
from trainrig.models.initial_values import fill_fresh
from trainrig.models.kernels.kernel_choice import (
    AttentionCase,
    Kernel,
    KernelChoice,
    WantedKernel,
    choose_kernel,
)
from trainrig.models.kernels.kernel_support import read_card
from trainrig.models.kernels.prepared_rows import PreparedRows, prepare_rows
from trainrig.models.latent_attention import build_attention
from trainrig.models.layer_parts import DenseFeedForward, Embedding, Norm, Rotation
from trainrig.models.moe import EXPERT_TOKENS, ROUTER_TERMS, ExpertFeedForward, find_text
from trainrig.models.output import Head, ModelOutput, build_output_projection, reach_head


class Layer(nn.Module):
    """One Transformer layer: attention and a feed-forward network, in sequence or in parallel."""

    def __init__(self, shape: LayerShape, config: DecoderConfig, rotated: bool = True) -> None:
        """Build the parts of a layer of `shape`.

        `rotated` says whether the layer rotates queries and keys in a model with rotary positions.
        """
        super().__init__()
        self.block = config.block
        self.residual_multiplier = config.residual_multiplier

        def norm(of: NormShape | None) -> Norm | None:
            return None if of is None else Norm(of, config.norm)

        self.attention_norm = norm(shape.attention_norm)
        self.attention = build_attention(
            shape.attention,
            config.shape.head_channels,
            config.norm,
            config.plain.attention,
            isinstance(config.position_embedding, Alibi),
            rotated,
        )
        self.attention_output_norm = norm(shape.attention_output_norm)
        self.feedforward_norm = norm(shape.feedforward_norm)
        self.feedforward = _feedforward(shape.feedforward, config)
        self.feedforward_output_norm = norm(shape.feedforward_output_norm)

    def forward(
        self, x_BTC: Tensor, sight: attention.Sight, cache: attention.Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the layer's output [B, T, C], and the router's terms and counts if it has experts.

        `cache`, if given, is extended by these T positions. See `ExpertFeedForward.forward` for the
        terms.
        """
        if self.block.kind == "ParallelBlock":
            seen_BTC = _apply_norm(self.attention_norm, x_BTC)
            alone_BTC = seen_BTC
            if self.feedforward_norm is not None:
                alone_BTC = self.feedforward_norm(x_BTC)
            changed_BTC, router = self._feed_forward(alone_BTC, sight)
            both_BTC = self.attention(seen_BTC, sight, cache) + changed_BTC
            return x_BTC + self._scale(both_BTC), router
        if isinstance(self.block, PostNorm):
            x_BTC = x_BTC + self._scale(self.attention(x_BTC, sight, cache))
            x_BTC = _apply_norm(self.attention_norm, x_BTC)
            changed_BTC, router = self._feed_forward(x_BTC, sight)
            return _apply_norm(self.feedforward_norm, x_BTC + self._scale(changed_BTC)), router
        seen_BTC = self.attention(_apply_norm(self.attention_norm, x_BTC), sight, cache)
        x_BTC = x_BTC + self._scale(_apply_norm(self.attention_output_norm, seen_BTC))
        changed_BTC, router = self._feed_forward(_apply_norm(self.feedforward_norm, x_BTC), sight)
        changed_BTC = _apply_norm(self.feedforward_output_norm, changed_BTC)
        return x_BTC + self._scale(changed_BTC), router

    def _feed_forward(self, x_BTC: Tensor, sight: attention.Sight) -> tuple[Tensor, Tensor | None]:
        if isinstance(self.feedforward, ExpertFeedForward):
            changed_BTC, router = self.feedforward(x_BTC, sight.text_BT)
            return changed_BTC, router
        return self.feedforward(x_BTC), None

    def _scale(self, x_BTC: Tensor) -> Tensor:
        return x_BTC if self.residual_multiplier == 1 else x_BTC * self.residual_multiplier


class Decoder(nn.Module):
    """Language model that predicts each next token; call `initialise` to fill its weights."""

    Config = DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        shapes = config.shapes
        window = config.attention.window
        self.config = config
        self.shape = config.shape
        self.embedding = Embedding(shapes.embedding.entries, shapes.embedding.channels)
        learnt = shapes.position_embedding
        self.position_embedding = (
            None if learnt is None else nn.Embedding(learnt.entries, learnt.channels)
        )
        rope = config.position_embedding
        self.layers = nn.ModuleList(
            Layer(shape, config, not isinstance(rope, Rope) or rope.is_rotated(index))
            for index, shape in enumerate(shapes.layers)
        )
        # The pattern of rotated layers ends with the layers above: these are always rotated.
        self.further_layers = nn.ModuleList(Layer(shape, config) for shape in shapes.further_layers)
        # Whether each layer has a sliding window.
        self._local = [window is not None and window.is_local(n) for n in range(config.layers)]
        self.norm = None if shapes.norm is None else Norm(shapes.norm, config.norm)
        self._logit_multiplier = config.plain.logit_multiplier
        self._changes_logits = (
            config.attention.logit_cap is not None
            or config.attention.sinks
            or isinstance(config.position_embedding, Alibi)
        )
        # This is an attribute because it says how attention is computed and is no part of the
        # model.
        self.attention_kernel: WantedKernel = "auto"
        # A tied head is the embedding: one tensor, and one entry in every checkpoint.
        self.head = None if shapes.head is None else build_output_projection(shapes.head)

    def forward(
        self,
        ids_BT: Tensor,
        caches: Sequence[attention.Cache] | None = None,
        positions_BT: Tensor | None = None,
        documents_BS: Tensor | None = None,
        places_N: Tensor | None = None,
        prefixes_BT: Tensor | None = None,
        branches_BT: Tensor | None = None,
        further: bool = False,
        text_BT: Tensor | None = None,
    ) -> ModelOutput | tuple[ModelOutput, ...]:
        """Return the hidden states and the head that give the logits [B, T, V] of each next token.

        Args:
            ids_BT: Token ids [B, T].
            caches: One for each layer. `ids_BT` continues the positions that they hold, and the new
                positions are appended.
            positions_BT: Each token's position in its own document, [B, T], for rows that hold
                several documents. A document begins at each 0, and tokens attend only to their own.
            documents_BS: Number of the document of every position, [B, S], those in the caches
                first. Needed with `positions_BT` and caches, for example where a row begins with
                padding. The positions of a document are contiguous.
            places_N: Indices into the B * T places. Only their logits are computed, [N, V].
            prefixes_BT: True for tokens that all of their document attends to, earlier tokens too.
            branches_BT: Number of the branch that each token belongs to, where several branches
                continue one beginning. A token attends to branch 0 and to its own branch.
            further: Whether to return also the outputs of the further heads, which predict the
                tokens after the next one.
            text_BT: False for padding, [B, T]. A mixture of experts leaves padding out of its
                balance, loads and capacity. By default padding is every position with document
                number 0, or without documents and caches all that follows the last of `places_N`
                in a row.

        Raises ValueError for prefixes or branches with caches or with attention that takes no such
        mask, and for more tokens than the model has positions.
        """
        if self.counts_padding and text_BT is None:
            # With caches, places only say whose logits are wanted, and mark no padding.
            text_BT = _find_text(ids_BT, None if caches else places_N, documents_BS)
        past = len(caches[0]) if caches else 0
        last = past + ids_BT.shape[1]
        # With documents, positions count within each document, so a row may be wider than the
        # model.
        one_text = documents_BS is None and positions_BT is None
        if one_text and last > self.config.positions:
            raise ValueError(
                f"a row has {last} tokens, but the model has only {self.config.positions} positions"
            )
        if positions_BT is None:
            positions = torch.arange(past, last, device=ids_BT.device)
        elif caches and documents_BS is None:
            raise ValueError("positions_BT with caches also needs documents_BS of all positions")
        else:
            positions = positions_BT
            if documents_BS is None:
                documents_BS = attention.number_documents(positions_BT)
        marks = None
        if prefixes_BT is not None or branches_BT is not None:
            self._check_masks("branches" if prefixes_BT is None else "prefixes", caches)
            if documents_BS is None:
                documents_BS = torch.ones_like(ids_BT)
            marks = attention.MaskRegions(prefixes_BT, branches_BT)
        x_BTC = self._embed(ids_BT, positions)
        if further:
            if marks is not None:
                raise ValueError("further heads support neither prefixes nor branches")
            return self._predict_several(x_BTC, positions, documents_BS, text_BT)
        return self._predict(x_BTC, positions, documents_BS, caches, places_N, marks, text_BT)

    def _check_masks(self, what: str, caches: Sequence[attention.Cache] | None) -> None:
        """Raise ValueError where attention takes no mask, which `what` needs."""
        if caches:
            raise ValueError(f"{what} cannot be combined with caches")
        setting = find_maskless_setting(self.config.attention, self.config.position_embedding)
        if setting:
            raise ValueError(
                f"{setting} uses a kernel without masks, so it does not support {what}"
            )

    @property
    def counts_padding(self) -> bool:
        """Return whether padding changes what the model computes, unless `text_BT` marks it."""
        return isinstance(self.config.feedforward, MixtureOfExperts)

    def choose_kernel(
        self, dtype: torch.dtype, device: torch.device, in_ring: bool = False
    ) -> KernelChoice:
        """Return the attention kernel for queries of `dtype` on `device`.

        The kernel serves documents, windows, soft caps, sinks and ALiBi. Raises ConfigError if the
        requested kernel cannot compute them on that device.
        """
        compute = str(dtype).removeprefix("torch.")
        case = AttentionCase.describe(self.config, compute, in_ring)
        return choose_kernel(self.attention_kernel, case, read_card(device))

    @property
    def reads_branches(self) -> bool:
        """Return whether branches in one row give the same outputs as separate rows would.

        They do not where a kernel hides by distance in the row, or where experts or dropout depend
        on the row.
        """
        if find_maskless_setting(self.config.attention, self.config.position_embedding):
            return False
        if self.config.bidirectional or isinstance(self.config.feedforward, MixtureOfExperts):
            return False
        dropped = torch.is_grad_enabled() and any(
            getattr(module, "drops_by_row", False) for module in self.modules()
        )
        return not dropped

    def _predict_several(
        self,
        x_BTC: Tensor,
        positions: Tensor,
        documents_BS: Tensor | None,
        text_BT: Tensor | None,
    ) -> tuple[ModelOutput, ...]:
        """Return the outputs for the next token and for those after it (see `forward`)."""
        x_BTC, routers = self._pass_layers(x_BTC, positions, documents_BS, None, text_BT=text_BT)
        sight = self.sights(positions, documents_BS, dtype=x_BTC.dtype)[False]
        sight.text_BT = text_BT
        streams = [x_BTC, *(layer(x_BTC, sight)[0] for layer in self.further_layers)]
        return self._finish_streams(streams, routers, None, documents_BS)

    def _takes_mask(
        self,
        documents_BS: Tensor,
        new: int,
        marks: attention.MaskRegions | None,
        dtype: torch.dtype | None,
        kernel: Kernel | None,
    ) -> bool:
        """Return whether the kernel of some layer takes a mask of `documents_BS`.

        Attention in blocks, or one document at a time, takes none.
        """
        seen = documents_BS.shape[-1]
        # A layer's cache may hold fewer positions than were read.
        if new != seen or marks is not None:
            return True
        if not self.config.takes_mask(seen):
            return False
        return dtype is None or attention.needs_mask(documents_BS, new, dtype, kernel)

    @property
    def every_layer(self) -> list[nn.Module]:
        """The layers of the model, of its further heads and of models that are trained with it."""
        return [*self.layers, *self.further_layers]

    def _predict(
        self,
        x_BTC: Tensor,
        positions: Tensor,
        documents_BS: Tensor | None,
        caches: Sequence[attention.Cache] | None,
        places_N: Tensor | None,
        marks: attention.MaskRegions | None = None,
        text_BT: Tensor | None = None,
    ) -> ModelOutput:
        """Return the output for the embedded tokens `x_BTC` (see `forward`)."""
        x_BTC, routers = self._pass_layers(x_BTC, positions, documents_BS, caches, marks, text_BT)
        return self._finish(x_BTC, routers, places_N, documents_BS)

    def _finish(
        self,
        x_BTC: Tensor,
        routers: Sequence[Tensor],
        places_N: Tensor | None,
        documents_BS: Tensor | None,
    ) -> ModelOutput:
        """Return the output for the hidden states `x_BTC` after the last layer."""
        return self._finish_streams([x_BTC], routers, places_N, documents_BS)[0]

    def _finish_streams(
        self,
        streams: Sequence[Tensor],
        routers: Sequence[Tensor],
        places_N: Tensor | None,
        documents_BS: Tensor | None,
    ) -> tuple[ModelOutput, ...]:
        """Return an output for each of `streams`, hidden states of one pass with the same head."""

        def finish(x_BTC: Tensor) -> Tensor:
            return self._prepare_head_input(self._read_places(x_BTC, places_N, documents_BS))

        layer = self.embedding if self.head is None else self.head
        hidden, weight_VC = reach_head(layer, finish, streams)
        head = self._output_head(weight_VC, self._head_bias())
        terms = self._average_router_terms(routers)
        return tuple(ModelOutput(states, head, terms) for states in hidden)

    def _pass_layers(
        self,
        x_BTC: Tensor,
        positions: Tensor,
        documents_BS: Tensor | None,
        caches: Sequence[attention.Cache] | None,
        marks: attention.MaskRegions | None = None,
        text_BT: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return `x_BTC` after all layers, [B, T, C], and the router terms of each layer."""
        sights = self.sights(positions, documents_BS, marks, x_BTC.dtype)
        for sight in sights.values():
            sight.text_BT = text_BT
        routers: list[Tensor] = []
        for index, layer in self._number_layers():
            sight = sights[self._local[index]]
            x_BTC, router = layer(x_BTC, sight, caches[index] if caches else None)
            if router is not None:
                routers.append(router)
        return x_BTC, routers

    def _number_layers(self) -> Iterable[tuple[int, nn.Module]]:
        """Return the layers of a forward pass with their indices in the whole model."""
        return enumerate(self.layers)

    def _read_places(
        self, x_BTC: Tensor, places_N: Tensor | None, documents_BS: Tensor | None
    ) -> Tensor:
        """Return the normalised hidden states: [B, T, C], or [N, C] of the chosen places."""
        if places_N is not None:
            x_BTC = x_BTC.flatten(0, 1)[places_N]
        return _apply_norm(self.norm, x_BTC)

    def _prepare_head_input(self, x_BTC: Tensor) -> Tensor:
        """Return the input of the head: here the normalised hidden states themselves."""
        return x_BTC

    def _head_bias(self) -> Tensor | None:
        return None if self.head is None else self.head.bias

    def _output_head(self, weight_VC: Tensor, bias_V: Tensor | None) -> Head:
        # A score is not capped or scaled, which would change its value.
        if self.config.head != "tokens":
            return Head(weight_VC, bias_V)
        return Head(weight_VC, bias_V, self.config.logit_cap, self._logit_multiplier)

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        x_BTC: Tensor = self.embedding(ids_BT)
        if self.config.embedding_multiplier != 1:
            x_BTC = x_BTC * self.config.embedding_multiplier
        if self.position_embedding is not None:
            x_BTC = x_BTC + self.position_embedding(positions)
        return x_BTC

    def sights(
        self,
        positions: Tensor,
        documents_BS: Tensor | None,
        marks: attention.MaskRegions | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[bool, attention.Sight]:
        """Return what global (False) and local layers (True) share for queries of `dtype`.

        This is a method of its own so that it can be replaced, for example where rows are divided
        over devices.
        """
        new = positions.shape[-1]
        width = self.config.rotary_channels
        causal = not self.config.bidirectional
        mask_B1TS = added_B1TS = kernel = None
        if dtype is not None:
            kernel = self.choose_kernel(dtype, positions.device).kernel
        if documents_BS is not None and self._takes_mask(documents_BS, new, marks, dtype, kernel):
            mask_B1TS = attention.make_document_mask(documents_BS, new, causal, marks)
            if dtype is not None and torch.is_grad_enabled():
                added_B1TS = attention.make_added_mask(mask_B1TS, dtype)
        rope = self.config.position_embedding
        window = self.config.attention.window
        rotation = Rotation(positions, width, rope) if isinstance(rope, Rope) else None
        # The kernels compute no caches, prefixes or branches: those need the mask.
        if mask_B1TS is not None:
            kernel = None
        rows = self._prepare_rows(kernel, positions, documents_BS, None)
        rest = mask_B1TS, causal, added_B1TS, kernel
        sights = {False: attention.Sight(rotation, documents_BS, None, *rest, rows)}
        if window is not None:
            local = rotation if window.rope is None else Rotation(positions, width, window.rope)
            rows = self._prepare_rows(kernel, positions, documents_BS, window.size)
            sights[True] = attention.Sight(local, documents_BS, window.size, *rest, rows)
        return sights

    def _prepare_rows(
        self,
        kernel: Kernel | None,
        positions: Tensor,
        documents_BS: Tensor | None,
        window: int | None,
    ) -> PreparedRows | None:
        """Return what `kernel` needs to know of whole rows, in layers with that `window`.

        None if it needs nothing, or if torch's own attention computes these rows.
        """
        new = positions.shape[-1]
        causal = not self.config.bidirectional
        hides = hides_by_distance(window, new, causal)
        if documents_BS is None:
            is_alone = new == 1  # one token that continues a cache
            if is_alone or not (hides or self._changes_logits):
                return None
        elif documents_BS.shape[1] != new:
            return None
        where = documents_BS, (new, new), positions.device
        return prepare_rows(kernel, *where, window if hides else None, causal)

    def _average_router_terms(self, routers: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the mean of each router term over the layers, and token counts by layer.

        Only layers with experts and terms that the settings ask for count. The token counts are
        [E], one for each expert.
        """
        mixture = self.config.feedforward
        if not isinstance(mixture, MixtureOfExperts):
            return {}
        wanted = (mixture.balance_loss, mixture.router_z_loss, mixture.balance_bias)
        count = len(ROUTER_TERMS)
        means = torch.stack([router[:count] for router in routers]).mean(0)
        terms = zip(ROUTER_TERMS, means.unbind(), wanted, strict=True)
        tokens = {
            f"{EXPERT_TOKENS}/{layer}": router[count:].detach()
            for layer, router in enumerate(routers, mixture.dense_layers)
        }
        return {name: mean for name, mean, asked in terms if asked} | tokens


def initialise(model: Decoder, seed: int) -> None:
    """Give every parameter its initial value, in place, on whatever device it is.

    A model made on the meta device needs `to_empty` first.
    """
    for name, parameter in model.named_parameters():
        first = (0,) * parameter.ndim
        fill_fresh(parameter, name, parameter.shape, first, model.config, seed)


def _feedforward(
    shape: FeedForwardShape | MixtureShape, config: DecoderConfig
) -> DenseFeedForward | ExpertFeedForward:
    if isinstance(shape, FeedForwardShape):
        return DenseFeedForward(shape, config.network)
    assert isinstance(config.feedforward, MixtureOfExperts)
    return ExpertFeedForward(shape, config.feedforward)


def _find_text(
    ids_BT: Tensor, places_N: Tensor | None, documents_BS: Tensor | None
) -> Tensor | None:
    """Return which of `ids_BT` are not padding, [B, T], or None if that is unknown.

    `Decoder.forward` says how padding is found.
    """
    if documents_BS is not None:
        return documents_BS[:, -ids_BT.shape[1] :] != 0
    if places_N is None:
        return None
    asked_BT = torch.zeros(ids_BT.shape, dtype=torch.bool, device=ids_BT.device)
    asked_BT.view(-1).index_fill_(0, places_N, True)
    return find_text(asked_BT)


def _apply_norm(norm: Norm | None, x_BTC: Tensor) -> Tensor:
    return x_BTC if norm is None else norm(x_BTC)


__all__ = [
    "Decoder",
    "DecoderConfig",
    "Layer",
    "count_parameters",
    "initialise",
]
