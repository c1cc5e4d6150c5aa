"""A classifier, or a model that finds answers, asked about rows of files: part of `score`.

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
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.encoding.text_pairs import EncodedTexts
from trainrig.train import checkpoint

HEADS = {"classified": "classes", "questions": "spans"}
Told = tuple[Any, ...]  # what the new columns of a row hold


@dataclass(frozen=True)
class AskedRow:
    """A row that can be asked about."""

    text: TextRow
    encoded: EncodedTexts


@dataclass(frozen=True)
class TextPredictor:
    """The model on its device, with how rows are read for it."""

    model: Decoder
    reader: TextReader
    padding: int

    @classmethod
    def open(cls, path: str, rows: str, cut: bool) -> "TextPredictor":
        """That of the newest checkpoint at `path`, for `rows` of this kind.

        Raises DataError if there is none, ConfigError for a model that says something else.
        """
        opened = checkpoint.open_model(path)
        if opened.config.head != HEADS[rows]:
            wanted = "Classification" if rows == "classified" else "AnswerSpan"
            raise ConfigError(
                f"checkpoint: {opened.path} is {opened.config.description}, which says nothing of "
                f'rows = "{rows}"; train one that does by `trainrig posttrain` with '
                f'objective.kind = "{wanted}"'
            )
        encoder = Encoder(opened.tokenizer, opened.path, opened.beside)
        reader = TextReader.make(encoder, opened.config.positions, rows == "questions", cut)
        model = opened.build().to(find_local_device())
        return cls(model, reader, encoder.special_tokens.padding)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.model.config.labels

    def read(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> AskedRow:
        """What is asked of `row`. Raises BadRow."""
        text = self.reader.read(row, columns, labelled=False)
        return AskedRow(text, self.reader.encode(text))

    def list_unread(self, asked: AskedRow) -> tuple[str, ...]:
        """Return what the row of `asked` says that is not read: of texts no other field counts."""
        return ()

    @torch.no_grad()
    def tell(self, rows: Sequence[AskedRow]) -> list[Told]:
        """What the model says of each of `rows`, by one forward pass: the name of the likeliest
        class and the probability of each; or the answer and the sum of its ends' logits."""
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
        told_B = logits_BK.argmax(1).tolist()
        shares = logits_BK.double().softmax(1).tolist()
        return [
            (self.labels[told], shares_K) for told, shares_K in zip(told_B, shares, strict=True)
        ]

    def _extract_answers(
        self, rows: Sequence[AskedRow], logits_BT2: Tensor, arrays: Mapping[str, Tensor]
    ) -> list[Told]:
        there_BT1 = arrays[SEGMENTS][:, :, None]
        masked_BT2 = logits_BT2.masked_fill(there_BT1 == 0, -1e30)
        longest = AnswerSpan().longest_answer
        found = find_likeliest_spans(masked_BT2, arrays["in"], longest)
        told: list[Told] = []
        for row, first, last, score in zip(rows, *(each.tolist() for each in found), strict=True):
            characters_T2, context = row.encoded.characters, row.text.second or ""
            answer = context[characters_T2[first, 0] : characters_T2[last, 1]] if last else ""
            told.append((answer, score))
        return told
