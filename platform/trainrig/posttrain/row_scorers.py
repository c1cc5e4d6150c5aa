"""Models that score rows: reward models score answers, other heads predict classes and spans.

The stage `score`, judges and rewards use them.

Shapes: B answers or rows, T positions, N places with a score, K classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.decoder import Decoder
from trainrig.objectives.classification import AnswerSpan, find_likeliest_spans, read_texts
from trainrig.parallel.mesh import find_local_device
from trainrig.posttrain.classified_rows import TextReader, TextRow
from trainrig.tokens.batches import IDS, SEGMENTS, TEXTS
from trainrig.tokens.chat.chat_messages import BadRow
from trainrig.tokens.chat.rendering import Rendered
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.encode import EncodedTexts, Encoder
from trainrig.train import checkpoint

Scores = list[float]


def check_scorer(config: DecoderConfig, path: str) -> None:
    """Raise ConfigError if the model with this `config`, of the checkpoint `path`, has no score."""
    if config.head != "score":
        raise ConfigError(
            f"checkpoint: {path} is {config.description}, not a reward "
            'model; train one by `trainrig posttrain` with objective.kind = "Reward"'
        )


@dataclass(frozen=True)
class AnswerScorer:
    """A reward model on its device."""

    model: Decoder

    @classmethod
    def open(cls, path: str) -> "AnswerScorer":
        """Open the newest checkpoint at `path`; an adapter is merged with its base.

        Raises DataError if there is none, ConfigError for a model without a score head.
        """
        opened = checkpoint.open_model(path)
        check_scorer(opened.config, opened.path)
        return cls(opened.build().to(find_local_device()))

    def find_places(self, rendered: Rendered, steps: bool) -> Integers:
        """Return the positions of `rendered` whose scores are needed, as [N].

        With `steps`, these are the ends of all steps; otherwise the last position before the token
        that ends the answer. Raises BadRow for an answer longer than the model's positions.
        """
        there = np.flatnonzero(rendered.weights)
        found: Integers = there if steps else there[-1:] - 1
        if (longest := int(found[-1]) + 1) > self.model.config.positions:
            positions = self.model.config.positions
            raise BadRow(
                "too_long", f"{longest} tokens, more than the {positions} that the model can read"
            )
        return found

    @torch.no_grad()
    def score(self, answers: Sequence[tuple[Rendered, Integers]]) -> list[Scores]:
        """Return the scores at the places of all `answers`, in one forward pass."""
        widths = [int(places[-1]) + 1 for _, places in answers]
        ids_BT = np.zeros((len(answers), max(widths)), dtype=np.int64)
        for row, (width, (rendered, _)) in enumerate(zip(widths, answers, strict=True)):
            # Attention is causal, so tokens after the last place do not matter.
            ids_BT[row, :width] = rendered.ids[:width]
        starts = np.arange(len(answers)) * ids_BT.shape[1]
        places_N = [start + places for start, (_, places) in zip(starts, answers, strict=True)]
        device = next(self.model.parameters()).device
        output = self.model(
            torch.from_numpy(ids_BT).to(device),
            places_N=torch.from_numpy(np.concatenate(places_N)).to(device),
        )
        scores_N = iter(output.logits.squeeze(-1).float().tolist())
        return [[next(scores_N) for _ in places] for _, places in answers]


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Set torch's CPU threads to `number` within the block, which fixes the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


HEADS = {"classified": "classes", "questions": "spans"}
Told = tuple[Any, ...]  # Values of the new columns of a row.


@dataclass(frozen=True)
class AskedRow:
    """A row with its encoded text, ready for prediction."""

    text: TextRow
    encoded: EncodedTexts


def check_predictor(config: DecoderConfig, path: str, rows: str) -> None:
    """Raise ConfigError if the model with this `config` has no head for rows of the kind `rows`.

    `path` names its checkpoint in the message.
    """
    if config.head != HEADS[rows]:
        wanted = "Classification" if rows == "classified" else "AnswerSpan"
        raise ConfigError(
            f"checkpoint: {path} is {config.description}, which can't score "
            f'rows = "{rows}"; train one that can by `trainrig posttrain` with '
            f'objective.kind = "{wanted}"'
        )


@dataclass(frozen=True)
class TextPredictor:
    """A classifier or question-answering model on its device, with its row reader."""

    model: Decoder
    reader: TextReader
    padding: int

    @classmethod
    def open(cls, path: str, rows: str, cut: bool) -> "TextPredictor":
        """Open the newest checkpoint at `path` for rows of the kind `rows`.

        Raises DataError if there is none, and ConfigError for a model with another head.
        """
        opened = checkpoint.open_model(path)
        check_predictor(opened.config, opened.path, rows)
        encoder = Encoder(opened.tokenizer, opened.path, opened.beside)
        reader = TextReader.make(encoder, opened.config.positions, rows == "questions", cut)
        model = opened.build().to(find_local_device())
        return cls(model, reader, encoder.special_tokens.padding)

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names in the order of their numbers; empty for questions."""
        return self.model.config.labels

    def read(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> AskedRow:
        """Return `row` read and encoded.

        Raises BadRow if a field is missing or the text is too long.
        """
        text = self.reader.read(row, columns, labelled=False)
        return AskedRow(text, self.reader.encode(text))

    def list_unread(self, asked: AskedRow) -> tuple[str, ...]:
        """Return the meaningful fields that the model ignores; texts have none."""
        return ()

    @torch.no_grad()
    def tell(self, rows: Sequence[AskedRow]) -> list[Told]:
        """Predict the new columns of all `rows` in one forward pass.

        For classes: the name of the likeliest class and the probability of each. For questions: the
        answer, and the sum of the start and end logits.
        """
        shape = len(rows), max(len(row.encoded.ids) for row in rows)
        arrays_BT = {name: np.zeros(shape, dtype=np.int64) for name in (IDS, SEGMENTS, TEXTS, "in")}
        arrays_BT[IDS][:] = self.padding
        for number, row in enumerate(rows):
            length = len(row.encoded.ids)
            arrays_BT[IDS][number, :length] = row.encoded.ids
            arrays_BT[SEGMENTS][number, :length] = 1
            arrays_BT[TEXTS][number, :length] = row.encoded.segments
            arrays_BT["in"][number, :length] = row.encoded.of_second
        device = self.model.embedding.weight.device
        arrays = {name: torch.from_numpy(array).to(device) for name, array in arrays_BT.items()}
        logits = read_texts(self.model, arrays).logits.float()
        if self.labels:
            return self._predict_classes(logits)
        return self._extract_answers(rows, logits, arrays)

    def _predict_classes(self, logits_BK: Tensor) -> list[Told]:
        numbers_B = logits_BK.argmax(1).tolist()
        shares = logits_BK.double().softmax(1).tolist()
        return [
            (self.labels[number], shares_K)
            for number, shares_K in zip(numbers_B, shares, strict=True)
        ]

    def _extract_answers(
        self, rows: Sequence[AskedRow], logits_BT2: Tensor, arrays: Mapping[str, Tensor]
    ) -> list[Told]:
        there_BT1 = arrays[SEGMENTS][:, :, None]
        masked_BT2 = logits_BT2.masked_fill(there_BT1 == 0, -1e30)
        longest = AnswerSpan().longest_answer
        found = find_likeliest_spans(masked_BT2, arrays["in"], longest)
        answers: list[Told] = []
        for row, first, last, score in zip(
            rows, *(tensor.tolist() for tensor in found), strict=True
        ):
            characters_T2 = row.encoded.characters
            context = row.text.second or ""
            answer = context[characters_T2[first, 0] : characters_T2[last, 1]] if last else ""
            answers.append((answer, score))
        return answers
