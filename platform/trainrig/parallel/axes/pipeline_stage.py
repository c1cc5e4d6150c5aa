"""One rank's stages of a decoder, with the parameter names of the whole model.

Shapes: B rows of a micro-batch, T positions, C channels, R layers with a router, K numbers that a
router gives.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.moe import ROUTER_TERMS
from trainrig.models.output import Head, ModelOutput

ROUTERS = "routers"


class StageDecoder(Decoder):
    """One stage of a decoder, or several that are not adjacent: some layers each.

    The first stage also has the embedding; the last one has the norm and the head. If the head is
    tied, the last stage has a copy of the embedding's weight.

    A forward pass runs the one stage that `begin` selected. A stage that is not the first starts
    from hidden states [B, t, C] instead of the ids it is given. A stage that is not the last
    returns hidden states, with a head of no entries; t of the T positions where ranks that share
    layers divide them (sequence parallelism). In a mixture of experts, the router terms of all
    layers so far travel the same way, under the name `ROUTERS`, so that the last stage computes
    their mean as a single process does.
    """

    def __init__(
        self,
        config: DecoderConfig,
        stages: Sequence[range],
        stream: torch.dtype = torch.float32,
        parts: int = 1,
    ) -> None:
        """Keep the layers of `stages`.

        `stages`: the layers of each of this rank's stages. `stream`: dtype of the hidden states
        between stages. `parts`: number of ranks that divide their positions
        (`parallel.tensor.sequence`).
        """
        super().__init__(config)
        self.stages = tuple(stages)
        self.stream = stream
        self._parts = parts
        self._chunk = 0  # the entry of `stages` that the forward pass runs
        self._received: Tensor | None = None  # hidden states from the stage before
        self._before: tuple[Tensor, ...] = ()  # router terms of earlier stages, in order
        self.first = stages[0].start == 0
        self.last = stages[-1].stop == config.layers
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
        """True if this rank has a copy of the first stage's embedding, for a tied head."""
        return self.last and not self.first and self.config.shapes.head is None

    def begin(self, chunk: int, received: Sequence[Tensor]) -> None:
        """Select the stage of the next forward pass, and its inputs.

        `received`: empty for the first stage of all, else hidden states and, if there are routers
        before, their terms [R, K].
        """
        self._chunk = chunk
        self._received = received[0] if received else None
        self._before = received[1].unbind() if len(received) > 1 else ()

    def stream_shape(self, ids_BT: Tensor) -> tuple[int, int, int]:
        """Return the shape [B, t, C] of the hidden states between stages for `ids_BT`."""
        rows, places = ids_BT.shape
        return rows, -(-places // self._parts), self.shape.channels

    def router_shape(self, layers: int) -> tuple[int, int]:
        """Return the shape [R, K] of the router terms of the model's first `layers` layers."""
        mixture = self.config.feedforward
        if not isinstance(mixture, MixtureOfExperts):
            return 0, 0
        return max(0, layers - mixture.dense_layers), len(ROUTER_TERMS) + mixture.experts

    def auxiliary(self) -> Mapping[str, Tensor]:
        """Return zeros under the names of the last stage's outputs besides logits."""
        shape = self.router_shape(self.config.layers)
        return self._average_router_terms(torch.zeros(shape).unbind()) if shape[0] else {}

    def begins(self, chunk: int) -> bool:
        """Return whether stage `chunk` is the first of all stages, which reads ids."""
        return self.stages[chunk].start == 0

    def ends(self, chunk: int) -> bool:
        """Return whether stage `chunk` is the last of all stages, which returns logits."""
        return self.stages[chunk].stop == self.config.layers

    def find_chunk(self, module: nn.Module) -> int:
        """Return the number of the stage that has the parameters of `module`, a part of this model.

        The embedding belongs to the first chunk if this rank has it. The norm and the head
        otherwise belong to the last chunk.
        """
        for chunk, layers in enumerate(self.stages):
            own = (self.layers.get_submodule(str(number)) for number in layers)
            if any(module is part for layer in own for part in layer.modules()):
                return chunk
        return 0 if self.first else len(self.stages) - 1

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        received = self._received
        self._received = None
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
