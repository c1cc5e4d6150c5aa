"""The models of an evaluation on their device: the evaluated model, and a judge of two answers.

A judge is a reward model that scores both answers, or a language model that compares them.

Shapes: B answers, T positions.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainrig.errors import ConfigError
from trainrig.evaluate.engine import request_encoding
from trainrig.evaluate.engine.batched_reading import Ids, pad_rows, score_continuations
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.tasks.task_definition import PreferredAnswer
from trainrig.evaluate.tasks.task_prompts import Question
from trainrig.evaluate.tasks.task_templates import compile_template
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.decoder import Decoder
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint


@dataclass(frozen=True)
class OpenedModel:
    """A model on its device, with its tokenizer."""

    model: Decoder
    encoder: Encoder

    @classmethod
    def load(cls, run: Evaluation) -> "OpenedModel":
        """Load the model and the tokenizer of the run's checkpoint.

        Raises ConfigError if the device is missing, or the model cannot do the run's evaluations.
        """
        if run.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device = 'cuda', but this machine has no GPU; leave `device` out")
        torch.set_num_threads(run.threads)
        device = find_local_device() if run.device == "auto" else torch.device(run.device)
        opened = checkpoint.open_model(run.checkpoint)
        if opened.config.head != "tokens":
            raise ConfigError(
                f"checkpoint: {opened.path} is {opened.config.description}, which computes no "
                "probabilities of text; use `trainrig score` with it"
            )
        if isinstance(opened.config, EncoderDecoderConfig):
            raise ConfigError(
                f"checkpoint: {opened.path} is an encoder-decoder, which `evaluate` does not "
                "support; see its held-out loss in the metrics of its run"
            )
        if opened.config.bidirectional and (run.tasks or run.conversations):
            raise ConfigError(
                f"checkpoint: {opened.path} is an encoder, which cannot continue a text; leave "
                "`tasks` and `conversations` out, and set `tokens`"
            )
        model = opened.build().to(device=device, dtype=getattr(torch, run.dtype))
        return cls(model, Encoder(opened.tokenizer, opened.path, opened.beside))


LETTERS = (" A", " B")  # a language model's verdict: the first answer is better, or the second


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt."""

    question: Question
    context: str  # text before an answer, with the prompt
    turns: Sequence[tuple[str, str]]  # the same as a conversation
    mine: str  # the evaluated model's answer
    other: str  # the answer it is compared with


@dataclass(frozen=True)
class Judgement:
    """A judge's preference between the two answers of a pair."""

    margins: tuple[float, ...]  # above 0: `mine` is better; a language model has one for each order
    truncated: bool = False  # true: the beginning was cut off for the judge

    @property
    def preferred(self) -> float:
        """1 if the evaluated model's answer is preferred, 0 if the other answer is.

        The value is 0.5 if the judge sees no difference, or contradicts itself when the order of
        the answers changes.
        """
        points = [0.5 if margin == 0 else float(margin > 0) for margin in self.margins]
        return sum(points) / len(points)


@dataclass(frozen=True)
class OpenedJudge:
    """A judge on its device."""

    model: Decoder
    encoder: request_encoding.RequestEncoder
    batch_tokens: int
    chat: bool  # true: the judge reads conversations, not plain text

    @classmethod
    def open(
        cls, scoring: PreferredAnswer, run: Evaluation, like: Decoder, chat: bool
    ) -> "OpenedJudge":
        """Open the judge of `scoring`, with the device and dtype of the evaluated model `like`.

        Raises DataError if there is no checkpoint of the judge.
        """
        weight = like.embedding.weight
        path = checkpoint.resolve(scoring.judge)
        model, encoder = _open_judge(path, str(weight.device), str(weight.dtype))
        asked = request_encoding.RequestEncoder(encoder, model.config.positions, run.document_start)
        return cls(model, asked, run.batch_tokens, chat)

    def compare(self, pairs: Sequence[Pair], scoring: PreferredAnswer) -> list[Judgement]:
        """Return a judgement of each pair, in the order of `pairs`."""
        if self.model.config.head == "score":
            return [self._score_pair(pair) for pair in pairs]
        return self._ask_pairs(pairs, scoring)

    @torch.inference_mode()
    def _score_pair(self, pair: Pair) -> Judgement:
        """Compare the reward model's scores at the last token of each answer.

        Reward models are trained to give their score at the last token.
        """
        room = self.model.config.positions
        whole = [self._encode_answer(pair, answer) for answer in (pair.mine, pair.other)]
        kept = [ids[-room:] for ids in whole]
        device = self.model.embedding.weight.device
        ids_BT = torch.tensor([list(row) for row in pad_rows(kept)], device=device)
        width = ids_BT.shape[1]
        places = [row * width + len(ids) - 1 for row, ids in enumerate(kept)]
        output = self.model(ids_BT, places_N=torch.tensor(places, device=device))
        mine, other = output.logits.squeeze(-1).float().tolist()
        return Judgement((mine - other,), truncated=kept != whole)

    def _encode_answer(self, pair: Pair, answer: str) -> Ids:
        """Return the token ids of the conversation, or the text, that ends with `answer`."""
        encoder = self.encoder.encoder
        if self.chat:
            (ids,) = encoder.encode_batch([answer])
            return (*request_encoding.encode_chat_prompt(encoder, pair.turns), *map(int, ids))
        return self.encoder.encode_plain_prompt(pair.context + answer)

    def _ask_pairs(self, pairs: Sequence[Pair], scoring: PreferredAnswer) -> list[Judgement]:
        """Compare the likelihoods of "A" and "B" after the judge prompt, with both orders.

        Judges favour one position, and asking in both orders cancels this bias (Zheng et al. 2023,
        arXiv:2306.05685, section 3.4).
        """
        prompt = compile_template(scoring.judge_prompt, "scoring.judge_prompt")
        requests: list[request_encoding.LikelihoodRequest] = []
        for pair in pairs:
            for first, second in ((pair.mine, pair.other), (pair.other, pair.mine)):
                given = {"question": pair.question.prompt, "first": first, "second": second}
                text = prompt({**pair.question.fields, **given}, pair.question.where)
                requests += self._request_letters(text)
        found = iter(score_continuations(self.model, requests, self.batch_tokens))
        asked = iter(requests)
        judged = []
        for _ in pairs:
            nats = [next(found).log_likelihood for _ in range(4)]
            cut = any(next(asked).truncated for _ in range(4))
            judged.append(Judgement((nats[0] - nats[1], nats[3] - nats[2]), truncated=cut))
        return judged

    def _request_letters(self, text: str) -> list[request_encoding.LikelihoodRequest]:
        """Return likelihood requests for both letters after `text`."""
        if not self.chat:
            return self.encoder.request_continuations(text, LETTERS)
        context = request_encoding.encode_chat_prompt(self.encoder.encoder, [("user", text)])
        encoded = self.encoder.encoder.encode_batch([letter.strip() for letter in LETTERS])
        return [self.encoder.request(context, [int(i) for i in ids]) for ids in encoded]


@functools.lru_cache(maxsize=1)
def _open_judge(path: str, device: str, dtype: str) -> tuple[Decoder, Encoder]:
    opened = checkpoint.open_model(path)
    model = opened.build().to(device=device, dtype=getattr(torch, dtype.removeprefix("torch.")))
    return model, Encoder(opened.tokenizer, opened.path, opened.beside)
