"""A model of lm-evaluation-harness that reads trainrig's checkpoints: `--model trainrig`."""

from collections.abc import Sequence
from typing import Any

import lm_eval.models  # noqa: F401 - the harness registers its own models only into an empty registry
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from trainrig.evaluate.engine.batched_reading import StopRule, answer_greedily, score_continuations
from trainrig.evaluate.engine.opened_models import OpenedModel
from trainrig.evaluate.engine.request_encoding import RequestEncoder
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.tasks.answer_checks import cut_at

DEFAULT_TOKENS = 256  # the harness's default for the most tokens of an answer


@register_model("trainrig")
class HarnessModel(LM):  # type: ignore[misc] # an extra: not there for mypy
    """A harness model that answers requests with the engine of `trainrig evaluate`.

    `checkpoint` is a run folder or a checkpoint. `document_start` is off by default: exported
    tokenizers add no token, so the harness's own models begin prompts without one.
    """

    def __init__(
        self,
        checkpoint: str,
        document_start: bool = False,
        batch_tokens: int = 4096,
        dtype: str = "float32",
        threads: int = 1,
        **ignored: Any,
    ) -> None:
        """Load the checkpoint.

        `ignored` are arguments that the harness gives to every model, such as batch_size and
        device.
        """
        super().__init__()
        run = Evaluation.model_validate(
            {
                "checkpoint": checkpoint,
                "output": "",
                "tasks": ({"task": "any"},),
                "dtype": dtype,
                "threads": threads,
            }
        )
        opened = OpenedModel.load(run)
        self._model = opened.model
        self._batch_tokens = batch_tokens
        self._encoder = RequestEncoder(
            opened.encoder, opened.model.config.positions, document_start
        )

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return (log-likelihood, is greedy) for each request's (context, continuation)."""
        asked = [
            self._encoder.request_continuations(*_unpack_pair(request.args))[0]
            for request in requests
        ]
        found = score_continuations(self._model, asked, self._batch_tokens)
        return [(score.log_likelihood, score.greedy) for score in found]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-likelihood of each request's whole text."""
        windows = [self._encoder.request_windows(request.args[0]) for request in requests]
        flat = [window for group in windows for window in group]
        found = iter(score_continuations(self._model, flat, self._batch_tokens))
        return [sum(next(found).log_likelihood for _ in group) for group in windows]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the greedy answer to each request. Raises ValueError if sampling is requested."""
        by_settings: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number, request in enumerate(requests):
            by_settings.setdefault(_parse_settings(request.args[1]), []).append(number)
        answers = [""] * len(requests)
        for (tokens, until), numbers in by_settings.items():
            prompts = [requests[number].args[0] for number in numbers]
            for number, text in zip(
                numbers, self._answer_prompts(prompts, tokens, until), strict=True
            ):
                answers[number] = text
        return answers

    def _answer_prompts(self, prompts: list[str], tokens: int, until: tuple[str, ...]) -> list[str]:
        encoder = self._encoder.encoder
        stop = StopRule(
            ids=frozenset(encoder.special_tokens.stop_ids),
            maximum_tokens=tokens,
            entries=encoder.vocabulary_size,
            done=lambda ids: any(mark in encoder.decode_text(ids) for mark in until),
        )
        asked = [
            self._encoder.request_generation(self._encoder.encode_plain_prompt(prompt), tokens)
            for prompt in prompts
        ]
        found = answer_greedily(self._model, asked, stop, self._batch_tokens)
        return [cut_at(encoder.decode_text(answer), until) for answer in found]


def _unpack_pair(arguments: Sequence[str]) -> tuple[str, list[str]]:
    context, continuation = arguments
    return context, [continuation]


def _parse_settings(given: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Return the most tokens of an answer, and the stop texts."""
    if given.get("do_sample") or given.get("temperature"):
        raise ValueError(
            "trainrig supports only greedy generation in the harness; set do_sample to false"
        )
    until = given.get("until") or []
    until = [until] if isinstance(until, str) else until
    tokens = given.get("max_gen_toks") or given.get("max_new_tokens") or DEFAULT_TOKENS
    return int(tokens), tuple(until)
