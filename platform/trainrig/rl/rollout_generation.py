"""Sampling of transcripts: answers to prompts by the model alone, or in turns with an environment.

In each turn the model continues all unfinished transcripts in one batch, from their whole text so
far. The shapes depend on the earlier text alone, so transcripts are a function of the prompts, the
random numbers and the weights. Instead of the model itself, vLLM may sample with its current
weights.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainrig.posttrain.prompt_files import Prompt
from trainrig.posttrain.prompt_text import PromptEncoder, TextListener
from trainrig.posttrain.rewards.reward_contract import Completion, Fault, Score
from trainrig.randomness import RandomKey, draw_words
from trainrig.rl.environments import Environment
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.tokens.special_tokens import TokenizerFiles

if TYPE_CHECKING:
    from torch import Tensor

    from trainrig.models.decoder import Decoder
    from trainrig.models.generation import Generation, Request, ScoredGeneration
    from trainrig.posttrain.vllm_model import VllmModel


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
            from trainrig.posttrain.vllm_model import VllmModel

            files = self._files
            named = "rollouts.vllm"
            self._vllm = VllmModel(model.config, read, files, self._memory, named)
        elif not self._follows:
            self._vllm.load(read)
        self._follows = True
        return self._vllm.generate_scored(requests, stop, entries)


PURPOSE = "rollouts"  # random key of the samples


@dataclass
class Transcript:
    """Prompt with the text that follows, by the model and by the environment."""

    prompt: Prompt
    sample: int  # number of the sample, which keys its random numbers
    ids: list[int] = field(default_factory=list)  # token ids after the prompt
    drawn: list[bool] = field(default_factory=list)  # True for each id that the model sampled
    # Log-probability of each id when it was sampled; 0.0 for ids of an environment.
    log_probabilities: list[float] = field(default_factory=list)
    text: str = ""  # text after the prompt, without the end token
    turns: int = 0  # number of turns of the model
    over: bool = False  # True once nothing more is sampled
    finished: bool = False  # True if the text was ended, not cut by a limit
    reward: float = 0.0  # sum of the environment's rewards
    fault: Fault | None = None  # failure of the environment

    @property
    def score(self) -> Score:
        """The environment's reward, or its fault."""
        return self.fault or self.reward

    def build_completion(self) -> Completion:
        """Return the completion to score: all text, and the ids that the model sampled."""
        mine = tuple(n for n, drawn in zip(self.ids, self.drawn, strict=True) if drawn)
        prompt = self.prompt
        return Completion(prompt.text, self.text, mine, self.finished, prompt.row, prompt.chat)

    def write(self, ids: Sequence[int], log_probabilities: Sequence[float] | None) -> None:
        """Append `ids`. `log_probabilities` is None for ids of an environment."""
        self.ids += ids
        self.drawn += [log_probabilities is not None] * len(ids)
        self.log_probabilities += log_probabilities or [0.0] * len(ids)


# Function with the signature of models.generation.generate.generate_scored.
Generate = Callable[
    ["Decoder", Sequence["Request"], Collection[int], int], list["ScoredGeneration"]
]


@dataclass(frozen=True)
class TranscriptSampler:
    """Sampler of transcripts with the settings of a run file."""

    run: ReinforcementLearning
    encoder: PromptEncoder
    environment: Environment | None
    generate: Generate

    def sample(
        self, model: "Decoder", placed_prompts: Sequence[tuple[int, Prompt]], draw: int
    ) -> list[Transcript]:
        """Sample `samples` transcripts for each of `placed_prompts`, (place, prompt).

        All transcripts are sampled in one batch; those of one prompt are consecutive in the result.
        `draw` is the number of times that these places were drawn before.
        """
        samples = self.run.rollouts.samples
        found = [
            Transcript(prompt, place * samples + number)
            for place, prompt in placed_prompts
            for number in range(samples)
        ]
        turns = 1
        if self.environment is not None and self.run.environment is not None:
            turns = self.run.environment.turns
            for transcript in found:
                self._begin(transcript, self.environment)
        while unfinished := [text for text in found if not text.over and text.turns < turns]:
            self._take_turn(model, unfinished, draw)
        if self.environment is not None:
            self.environment.forget()
        return found

    def go_on(self, model: "Decoder", transcripts: Sequence[Transcript], budget: int) -> None:
        """Continue each of `transcripts`, which have one turn, by up to `budget` tokens.

        Transcripts that end are marked as over. Each token uses the random number that it would
        have without the interruption.
        """
        self._take_turn(model, transcripts, 0, budget)

    def _begin(self, transcript: Transcript, environment: Environment) -> None:
        """Start the environment's episode and append its first text to the transcript."""
        given = environment.reset(transcript.sample, transcript.prompt.row)
        if isinstance(given, Fault):
            transcript.fault = given
        elif given and not self._observe(transcript, given):
            most = self.run.rollouts.maximum_tokens
            detail = f"reset returned {given!r:.60}, which leaves no tokens of {most} for an answer"
            transcript.fault = Fault("unreadable", detail)

    def _take_turn(
        self,
        model: "Decoder",
        transcripts: Sequence[Transcript],
        draw: int,
        budget: int | None = None,
    ) -> None:
        """Sample one turn of each of `transcripts`, and append the environment's answer.

        All transcripts must have had the same number of turns. `budget` is the number of tokens
        after which a turn is interrupted, to be continued later; None: the turn is sampled whole.
        """
        from trainrig.models.generation import Request
        from trainrig.models.token_sampling import Sampling

        wanted = self.run.rollouts
        encoder = self.encoder.encoder
        settings = self.run.environment
        stops = wanted.stop if settings is None else settings.stops
        numbers = np.array([transcript.sample for transcript in transcripts])
        turn = np.array([transcripts[0].turns])
        seeds = draw_words(RandomKey(wanted.seed, PURPOSE, draw), turn, numbers)
        listeners = []
        requests = []
        for transcript, seed in zip(transcripts, seeds.tolist(), strict=True):
            room = wanted.maximum_tokens - len(transcript.ids)
            sampling = Sampling(
                temperature=wanted.temperature,
                maximum_tokens=room if budget is None else min(room, budget),
                stop=stops,
                seed=seed & (2**63 - 1),
            )
            written = 0 if budget is None else len(transcript.ids)  # tokens of this turn so far
            chat = self.run.prompts.chat and len(transcript.ids) == written
            listener = TextListener(encoder, stops, chat)
            for drawn in transcript.ids[:written]:
                listener(drawn)
            listeners.append(listener)
            requests.append(
                Request((*transcript.prompt.ids, *transcript.ids), sampling, listener, written)
            )
        stop_ids = set(encoder.special_tokens.stop_ids)
        said = self.generate(model, requests, stop_ids, encoder.vocabulary_size)
        for transcript, listener, new in zip(transcripts, listeners, said, strict=True):
            if budget is not None and _is_left_off(
                transcript, new.generation, wanted.maximum_tokens
            ):
                transcript.write(new.generation.ids, new.log_probabilities)
            else:
                self._hear(transcript, listener, new)

    def _hear(
        self, transcript: Transcript, listener: TextListener, said: "ScoredGeneration"
    ) -> None:
        """Append a turn that the model has `said`, and the environment's answer to it."""
        generation = said.generation
        text = listener.finish()
        # The end token was sampled by the model too, so it is trained on.
        last = () if generation.stop_id is None else (generation.stop_id,)
        transcript.write((*generation.ids, *last), said.log_probabilities)
        transcript.text += text
        transcript.turns += 1
        transcript.finished = generation.stopped in ("end", "stop")
        transcript.over = True
        if self.environment is None or transcript.fault:
            return
        given = self.environment.step(transcript.sample, text)
        if isinstance(given, Fault):
            transcript.fault = given
            return
        transcript.reward += given.reward
        if generation.stopped == "stop":
            transcript.text += listener.ended_by
            transcript.finished = given.done
            transcript.over = given.done or not self._observe(transcript, given.observation)

    def _observe(self, transcript: Transcript, observation: str) -> bool:
        """Append the environment's text; return whether the model has tokens left to continue."""
        if observation:
            ids = [int(number) for number in self.encoder.encoder.encode_batch([observation])[0]]
            if len(transcript.ids) + len(ids) < self.run.rollouts.maximum_tokens:
                transcript.write(ids, None)
                transcript.text += observation
            else:
                return False
        return len(transcript.ids) < self.run.rollouts.maximum_tokens


def _is_left_off(transcript: Transcript, said: "Generation", most: int) -> bool:
    """Return whether `said` was cut by the budget, before the limit of `most` tokens."""
    return said.stopped == "length" and len(transcript.ids) + len(said.ids) < most
