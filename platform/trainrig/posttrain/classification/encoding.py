"""Encoding of labelled texts and questions for the stage `conversations`.

Each row becomes one document: the tokenizer's ids of the whole row, with the special tokens around
them. The weight of a token says which text it belongs to, and whether it is part of the answer.

Shapes: T tokens.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig.posttrain.classification.rows import (
    AnswerPlace,
    TextRow,
    find_label_number,
    read_question,
    read_text,
)
from trainrig.posttrain.conversation_run import ConversationEncoding, RowFiles
from trainrig.splits import Work
from trainrig.tokens.chat.chat_messages import BadRow
from trainrig.tokens.document_formats import (
    FORMATS,
    StagePart,
)
from trainrig.tokens.document_set import is_held_out
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.shard_files import IN_ANSWER, IN_CONTEXT, SECOND_SEGMENT
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, EncodedDocument
from trainrig.tokens.tokenizers.encode import (
    EncodedTexts,
    Encoder,
    TextPairEncoder,
    TooLong,
)

TEXT_ROWS = ("classified", "questions")


@dataclass(frozen=True)
class TextReader:
    """Reader and encoder of rows of one kind, classified texts or questions."""

    pairs: TextPairEncoder
    questions: bool

    @classmethod
    def make(cls, encoder: Encoder, longest: int, questions: bool, cut: bool) -> "TextReader":
        """Build a reader of rows of at most `longest` tokens.

        With `cut`, longer texts are truncated; of a question, only the context is.
        """
        strategy = "only_second" if questions else "longest_first"
        return cls(TextPairEncoder(encoder, longest, strategy if cut else None), questions)

    def read(self, row: Mapping[str, Any], columns: Mapping[str, str], labelled: bool) -> TextRow:
        """Return the texts of `row`.

        Raises BadRow if a field is missing or invalid.
        """
        return (read_question if self.questions else read_text)(row, columns, labelled)

    def encode(self, row: TextRow) -> EncodedTexts:
        """Return the token ids of `row`.

        Raises BadRow if they exceed the longest length.
        """
        try:
            return self.pairs.encode(row.first, row.second)
        except TooLong as error:
            raise BadRow("too_long", f"{error.tokens} tokens") from None


@dataclass(frozen=True)
class TextRows:
    """Encoder of rows of texts as documents."""

    run: ConversationEncoding
    reader: TextReader
    labels: tuple[str, ...]

    @classmethod
    def make(
        cls, run: ConversationEncoding, encoder: Encoder, labels: tuple[str, ...]
    ) -> "TextRows":
        """Build the encoder for `run`.

        Raises ConfigError if the tokenizer lacks the special tokens that surround texts.
        """
        cut = run.too_long == "cut"
        questions = run.rows == "questions"
        return cls(run, TextReader.make(encoder, run.sequence_length, questions, cut), labels)

    def encode_row(
        self, row: Mapping[str, Any], source: RowFiles, part: StagePart, place: int
    ) -> tuple[str, list[EncodedDocument], Mapping[str, int]]:
        """Return the split that `row` belongs to, its document, and its counts (always empty).

        Raises BadRow for a row that cannot be encoded.
        """
        text = self.reader.read(row, source.columns, labelled=True)
        label = 0
        if text.label is not None:
            label = find_label_number(text.label, self.labels, named=bool(self.run.labels))
        encoded = self.reader.encode(text)
        weights = build_weights(encoded, text.answer, self.run.rows == "questions")
        text_bytes = text.prompt.encode()
        key = hashlib.blake2b(
            source.source.encode() + b"\0" + text_bytes, digest_size=16
        ).hexdigest()
        document = EncodedDocument(
            id=key,
            source=source.source,
            url="",
            ids=encoded.ids,
            text_bytes=len(text_bytes),
            corpus_file=part.file,
            corpus_row=place,
            weights=weights.astype(np.uint8),
            label=label,
        )
        out = is_held_out(f"prompt:{text.prompt}", self.run.held_out)
        return source.split or (HELD_OUT if out else TRAIN), [document], {}


def build_weights(encoded: EncodedTexts, answer: AnswerPlace | None, questions: bool) -> Integers:
    """Return the weight of each token, [T], in the bits that shard_files.py defines.

    Raises BadRow if the answer was cut off.
    """
    weights: Integers = 1 + SECOND_SEGMENT * (encoded.segments == 1)
    if not questions:
        return weights
    weights += IN_CONTEXT * encoded.of_second
    if answer is None:
        return weights
    begins_T, ends_T = encoded.characters.T
    inside_T = encoded.of_second & (begins_T < answer.end) & (ends_T > answer.begin)
    last = int(ends_T[encoded.of_second].max(initial=0))
    if not inside_T.any() or last < answer.end:
        raise BadRow(
            "answer_cut",
            f"the answer ends at character {answer.end}, but the text is cut at {last}",
        )
    weights += IN_ANSWER * inside_T
    return weights


def count_labels(sources: Sequence[RowFiles]) -> Work:
    """Return the function that counts the labels in one split.

    It is needed where the run file names no labels.
    """

    def count(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        numbers: dict[str, int] = {}
        names: dict[str, int] = {}
        for part in (StagePart(**fields) for fields in task["parts"]):
            source = sources[part.table]
            for _, row in FORMATS[source.kind].read(part, ()):
                if isinstance(row, str):
                    continue
                try:
                    label = read_text(row, source.columns).label
                except BadRow:  # The encoding pass reports this row.
                    continue
                there = numbers if isinstance(label, int) else names
                there[str(label)] = there.get(str(label), 0) + 1
        return {"numbers": numbers, "names": names}, {}

    return count
