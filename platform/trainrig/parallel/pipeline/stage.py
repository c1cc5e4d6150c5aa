"""What a rank has of a decoder that is cut into stages, by the names that parts have in the whole.

Shapes: B rows of a micro-batch, T positions, C channels, R layers with a router, K numbers that a
router gives.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.moe import ROUTER_TERMS
from trainrig.models.output import Head, ModelOutput

ROUTERS = "routers"


class StageDecoder(Decoder):
    """One stage of a decoder, or several that do not follow one another: some layers each. The
    first stage has the embedding beside them, the last one the norm and the head; where that is
    tied, the last has a copy of the embedding's weight.

    A forward pass is of one stage, as `begin` says. One that is not the first goes on from hidden
    states [B, t, C] instead of the ids it is given, and one that is not the last gives them back,
    with a head of no entries: t of the T places where ranks that share layers have some each. Of a
    mixture of experts, what the routers of all layers so far add to the loss goes the same way, as
    `ROUTERS` of what a stage gives, so that the last computes their mean as one process does.
    """

    def __init__(
        self,
        config: DecoderConfig,
        stages: Sequence[range],
        stream: torch.dtype = torch.float32,
        parts: int = 1,
    ) -> None:
        """`stages`: the layers of each that this rank has; `stream`: of what flows between.
        `parts`: ranks that have some places each of it (`parallel.tensor.sequence`)."""
        super().__init__(config)
        self.stages, self.stream, self._parts = tuple(stages), stream, parts
        self._chunk = 0  # which of `stages` the forward pass is of
        self._received: Tensor | None = None  # hidden states of the stage before
        self._before: tuple[Tensor, ...] = ()  # of the routers of earlier stages, in order
        self.first, self.last = stages[0].start == 0, stages[-1].stop == config.layers
        held = nn.ModuleList()
        for number in (n for layers in stages for n in layers):
            held.add_module(str(number), self.layers[number])
        self.layers = held
        if not self.first:
            self.position_embedding = None
        if not self.first and not self.copies_embedding:
            del self.embedding
        if not self.last:
            self.norm = self.head = None

    @property
    def copies_embedding(self) -> bool:
        """Whether it has a copy of the embedding, which is the first stage's, for its head."""
        return self.last and not self.first and self.config.shapes.head is None

    def begin(self, chunk: int, received: Sequence[Tensor]) -> None:
        """The next forward pass is of that stage, before which came `received`: none for the
        first of all, else hidden states, and what routers gave [R, K] if there are any."""
        self._chunk = chunk
        self._received = received[0] if received else None
        self._before = received[1].unbind() if len(received) > 1 else ()

    def stream_shape(self, ids_BT: Tensor) -> tuple[int, int, int]:
        """[B, t, C], of what flows between stages for `ids_BT`."""
        rows, places = ids_BT.shape
        return rows, -(-places // self._parts), self.shape.channels

    def router_shape(self, layers: int) -> tuple[int, int]:
        """Of what the routers of so many layers, the first of the model, give together."""
        mixture = self.config.feedforward
        if not isinstance(mixture, MixtureOfExperts):
            return 0, 0
        return max(0, layers - mixture.dense_layers), len(ROUTER_TERMS) + mixture.experts

    def auxiliary(self) -> Mapping[str, Tensor]:
        """Zeros, by the names of what the last stage gives beside logits."""
        shape = self.router_shape(self.config.layers)
        return self._average_router_terms(torch.zeros(shape).unbind()) if shape[0] else {}

    def begins(self, chunk: int) -> bool:
        """Whether that is the first of all stages, which is given ids."""
        return self.stages[chunk].start == 0

    def ends(self, chunk: int) -> bool:
        """Whether that is the last of all stages, which gives logits."""
        return self.stages[chunk].stop == self.config.layers

    def find_chunk(self, module: nn.Module) -> int:
        """The stage that `module`, a layer or a part of one or all of this, has parameters of. The
        ends of the model are beside the layers: the first chunk's where it has the embedding, else
        the last's."""
        for chunk, layers in enumerate(self.stages):
            own = (self.layers.get_submodule(str(number)) for number in layers)
            if any(module is part for layer in own for part in layer.modules()):
                return chunk
        return 0 if self.first else len(self.stages) - 1

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        received, self._received = self._received, None
        return super()._embed(ids_BT, positions) if received is None else received

    def _number_layers(self) -> Iterable[tuple[int, nn.Module]]:
        for number in self.stages[self._chunk]:
            yield number, self.layers.get_submodule(str(number))

    def _finish(
        self,
        x_BTC: Tensor,
        routers: Sequence[Tensor],
        places_N: Tensor | None,
        documents_BS: Tensor | None,
    ) -> ModelOutput:
        routers = (*self._before, *routers)
        if self.ends(self._chunk):
            return super()._finish(x_BTC, routers, places_N, documents_BS)
        head = Head(torch.empty(0, x_BTC.shape[-1], device=x_BTC.device))
        return ModelOutput(x_BTC, head, {ROUTERS: torch.stack(routers)} if routers else {})
