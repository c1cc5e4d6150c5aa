"""Sampling of rollouts with vLLM, using the current weights of the trained model."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from trainrig.tokens.special_tokens import TokenizerFiles

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from trainrig.models.decoder import Decoder
    from trainrig.models.generation import (
        Request,
        ScoredGeneration,
    )
    from trainrig.posttrain.vllm_engine.model import VllmModel


class VllmSampler:
    """Instance of vLLM that reloads the weights of a model when they have changed."""

    def __init__(self, files: TokenizerFiles, memory: float) -> None:
        """Store the settings; vLLM starts at the first call of `generate`.

        Args:
            files: Files of the model's tokenizer.
            memory: Share of the GPU's memory that vLLM takes, 0 to 1.
        """
        self._files = files
        self._memory = memory
        self._vllm: VllmModel | None = None
        self._follows = False  # True while vLLM has the model's current weights

    def take_weights(self) -> None:
        """Note that the model's weights have changed, so that `generate` reloads them."""
        self._follows = False

    def generate(
        self, model: "Decoder", requests: "Sequence[Request]", stop: Collection[int], entries: int
    ) -> "list[ScoredGeneration]":
        """Return one scored generation per request, as `generate.generate_scored` does.

        The parameters of `model` must be gathered on this process, not sharded.
        """
        import torch

        tensors = dict(model.named_parameters(remove_duplicate=False))

        def read(name: str) -> "Tensor":
            # Copy: FSDP frees gathered tensors, and the optimizer updates unsharded ones in place.
            return tensors[name].detach().to("cpu", torch.float32, copy=True)

        if self._vllm is None:
            from trainrig.posttrain.vllm_engine.model import VllmModel

            files = self._files
            named = "rollouts.vllm"
            self._vllm = VllmModel(model.config, read, files, self._memory, named)
        elif not self._follows:
            self._vllm.load(read)
        self._follows = True
        return self._vllm.generate_scored(requests, stop, entries)
