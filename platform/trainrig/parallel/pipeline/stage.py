"""One stage of a decoder that is cut into stages, by the names that its parts have in the whole.

Shapes: B rows of a micro-batch, T positions, C channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainrig.models.attention import Cache
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.output import Head, ModelOutput


class StageDecoder(Decoder):
    """Some layers of a decoder. The first stage has the embedding beside them, the last one the
    norm and the head; where that is tied, the last has a copy of the embedding's weight.

    A stage that is not the first is given hidden states [B, T, C] in the place of ids, and one that
    is not the last gives them back, with a head of no entries.
    """

    def __init__(
        self, config: DecoderConfig, layers: range, stream: torch.dtype = torch.float32
    ) -> None:
        """`layers`: those of this stage; `stream`: of what flows from stage to stage."""
        super().__init__(config)
        self.stream = stream
        self.first, self.last = layers.start == 0, layers.stop == config.layers
        held = nn.ModuleList()
        for number in layers:
            held.add_module(str(number), self.layers[number])
        self.layers = held
        self._local = self._local[layers.start : layers.stop]
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

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        return super()._embed(ids_BT, positions) if self.first else ids_BT

    def _predict(
        self,
        x_BTC: Tensor,
        positions: Tensor,
        documents_BS: Tensor | None,
        caches: Sequence[Cache] | None,
        places_N: Tensor | None,
        prefixes_BT: Tensor | None = None,
    ) -> ModelOutput:
        if self.last:
            return super()._predict(x_BTC, positions, documents_BS, caches, places_N, prefixes_BT)
        x_BTC, _ = self._pass_layers(x_BTC, positions, documents_BS, caches, prefixes_BT)
        return ModelOutput(x_BTC, Head(torch.empty(0, x_BTC.shape[-1], device=x_BTC.device)))
