"""A replacement for vLLM in tests: the names that trainrig uses, over trainrig's own generation."""

from dataclasses import dataclass

from trainrig.models.decoder import Decoder
from trainrig.models.generation import Request, generate_batch, generate_scored
from trainrig.models.huggingface import open_folder
from trainrig.models.token_sampling import Sampling


@dataclass
class SamplingParams:
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    max_tokens: int
    stop: list
    stop_token_ids: list
    ignore_eos: bool
    detokenize: bool
    logprobs: int | None
    allowed_token_ids: list | None


@dataclass
class Logprob:
    logprob: float


@dataclass
class CompletionOutput:
    token_ids: list
    logprobs: list | None
    finish_reason: str
    stop_reason: int | None


@dataclass
class RequestOutput:
    outputs: list


class LLM:
    loaded = 0  # number of times that any instance has loaded weights

    def __init__(self, model, *, max_model_len, gpu_memory_utilization, logprobs_mode):
        assert logprobs_mode == "processed_logprobs"
        assert 0 < gpu_memory_utilization <= 1
        self._load(model)
        assert self._model.config.positions == max_model_len

    def _load(self, path):
        found = open_folder(path)
        self._model = Decoder(found.config)
        self._model.load_state_dict({name: tensor.read() for name, tensor in found.tensors.items()})
        self._model.eval()
        LLM.loaded += 1

    def collective_rpc(self, method, kwargs):
        assert method == "reload_weights"
        self._load(kwargs["weights_path"])

    def reset_prefix_cache(self):
        return True

    def generate(self, prompts, sampling_params, use_tqdm):
        assert not use_tqdm
        (stops,) = {tuple(parameters.stop_token_ids) for parameters in sampling_params}
        allowed = sampling_params[0].allowed_token_ids
        requests = []
        for prompt, wanted in zip(prompts, sampling_params, strict=True):
            assert wanted.ignore_eos and wanted.detokenize == bool(wanted.stop)
            sampling = Sampling(
                temperature=wanted.temperature,
                top_k=wanted.top_k or None,
                top_p=wanted.top_p,
                min_p=wanted.min_p,
                repetition_penalty=wanted.repetition_penalty,
                seed=wanted.seed,
                maximum_tokens=wanted.max_tokens,
            )
            requests.append(Request(tuple(prompt["prompt_token_ids"]), sampling))
        arguments = self._model, requests, set(stops), len(allowed) if allowed else None
        if sampling_params[0].logprobs is None:
            return [_output(generation, None) for generation in generate_batch(*arguments)]
        return [
            _output(scored.generation, scored.log_probabilities)
            for scored in generate_scored(*arguments)
        ]


def _output(generation, scores):
    last = () if generation.stop_id is None else (generation.stop_id,)
    ids = [*generation.ids, *last]
    given = scores and [{token: Logprob(p)} for token, p in zip(ids, scores, strict=True)]
    reason = "length" if generation.stop_id is None else "stop"
    return RequestOutput([CompletionOutput(ids, given, reason, generation.stop_id)])
