"""What a tuned model is asked before and after: held-out prompts, and text of its pretraining."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig import storage
from trainrig.objectives import CausalLM
from trainrig.posttrain.answer_batches import Answers
from trainrig.posttrain.comparison.settings import ComparisonSettings
from trainrig.posttrain.prompt_text import TextListener
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.train.evaluations.comparison import GivenAnswer, ModelView
from trainrig.train.held_out import RowSizes, evaluate, open_held_out

if TYPE_CHECKING:  # a run file is checked without torch
    from torch import nn

    from trainrig.parallel.mesh import WorkerMesh


@dataclass(frozen=True)
class TuningComparison:
    """See trainrig.train.evaluations.comparison.Comparison. May be pickled."""

    settings: ComparisonSettings
    folder: str  # that `conversations` wrote
    text: str | None  # that `tokenize` wrote
    encoder: Encoder
    sequence_length: int
    each: int  # answers of a row: 2 of pairs
    gather_once: bool  # whether a sharded model is whole on each rank while it answers
    cache: BlockCache | None = None

    def view(
        self, model: "nn.Module", mesh: "WorkerMesh", step: int, agreed_to_stop: Callable[[], bool]
    ) -> ModelView | None:
        """See ModelComparison."""
        losses: dict[str, float] = {}
        if self.text is not None:
            shards = TokenShards.open(storage.join(self.text, HELD_OUT), self.cache)
            sizes = RowSizes(self.settings.rows, self.sequence_length, 1, by_document=False)
            found = evaluate(CausalLM(), model, open_held_out(shards, sizes), agreed_to_stop, mesh)
            if found is None:
                return None
            losses = dict(found.by_source)
        if agreed_to_stop():
            return None
        return ModelView(step, losses, self._generate_answers(model))

    def _generate_answers(self, model: Any) -> tuple[GivenAnswer, ...]:
        import torch

        from trainrig.models.generation.generate import Request, generate_scored
        from trainrig.models.generation.sampling import Sampling
        from trainrig.parallel.fsdp import keep_gathered, reshard

        prompts = list(self._prompts)
        listeners = [TextListener(self.encoder, (), answers=True) for _ in prompts]
        # The likeliest of one, by the way of sampling that keeps what is gathered here trainable.
        greedy = Sampling(top_k=1, maximum_tokens=self.settings.answer_tokens)
        requests = [
            Request(prompt, greedy, listener)
            for prompt, listener in zip(prompts, listeners, strict=True)
        ]
        stop = set(self.encoder.special_tokens.stop_ids)
        try:
            # Else it may not fit, and each layer is gathered for each token.
            whole = keep_gathered(model, True) if self.gather_once else contextlib.nullcontext()
            with torch.no_grad(), whole:
                said = generate_scored(model, requests, stop, self.encoder.vocabulary_size)
        finally:
            reshard(model)
        return tuple(
            GivenAnswer(
                self.encoder.decode_text(prompt),
                listener.finish(),
                len(one.generation.ids),
                one.generation.stopped,
            )
            for prompt, listener, one in zip(prompts, listeners, said, strict=True)
        )

    @functools.cached_property
    def _prompts(self) -> tuple[tuple[int, ...], ...]:
        """The ids before the first answer of the first held-out rows of each source in turn."""
        shards = TokenShards.open(storage.join(self.folder, HELD_OUT), self.cache)
        answers = Answers(shards, self.sequence_length, self.each)

        def rows() -> Iterator[tuple[int, ...]]:
            most = max((answers.windows(source) for source in shards.sources), default=0)
            for number in range(most):
                for source in shards.sources:
                    if number < answers.windows(source):
                        ids, weights = answers.read_answer(source, number * self.each)
                        prompt = ids[: int((weights > 0).argmax())]
                        if len(prompt) < self.sequence_length:  # else none can be answered
                            yield tuple(prompt.tolist())

        return tuple(
            prompt for prompt, _ in zip(rows(), range(self.settings.prompts), strict=False)
        )
