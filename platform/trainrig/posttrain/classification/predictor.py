"""Prediction of classes and of answer spans for rows of files; part of the stage `score`.

Shapes: B rows, T positions, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder
from trainrig.objectives.classification import AnswerSpan, find_likeliest_spans, read_texts
from trainrig.parallel.mesh import find_local_device
from trainrig.posttrain.classification.encoding import TextReader
from trainrig.posttrain.classification.rows import TextRow
from trainrig.tokens.batches import IDS, SEGMENTS, TEXTS
from trainrig.tokens.tokenizers.encode import EncodedTexts, Encoder
from trainrig.train import checkpoint

HEADS = {"classified": "classes", "questions": "spans"}
Told = tuple[Any, ...]  # Values of the new columns of a row.


@dataclass(frozen=True)
class AskedRow:
    """A row with its encoded text, ready for prediction."""

    text: TextRow
    encoded: EncodedTexts


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
        if opened.config.head != HEADS[rows]:
            wanted = "Classification" if rows == "classified" else "AnswerSpan"
            raise ConfigError(
                f"checkpoint: {opened.path} is {opened.config.description}, which can't score "
                f'rows = "{rows}"; train one that can by `trainrig posttrain` with '
                f'objective.kind = "{wanted}"'
            )
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
