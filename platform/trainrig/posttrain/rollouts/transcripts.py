"""What is said in answer to prompts: by the model alone, or in turns with an environment.

In each turn those episodes that are not over are written on together, from all that stands there.
Shapes depend on what was said before alone, so transcripts are a function of the prompts, the
numbers that are drawn and the weights.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainrig.posttrain.environments.contract import Environment
from trainrig.posttrain.prompt_text import PromptEncoder, TextListener
from trainrig.posttrain.rewards.contract import Completion, Fault, Score
from trainrig.posttrain.rollouts.prompts import Prompt
from trainrig.posttrain.rollouts.run_file import ReinforcementLearning
from trainrig.randomness import RandomKey, draw_words

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.models.decoder import Decoder
    from trainrig.models.generation.generate import Generation, Request, ScoredGeneration

PURPOSE = "rollouts"  # of the numbers that are drawn


@dataclass
class Transcript:
    """A prompt and what follows it."""

    prompt: Prompt
    sample: int  # number among those that are sampled together: the key of what is drawn
    ids: list[int] = field(default_factory=list)  # behind the prompt
    drawn: list[bool] = field(default_factory=list)  # of each id, whether the model drew it
    # Of each id, as it was drawn; 0.0 of those that an environment gave.
    log_probabilities: list[float] = field(default_factory=list)
    text: str = ""  # all of it, without the token that ends it
    turns: int = 0  # of the model
    over: bool = False
    finished: bool = False  # whether it was ended: not cut by a limit
    reward: float = 0.0  # by the environment
    fault: Fault | None = None  # of the environment

    @property
    def score(self) -> Score:
        """What the environment makes of it."""
        return self.fault or self.reward

    def build_completion(self) -> Completion:
        """As rewards have it: all of the text, and the ids that the model drew."""
        mine = tuple(n for n, drawn in zip(self.ids, self.drawn, strict=True) if drawn)
        prompt = self.prompt
        return Completion(prompt.text, self.text, mine, self.finished, prompt.row, prompt.chat)

    def write(self, ids: Sequence[int], log_probabilities: Sequence[float] | None) -> None:
        """Add `ids`; None: they are an environment's."""
        self.ids += ids
        self.drawn += [log_probabilities is not None] * len(ids)
        self.log_probabilities += log_probabilities or [0.0] * len(ids)


# As models.generation.generate.generate_scored.
Generate = Callable[
    ["Decoder", Sequence["Request"], Collection[int], int], list["ScoredGeneration"]
]


@dataclass(frozen=True)
class TranscriptSampler:
    """Samples transcripts as a run file has it."""

    run: ReinforcementLearning
    encoder: PromptEncoder
    environment: Environment | None
    generate: Generate

    def sample(
        self, model: "Decoder", asked: Sequence[tuple[int, Prompt]], draw: int
    ) -> list[Transcript]:
        """Those of prompts with their places, several of each one after another, made together.
        `draw`: times that the places were drawn before."""
        samples = self.run.rollouts.samples
        found = [
            Transcript(prompt, place * samples + number)
            for place, prompt in asked
            for number in range(samples)
        ]
        turns = 1
        if self.environment is not None and self.run.environment is not None:
            turns = self.run.environment.turns
            for each in found:
                self._begin(each, self.environment)
        while open_ := [each for each in found if not each.over and each.turns < turns]:
            self._take_turn(model, open_, draw)
        if self.environment is not None:
            self.environment.forget()
        return found

    def go_on(self, model: "Decoder", transcripts: Sequence[Transcript], budget: int) -> None:
        """Have the model write up to `budget` more tokens of each of `transcripts`, of which each
        is one turn; what is whole then is over. A token is drawn by the number that it would be
        drawn by if nothing had been left off."""
        self._take_turn(model, transcripts, 0, budget)

    def _begin(self, transcript: Transcript, environment: Environment) -> None:
        """Have the environment speak first."""
        given = environment.reset(transcript.sample, transcript.prompt.row)
        if isinstance(given, Fault):
            transcript.fault = given
        elif given and not self._observe(transcript, given):
            most = self.run.rollouts.maximum_tokens
            told = f"reset gave {given!r:.60}, which leaves no room among {most} tokens"
            transcript.fault = Fault("unreadable", told)

    def _take_turn(
        self,
        model: "Decoder",
        transcripts: Sequence[Transcript],
        draw: int,
        budget: int | None = None,
    ) -> None:
        """Have the model go on from each of `transcripts`, which took as many turns, and the
        environment answer. `budget`: tokens after which a turn is left off, to be gone on with;
        None: turns are taken whole."""
        from trainrig.models.generation.generate import Request
        from trainrig.models.generation.sampling import Sampling

        wanted, encoder, settings = self.run.rollouts, self.encoder.encoder, self.run.environment
        stops = wanted.stop if settings is None else settings.stops
        numbers = np.array([each.sample for each in transcripts])
        turn = np.array([transcripts[0].turns])
        seeds = draw_words(RandomKey(wanted.seed, PURPOSE, draw), turn, numbers)
        listeners, requests = [], []
        for each, seed in zip(transcripts, seeds.tolist(), strict=True):
            room = wanted.maximum_tokens - len(each.ids)
            sampling = Sampling(
                temperature=wanted.temperature,
                maximum_tokens=room if budget is None else min(room, budget),
                stop=stops,
                seed=seed & (2**63 - 1),
            )
            written = 0 if budget is None else len(each.ids)  # of this turn
            chat = self.run.prompts.chat and len(each.ids) == written
            listener = TextListener(encoder, stops, chat)
            for drawn in each.ids[:written]:
                listener(drawn)
            listeners.append(listener)
            requests.append(Request((*each.prompt.ids, *each.ids), sampling, listener, written))
        stop_ids = set(encoder.special_tokens.stop_ids)
        said = self.generate(model, requests, stop_ids, encoder.vocabulary_size)
        for each, listener, one in zip(transcripts, listeners, said, strict=True):
            if budget is not None and _is_left_off(each, one.generation, wanted.maximum_tokens):
                each.write(one.generation.ids, one.log_probabilities)
            else:
                self._hear(each, listener, one)

    def _hear(
        self, transcript: Transcript, listener: TextListener, said: "ScoredGeneration"
    ) -> None:
        """Write down what the model `said`, and what the environment makes of it."""
        generation, text = said.generation, listener.finish()
        # The id that ended it was drawn too, and is trained on.
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
        """Write down what the environment says; false: then there is no room to speak."""
        if observation:
            ids = [int(number) for number in self.encoder.encoder.encode_batch([observation])[0]]
            if len(transcript.ids) + len(ids) < self.run.rollouts.maximum_tokens:
                transcript.write(ids, None)
                transcript.text += observation
            else:
                return False
        return len(transcript.ids) < self.run.rollouts.maximum_tokens


def _is_left_off(transcript: Transcript, said: "Generation", most: int) -> bool:
    """Whether `said` ends by a budget alone, with room for more of `most` tokens."""
    return said.stopped == "length" and len(transcript.ids) + len(said.ids) < most
