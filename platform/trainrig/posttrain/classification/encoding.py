"""The part of the stage `conversations` that is of texts with labels and of questions.

Each row becomes one document: the ids that the tokenizer makes of it, whole, with the tokens that
stand around; weights say which text a token is of, and which are the answer.

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
from trainrig.tokens.chat.messages import BadRow
from trainrig.tokens.documents.formats import FORMATS, StagePart
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.encoding.text_pairs import EncodedTexts, TextPairEncoder, TooLong
from trainrig.tokens.held_out import is_held_out
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.shard_files import IN_ANSWER, IN_CONTEXT, SECOND_SEGMENT
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, EncodedDocument

TEXT_ROWS = ("classified", "questions")


@dataclass(frozen=True)
class TextReader:
    """How rows of one kind are read as ids."""

    pairs: TextPairEncoder
    questions: bool

    @classmethod
    def make(cls, encoder: Encoder, longest: int, questions: bool, cut: bool) -> "TextReader":
        """`cut`: texts lose what goes beyond `longest` tokens, of a question its context alone."""
        strategy = "only_second" if questions else "longest_first"
        return cls(TextPairEncoder(encoder, longest, strategy if cut else None), questions)

    def read(self, row: Mapping[str, Any], columns: Mapping[str, str], labelled: bool) -> TextRow:
        """The texts of `row`. Raises BadRow."""
        return (read_question if self.questions else read_text)(row, columns, labelled)

    def encode(self, row: TextRow) -> EncodedTexts:
        """Its ids. Raises BadRow for more than there is room for."""
        try:
            return self.pairs.encode(row.first, row.second)
        except TooLong as error:
            raise BadRow("too_long", f"{error.tokens} tokens") from None


@dataclass(frozen=True)
class TextRows:
    """What makes documents of rows of texts."""

    run: ConversationEncoding
    reader: TextReader
    labels: tuple[str, ...]

    @classmethod
    def make(
        cls, run: ConversationEncoding, encoder: Encoder, labels: tuple[str, ...]
    ) -> "TextRows":
        """Raises ConfigError for a tokenizer that lacks what stands around texts."""
        cut = run.too_long == "cut"
        questions = run.rows == "questions"
        return cls(run, TextReader.make(encoder, run.sequence_length, questions, cut), labels)

    def encode_row(
        self, row: Mapping[str, Any], source: RowFiles, part: StagePart, place: int
    ) -> tuple[str, list[EncodedDocument], Mapping[str, int]]:
        """Return whether `row` is to train on or held out, its document, and what is counted of
        it: of texts nothing. Raises BadRow."""
        text = self.reader.read(row, source.columns, labelled=True)
        label = 0
        if text.label is not None:
            label = find_label_number(text.label, self.labels, named=bool(self.run.labels))
        encoded = self.reader.encode(text)
        weights = build_weights(encoded, text.answer, self.run.rows == "questions")
        said = text.prompt.encode()
        key = hashlib.blake2b(source.source.encode() + b"\0" + said, digest_size=16).hexdigest()
        document = EncodedDocument(
            id=key,
            source=source.source,
            url="",
            ids=encoded.ids,
            text_bytes=len(said),
            corpus_file=part.file,
            corpus_row=place,
            weights=weights.astype(np.uint8),
            label=label,
        )
        out = is_held_out(f"prompt:{text.prompt}", self.run.held_out)
        return source.split or (HELD_OUT if out else TRAIN), [document], {}


def build_weights(encoded: EncodedTexts, answer: AnswerPlace | None, questions: bool) -> Integers:
    """[T] what shard_files.py says of each token. Raises BadRow for an answer that was cut off."""
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
        raise BadRow("answer_cut", f"its answer ends at character {answer.end}, the rest at {last}")
    weights += IN_ANSWER * inside_T
    return weights


def count_labels(sources: Sequence[RowFiles]) -> Work:
    """The work of a pass over rows that counts their labels, where the run file names none."""

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
                except BadRow:  # which is told when it is encoded
                    continue
                there = numbers if isinstance(label, int) else names
                there[str(label)] = there.get(str(label), 0) + 1
        return {"numbers": numbers, "names": names}, {}

    return count
