"""Model that vLLM runs on a GPU, with the interface of `models.generation`.

vLLM is no dependency of trainrig: users who select it install it. It reads a Hugging Face folder,
so a model is exported first. vLLM has its own kernels and random streams: a request gets other
tokens than from `models.generation`, and the tokens depend on the other requests of the batch.

This module uses the names of vLLM 0.33; tests/posttrain/vllm_engine compares them with the
installed package. It has not been run on a GPU yet.
"""

import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainrig.errors import ClusterError, ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.generation import Generation, OpenRequest, Request, ScoredGeneration
from trainrig.models.huggingface import HubFolder, write_folder
from trainrig.randomness import RandomKey
from trainrig.tokens.chat import TEMPLATE
from trainrig.tokens.special_tokens import TokenizerFiles

# Environment variables that turn off vLLM's usage statistics.
QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}


class VllmModel:
    """Decoder with weights that vLLM runs."""

    def __init__(
        self,
        config: DecoderConfig,
        read: Callable[[str], Tensor],
        files: TokenizerFiles,
        memory: float,
        named: str,
    ) -> None:
        """Export the model to a temporary folder and start vLLM on it.

        Raises ConfigError if vLLM is not installed, DataError if no Hugging Face model family fits.

        Args:
            config: Shape of the decoder.
            read: Function that returns a whole tensor by its name in the decoder's `state_dict()`.
            files: Files of the tokenizer.
            memory: Share of the GPU's memory that vLLM takes for weights and cache, 0 to 1.
            named: Setting that selects vLLM, for messages.
        """
        os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
        try:
            import vllm
        except ImportError as error:
            raise ConfigError(
                f"{named}: the package vllm can't be imported ({error}); run `pip install "
                f"vllm` on a machine with a GPU, or leave {named} out"
            ) from None
        self.config = config
        self._files = files
        self._vllm = vllm
        self._folder = tempfile.TemporaryDirectory(prefix="trainrig-vllm-")
        self._version = 0
        self._llm = vllm.LLM(
            model=self._write(read),
            max_model_len=config.positions,
            gpu_memory_utilization=memory,
            logprobs_mode="processed_logprobs",  # log-probabilities at the request's temperature
        )

    def load(self, read: Callable[[str], Tensor]) -> None:
        """Replace the model's weights with those that `read` returns, as in `__init__`."""
        path = self._write(read)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
        self._llm.reset_prefix_cache()  # the cache holds values of the old weights

    def generate(
        self, requests: Sequence[Request], stop: Collection[int], entries: int
    ) -> list[Generation]:
        """Return one generation per request, as `generate.generate_batch` does.

        Raises DataError if a prompt does not fit, ClusterError if vLLM aborts a request.
        """
        return [request.finish() for request in self._write_on(requests, stop, entries, None)]

    def generate_scored(
        self, requests: Sequence[Request], stop: Collection[int], entries: int
    ) -> list[ScoredGeneration]:
        """Return one generation per request with log-probabilities, as `generate.generate_scored`.

        The log-probabilities are normalised over the tokens that `top_k`, `top_p` and `min_p` keep.
        """
        return [request.finish_scored() for request in self._write_on(requests, stop, entries, 0)]

    def _write_on(
        self, requests: Sequence[Request], stop: Collection[int], entries: int, scores: int | None
    ) -> list[OpenRequest]:
        found = [OpenRequest(request, self.config.positions, stop) for request in requests]
        waiting = [request for request in found if not request.stopped]
        said = self._llm.generate(
            [{"prompt_token_ids": list(wanted.request.prompt)} for wanted in waiting],
            [self._build_parameters(wanted, stop, entries, scores) for wanted in waiting],
            use_tqdm=False,
        )
        for wanted, answer in zip(waiting, said, strict=True):
            self._take(wanted, answer.outputs[0])
        return found

    def _build_parameters(
        self, wanted: OpenRequest, stop: Collection[int], entries: int, scores: int | None
    ) -> Any:
        sampling = wanted.request.sampling
        padded = entries < self.config.shape.vocabulary
        return self._vllm.SamplingParams(
            **_translate_sampling(wanted.request),
            max_tokens=wanted.most,
            stop=list(sampling.stop),
            stop_token_ids=sorted(stop),
            ignore_eos=True,  # `stop` contains the end token where it ends a text
            detokenize=bool(sampling.stop),
            logprobs=scores,
            # Never sample entries that only pad the model's vocabulary.
            allowed_token_ids=list(range(entries)) if padded else None,
        )

    def _take(self, wanted: OpenRequest, answer: Any) -> None:
        scores = answer.logprobs or [None] * len(answer.token_ids)
        for token, given in zip(answer.token_ids, scores, strict=True):
            wanted.take(token, 0.0 if given is None else given[token].logprob)
            if wanted.stopped:
                return
        raise ClusterError(
            f"vLLM ended a request after {len(answer.token_ids)} tokens "
            f"({answer.finish_reason}, {answer.stop_reason}), before it was complete; run the "
            "same command again"
        )

    def _write(self, read: Callable[[str], Tensor]) -> str:
        """Export the weights as a Hugging Face folder, return it, and empty the previous folder."""
        before = Path(self._folder.name, str(self._version))
        self._version += 1
        path = Path(self._folder.name, str(self._version))
        write_folder(str(path), self.config, read, self._files, HubFolder(), TEMPLATE)
        for file in before.glob("*"):
            file.unlink()
        return str(path)


def _translate_sampling(request: Request) -> dict[str, Any]:
    """Return the sampling settings of `request` under vLLM's names."""
    sampling = request.sampling
    seed = request.sampling.seed
    # vLLM restarts a seed's random stream at each request, so a continued text needs another seed.
    if request.written:
        seed = RandomKey(seed, f"after {request.written}").stream & (2**63 - 1)
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": seed,
    }
