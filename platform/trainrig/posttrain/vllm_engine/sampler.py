"""Rollouts sampled by vLLM, with the weights of the model that training reads them by."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from trainrig.tokens.special_tokens import TokenizerFiles

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from trainrig.models.decoder import Decoder
    from trainrig.models.generation.generate import Request, ScoredGeneration
    from trainrig.posttrain.vllm_engine.model import VllmModel


class VllmSampler:
    """A vLLM whose weights follow those of a model."""

    def __init__(self, files: TokenizerFiles, memory: float) -> None:
        """`files`: of the model's tokenizer; `memory`: the share of the GPU's that vLLM takes."""
        self._files, self._memory = files, memory
        self._vllm: VllmModel | None = None
        self._follows = False  # it has the weights of now

    def take_weights(self) -> None:
        """The model has other weights than before."""
        self._follows = False

    def generate(
        self, model: "Decoder", requests: "Sequence[Request]", stop: Collection[int], entries: int
    ) -> "list[ScoredGeneration]":
        """As `generate.generate_scored`, of `model`, whose parameters are whole here."""
        import torch

        tensors = dict(model.named_parameters(remove_duplicate=False))

        def read(name: str) -> "Tensor":
            # A copy: FSDP frees what it gathers, and updates change in place what is not sharded.
            return tensors[name].detach().to("cpu", torch.float32, copy=True)

        if self._vllm is None:
            from trainrig.posttrain.vllm_engine.model import VllmModel

            files, named = self._files, "rollouts.vllm"
            self._vllm = VllmModel(model.config, read, files, self._memory, named)
        elif not self._follows:
            self._vllm.load(read)
        self._follows = True
        return self._vllm.generate_scored(requests, stop, entries)
