"""Answers and held-out losses of a model before and after tuning, for the report."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig import storage
from trainrig.objectives.next_token import CausalLM
from trainrig.posttrain.prompt_text import TextListener
from trainrig.posttrain.tuning.answer_batches import Answers
from trainrig.posttrain.tuning.tuning_run_file import ComparisonSettings
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.evaluations import GivenAnswer, ModelView
from trainrig.train.held_out_loss import RowSizes, evaluate, open_held_out

if TYPE_CHECKING:
    from torch import nn

    from trainrig.parallel.mesh import WorkerMesh


@dataclass(frozen=True)
class TuningComparison:
    """Comparison of held-out answers and pretraining loss; it can be pickled.

    It implements `trainrig.train.evaluations.ModelComparison`.
    """

    settings: ComparisonSettings
    folder: str  # Folder that `conversations` wrote.
    text: str | None  # Folder that `tokenize` wrote, if pretraining text is compared.
    encoder: Encoder
    sequence_length: int
    per_row: int  # Answers in a row: 2 for pairs, otherwise 1.
    gather_once: bool  # Whether a sharded model is gathered on each rank while it generates.
    cache: BlockCache | None = None

    def view(
        self, model: "nn.Module", mesh: "WorkerMesh", step: int, agreed_to_stop: Callable[[], bool]
    ) -> ModelView | None:
        """Return the losses and answers of `model` at `step`, or None if the run must stop."""
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

        from trainrig.models.generation import Request, generate_scored
        from trainrig.models.token_sampling import Sampling
        from trainrig.parallel.sharding.fsdp import keep_gathered, reshard

        prompts = list(self._prompts)
        listeners = [TextListener(self.encoder, (), answers=True) for _ in prompts]
        # Top-1 sampling is greedy, and it uses the code path that keeps gathered parameters
        # trainable.
        greedy = Sampling(top_k=1, maximum_tokens=self.settings.answer_tokens)
        requests = [
            Request(prompt, greedy, listener)
            for prompt, listener in zip(prompts, listeners, strict=True)
        ]
        stop = set(self.encoder.special_tokens.stop_ids)
        try:
            # Without gathering, the model may not fit, and each layer is gathered for each token.
            whole = keep_gathered(model, True) if self.gather_once else contextlib.nullcontext()
            with torch.no_grad(), whole:
                generations = generate_scored(model, requests, stop, self.encoder.vocabulary_size)
        finally:
            reshard(model)
        return tuple(
            GivenAnswer(
                self.encoder.decode_text(prompt),
                listener.finish(),
                len(one.generation.ids),
                one.generation.stopped,
            )
            for prompt, listener, one in zip(prompts, listeners, generations, strict=True)
        )

    @functools.cached_property
    def _prompts(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of the first held-out prompts, taken from all sources in turn."""
        shards = TokenShards.open(storage.join(self.folder, HELD_OUT), self.cache)
        answers = Answers(shards, self.sequence_length, self.per_row)

        def rows() -> Iterator[tuple[int, ...]]:
            most = max((answers.windows(source) for source in shards.sources), default=0)
            for number in range(most):
                for source in shards.sources:
                    if number < answers.windows(source):
                        ids, weights = answers.read_answer(source, number * self.per_row)
                        prompt = ids[: int((weights > 0).argmax())]
                        # A longer prompt leaves no position for an answer.
                        if len(prompt) < self.sequence_length:
                            yield tuple(prompt.tolist())

        return tuple(
            prompt for prompt, _ in zip(rows(), range(self.settings.prompts), strict=False)
        )
