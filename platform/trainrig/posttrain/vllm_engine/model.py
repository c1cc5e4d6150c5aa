"""A model that vLLM runs: what `models.generation` does, on a GPU, batched as requests come.

vLLM is no dependency: whoever names it installs it. It reads a Hugging Face folder, so what it is
to run is exported first. Its numbers come of kernels and random streams of its own: the same
request gets other tokens than from `models.generation`, and others in other company.

The names used here are those of vLLM 0.33; tests/posttrain/vllm_engine compares them with those of
the package that is installed. Not run on a GPU yet.
"""

import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainrig.errors import ClusterError, ConfigError
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.generation.generate import Generation, OpenRequest, Request, ScoredGeneration
from trainrig.models.huggingface import HubFolder, write_folder
from trainrig.randomness import RandomKey
from trainrig.tokens.chat import TEMPLATE
from trainrig.tokens.special_tokens import TokenizerFiles

# vLLM counts its users by a request to a server of its makers, unless it is told not to.
QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}


class VllmModel:
    """A decoder with weights, as vLLM runs it."""

    def __init__(
        self,
        config: DecoderConfig,
        read: Callable[[str], Tensor],
        files: TokenizerFiles,
        memory: float,
        named: str,
    ) -> None:
        """`read`: a whole tensor by its name in the decoder's `state_dict()`; `memory`: the share
        of the GPU's that vLLM takes, weights and cache; `named`: the setting that asks for it.

        Raises ConfigError where vLLM is not installed, DataError for a model that no Hugging Face
        family has."""
        os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
        try:
            import vllm
        except ImportError as error:
            raise ConfigError(
                f"{named}: the package vllm can't be imported ({error}); `pip install vllm` on a "
                "machine with a GPU, or leave it out"
            ) from None
        self.config, self._files, self._vllm = config, files, vllm
        self._folder = tempfile.TemporaryDirectory(prefix="trainrig-vllm-")
        self._version = 0
        self._llm = vllm.LLM(
            model=self._write(read),
            max_model_len=config.positions,
            gpu_memory_utilization=memory,
            logprobs_mode="processed_logprobs",  # at the temperature of the request
        )

    def load(self, read: Callable[[str], Tensor]) -> None:
        """Put other weights in the place of those that it has; see `__init__`."""
        path = self._write(read)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
        self._llm.reset_prefix_cache()  # of the weights before

    def generate(
        self, requests: Sequence[Request], stop: Collection[int], entries: int
    ) -> list[Generation]:
        """As `generate.generate_batch`. Raises DataError for a prompt that does not fit,
        ClusterError where vLLM gives a request up."""
        return [each.finish() for each in self._write_on(requests, stop, entries, None)]

    def generate_scored(
        self, requests: Sequence[Request], stop: Collection[int], entries: int
    ) -> list[ScoredGeneration]:
        """As `generate.generate_scored`; log-probabilities are of what `top_k`, `top_p` and
        `min_p` have left."""
        return [each.finish_scored() for each in self._write_on(requests, stop, entries, 0)]

    def _write_on(
        self, requests: Sequence[Request], stop: Collection[int], entries: int, scores: int | None
    ) -> list[OpenRequest]:
        found = [OpenRequest(request, self.config.positions, stop) for request in requests]
        waiting = [each for each in found if not each.stopped]
        said = self._llm.generate(
            [{"prompt_token_ids": list(each.request.prompt)} for each in waiting],
            [self._build_parameters(each, stop, entries, scores) for each in waiting],
            use_tqdm=False,
        )
        for each, answer in zip(waiting, said, strict=True):
            self._take(each, answer.outputs[0])
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
            ignore_eos=True,  # `stop` has it, where it ends a text
            detokenize=bool(sampling.stop),
            logprobs=scores,
            # What only pads the table of the model is never drawn.
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
            f"({answer.finish_reason}, {answer.stop_reason}), before it was complete"
        )

    def _write(self, read: Callable[[str], Tensor]) -> str:
        """The folder that has the weights in Hugging Face's form; that before goes."""
        before = Path(self._folder.name, str(self._version))
        self._version += 1
        path = Path(self._folder.name, str(self._version))
        write_folder(str(path), self.config, read, self._files, HubFolder(), TEMPLATE)
        for file in before.glob("*"):
            file.unlink()
        return str(path)


def _translate_sampling(request: Request) -> dict[str, Any]:
    """What vLLM calls the settings by which tokens are drawn."""
    sampling, seed = request.sampling, request.sampling.seed
    if request.written:  # vLLM begins the stream of a seed anew with each request
        seed = RandomKey(seed, f"after {request.written}").stream & (2**63 - 1)
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": seed,
    }
