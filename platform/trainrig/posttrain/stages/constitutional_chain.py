"""The steps answer, critique, revision and judgement, each for all prompts of a batch together.

The method is that of Bai et al. 2022, arXiv:2212.08073, sections 3.1 (critiques and revisions, with
a principle drawn for each) and 4.1 (preferences by the probability of a choice). A judgement is
computed in both orders of the two texts. If the orders disagree, the model preferred a position and
not a text, so neither text is preferred.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainrig.evaluate.engine.batched_reading import score_continuations
from trainrig.evaluate.engine.request_encoding import LikelihoodRequest
from trainrig.evaluate.tasks.task_templates import compile_template
from trainrig.models.decoder import Decoder
from trainrig.models.generation import Request, generate_batch
from trainrig.posttrain.prompt_files import Prompt
from trainrig.posttrain.prompt_text import TextListener
from trainrig.posttrain.stages.prompted_run_files import ConstitutionalChain
from trainrig.posttrain.stages.sample_stage import Asked, build_sampling
from trainrig.randomness import RandomKey, draw_words
from trainrig.tokens.chat.chat_messages import Message

JUDGED_TOKENS = 2**13  # Largest number of tokens in a forward pass of judgements.


@dataclass
class Chain:
    """Answer, revisions and judgement of one prompt."""

    prompt: Prompt
    answer: str = ""
    # One item a round, with principle, critique and revision.
    steps: list[dict[str, Any]] = field(default_factory=list)
    other: str | None = None  # Second answer, if two sampled answers are compared.
    judgement: dict[str, Any] = field(default_factory=dict)
    no_room: str = ""  # First step whose prompt did not fit the model; empty if all steps fit.

    @property
    def last(self) -> str:
        """The last revision that is not empty, or the answer if there is none."""
        revisions = [step["revision"] for step in self.steps if step["revision"]]
        return revisions[-1] if revisions else self.answer


@dataclass(frozen=True)
class ChainMaker:
    """A model with the settings, prompts and principles of its chains."""

    run: ConstitutionalChain
    asked: Asked
    model: Decoder
    principles: Sequence[str]

    def make(self, prompts: Sequence[Prompt]) -> list[Chain]:
        """Build the chains of `prompts` in one batch."""
        chains = [Chain(prompt) for prompt in prompts]
        ids = [prompt.ids for prompt in prompts]
        for chain, text in zip(chains, self._say(chains, ids, "answers", 0), strict=True):
            chain.answer = text
        for number in range(self.run.rounds):
            self._criticise(chains, number)
            self._revise(chains, number)
        if self.run.compare == "samples":
            for chain, text in zip(chains, self._say(chains, ids, "answers", 1), strict=True):
                chain.other = text
        self._judge(chains)
        return chains

    def find_broken_rules(self, text: str) -> list[str]:
        """Return the critiques of the rules that `text` breaks."""
        return [rule.says for rule in self.run.rules if rule.is_broken_by(text)]

    def _criticise(self, chains: Sequence[Chain], number: int) -> None:
        for chain in chains:
            principle = self._choose_principle("critiques", chain.prompt.number, number)
            chain.steps.append({"principle": principle, "critique": "", "revision": ""})
        if self.run.critic == "rules":
            for chain in chains:
                chain.steps[-1]["critique"] = " ".join(self.find_broken_rules(chain.last))
            return
        for chain, text in self._ask(chains, "critique", number):
            chain.steps[-1]["critique"] = text

    def _revise(self, chains: Sequence[Chain], number: int) -> None:
        """Generate a revision of each answer that has a critique; keep the others."""
        wrong = [chain for chain in chains if chain.steps[-1]["critique"]]
        for chain, text in self._ask(wrong, "revision", number):
            chain.steps[-1]["revision"] = text

    def _ask(self, chains: Sequence[Chain], step: str, number: int) -> list[tuple[Chain, str]]:
        """Answer the template `step` for each chain whose prompt fits the model."""
        make = compile_template(getattr(self.run, step), step)
        fitting = []
        ids = []
        for chain in chains:
            now = chain.steps[-1]
            fields = {
                "prompt": chain.prompt.text,
                "answer": chain.last,
                "principle": now["principle"],
                "critique": now["critique"],
            }
            prompt = self._encode(make(fields, f"prompt {chain.prompt.number}"))
            if len(prompt) + self.run.maximum_tokens > self.model.config.positions:
                chain.no_room = chain.no_room or step
                continue
            fitting.append(chain)
            ids.append(prompt)
        return list(zip(fitting, self._say(fitting, ids, step, number), strict=True))

    def _say(
        self, chains: Sequence[Chain], ids: Sequence[tuple[int, ...]], purpose: str, number: int
    ) -> list[str]:
        """Generate the texts that follow the prompts `ids`, one of each chain, in one batch."""
        encoder = self.asked.encoder.encoder
        run = self.run
        listeners = [TextListener(encoder, run.stop, run.prompts.chat) for _ in chains]
        requests = [
            Request(
                prompt,
                build_sampling(run, f"constitutional {purpose}", chain.prompt.number, number),
                listener,
            )
            for chain, prompt, listener in zip(chains, ids, listeners, strict=True)
        ]
        stop = set(encoder.special_tokens.stop_ids)
        generate_batch(self.model, requests, stop, encoder.vocabulary_size)
        return [listener.finish().strip() for listener in listeners]

    def _judge(self, chains: Sequence[Chain]) -> None:
        """Judge which text of each chain is better; skip empty and identical texts."""
        able = [
            chain
            for chain in chains
            if all(_pair_texts(chain)) and len(set(_pair_texts(chain))) == 2
        ]
        judge = self._judge_by_rules if self.run.critic == "rules" else self._judge_by_model
        for chain, judgement in zip(able, judge(able), strict=True):
            chain.judgement = judgement

    def _judge_by_rules(self, chains: Sequence[Chain]) -> list[dict[str, Any]]:
        """Prefer the text that breaks fewer rules, and neither if both break the same number."""
        found = []
        for chain in chains:
            first, second = (len(self.find_broken_rules(text)) for text in _pair_texts(chain))
            preferred = None if first == second else int(second < first)
            found.append({"by": "rules", "broken": [first, second], "preferred": preferred})
        return found

    def _judge_by_model(self, chains: Sequence[Chain]) -> list[dict[str, Any]]:
        make = compile_template(self.run.judgement, "judgement")
        requests = list[LikelihoodRequest]()
        found = list[dict[str, Any]]()
        choices = [self._encode_choice(letter) for letter in "AB"]
        for chain in chains:
            principle = self._choose_principle("judgements", chain.prompt.number, 0)
            found.append({"by": "model", "principle": principle, "preferred": None})
            first, second = _pair_texts(chain)
            contexts = []
            for a, b in ((first, second), (second, first)):
                fields = {"prompt": chain.prompt.text, "principle": principle, "a": a, "b": b}
                contexts.append(self._encode(make(fields, f"prompt {chain.prompt.number}")))
            longest = max(map(len, contexts)) + max(map(len, choices)) - 1
            if longest > self.model.config.positions:
                chain.no_room = chain.no_room or "judgement"
                continue
            found[-1]["places"] = len(requests)
            requests += [LikelihoodRequest(c, choice) for c in contexts for choice in choices]
        scores = score_continuations(self.model, requests, JUDGED_TOKENS) if requests else []
        nats = [score.log_likelihood for score in scores]
        for judgement in found:
            if (place := judgement.pop("places", None)) is not None:
                judgement |= judge_both_orders(nats[place : place + 4])
        return found

    def _encode(self, text: str) -> tuple[int, ...]:
        asked = (Message("user", text),) if self.run.prompts.chat else text
        return tuple(self.asked.encoder.encode(asked))

    def _encode_choice(self, letter: str) -> tuple[int, ...]:
        """Return the token ids of an answer that is one letter."""
        text = letter if self.run.prompts.chat else f" {letter}"
        return tuple(map(int, self.asked.encoder.encoder.encode_batch([text])[0]))

    def _choose_principle(self, purpose: str, prompt: int, number: int) -> str:
        key = RandomKey(self.run.seed, f"constitutional principles of {purpose}", number)
        drawn = int(draw_words(key, np.zeros(1, dtype=np.int64), np.array([prompt]))[0])
        return self.principles[drawn % len(self.principles)]


def judge_both_orders(nats: Sequence[float]) -> dict[str, Any]:
    """Return the preferred text of two, by the log-likelihoods of the choices A and B.

    `nats` holds A and B where the first text is A, then A and B where the first text is B. In the
    result, `orders` is the probability of the first text in each order, relative to both letters;
    `probability` is their mean; `preferred` is 0, 1, or None if the orders disagree.
    """
    straight = _compute_probability(nats[0], nats[1])
    turned = _compute_probability(nats[3], nats[2])
    agree = (straight - 0.5) * (turned - 0.5) > 0
    return {
        "orders": [straight, turned],
        "probability": (straight + turned) / 2,
        "preferred": int(straight < 0.5) if agree else None,
    }


def _compute_probability(mine: float, other: float) -> float:
    """Return the probability of one choice of two, by their log-likelihoods."""
    return float(torch.tensor(mine - other, dtype=torch.float64).sigmoid())


def _pair_texts(chain: Chain) -> tuple[str, str]:
    return chain.answer, chain.last if chain.other is None else chain.other


Check = Callable[[str], list[str]]


def build_transcript(chain: Chain, critic: str, check: Check) -> dict[str, Any]:
    """Return the row of the transcript file: all texts and judgements of `chain`."""
    first, second = _pair_texts(chain)
    row: dict[str, Any] = {
        "prompt_number": chain.prompt.number,
        **chain.prompt.build_fields(),
        "critic": critic,
        "answer": chain.answer,
        "rounds": chain.steps,
        "last": chain.last,
        "broken_before": check(chain.answer),
        "broken_after": check(chain.last),
        "judgement": {"texts": [first, second], **chain.judgement} if chain.judgement else None,
        "no_room": chain.no_room or None,
    }
    return row


def build_preference_pair(chain: Chain) -> Mapping[str, Any] | None:
    """Return the preference pair of `chain`, or None if neither text is preferred."""
    preferred = chain.judgement.get("preferred")
    if preferred is None:
        return None
    texts = _pair_texts(chain)
    return {
        **chain.prompt.build_fields(),
        "chosen": texts[preferred],
        "rejected": texts[1 - preferred],
        "judged_by": chain.judgement["by"],
        "prompt_number": chain.prompt.number,
    }
