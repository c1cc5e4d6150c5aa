"""Parsing and encoding of labelled texts, and of questions with answers in a context.

    classified    {"text", "text_pair"?, "label"}
    questions     {"question", "context", "answers": {"text": [...], "answer_start": [...]}}

A label is a name or, where names are known, its number from 0. Questions have the format of SQuAD
(Rajpurkar et al. 2016, arXiv:1606.05250). Empty `answers` mean that the context holds no answer
(Rajpurkar et al. 2018, arXiv:1806.03822).

The stage `conversations` encodes each row as one document: the tokenizer's ids of the whole row,
with the special tokens around them. The weight of a token says which text it belongs to, and
whether it is part of the answer.

Shapes: T tokens.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig.errors import DataError
from trainrig.posttrain.row_run_files import ConversationEncoding, RowFiles
from trainrig.splits import Work
from trainrig.tokens.chat.chat_messages import BadRow, check_unicode
from trainrig.tokens.chat.example_rows import find_field
from trainrig.tokens.document_formats import FORMATS, StagePart
from trainrig.tokens.document_set import is_held_out
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.shard_files import IN_ANSWER, IN_CONTEXT, SECOND_SEGMENT
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, EncodedDocument
from trainrig.tokens.tokenizers.encode import EncodedTexts, Encoder, TextPairEncoder, TooLong

MOST_LABELS = 1_000  # With more labels, the column most likely holds free text.


@dataclass(frozen=True)
class AnswerPlace:
    """Position of an answer in its context, in characters."""

    begin: int
    end: int


@dataclass(frozen=True)
class TextRow:
    """The texts of one row with its label or answer."""

    first: str
    second: str | None = None
    label: str | int | None = None  # None: not requested, or absent.
    answer: AnswerPlace | None = None

    @property
    def prompt(self) -> str:
        """The text whose hash decides between the training and the held-out split."""
        return self.first if self.second is None else f"{self.first}\0{self.second}"


def read_text(row: Mapping[str, Any], columns: Mapping[str, str], labelled: bool = True) -> TextRow:
    """Return the text of `row`, whose fields may have other names in `columns`.

    With `labelled`, the row must have a label. Raises BadRow if a field is missing or invalid.
    """
    first = _read_text(_read_field(row, columns, "text"), "text")
    second = _read_field(row, columns, "text_pair")
    pair = None if second is None else _read_text(second, "text_pair")
    label = _read_field(row, columns, "label")
    if label is None and labelled:
        raise BadRow("no_label", f"no label in `{columns.get('label', 'label')}`")
    return TextRow(first, pair, None if label is None else _read_label(label))


def read_question(
    row: Mapping[str, Any], columns: Mapping[str, str], labelled: bool = True
) -> TextRow:
    """Return the question and the context of `row`.

    With `labelled`, the first of its answers is included. Raises BadRow if a field is missing or
    invalid.
    """
    question = _read_text(_read_field(row, columns, "question"), "question")
    context = _read_text(_read_field(row, columns, "context"), "context")
    if not labelled:
        return TextRow(question, context)
    answers = _read_field(row, columns, "answers")
    if not isinstance(answers, Mapping) or not {"text", "answer_start"} <= set(answers):
        raise BadRow("no_label", "`answers` must be an object with `text` and `answer_start`")
    texts = answers["text"]
    starts = answers["answer_start"]
    if not isinstance(texts, Sequence) or not isinstance(starts, Sequence):
        raise BadRow("bad_label", "`text` and `answer_start` of `answers` must be lists")
    if len(texts) != len(starts):
        raise BadRow("bad_label", f"`answers` has {len(texts)} texts and {len(starts)} starts")
    if not texts:
        return TextRow(question, context)
    text = texts[0]
    begin = starts[0]
    if not isinstance(text, str) or not text.strip() or not isinstance(begin, int):
        raise BadRow("bad_label", f"answer {text!r} at {begin!r}")
    if context[begin : begin + len(text)] != text or begin < 0:
        raise BadRow("bad_label", f"the context does not have {text!r} at character {begin}")
    begin += len(text) - len(text.lstrip())
    return TextRow(question, context, answer=AnswerPlace(begin, begin + len(text.strip())))


def _read_field(row: Mapping[str, Any], columns: Mapping[str, str], name: str) -> Any:
    return find_field(row, columns.get(name, name))


def _read_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        found = "missing or null" if value is None else type(value).__name__
        raise BadRow("missing_field" if value is None else "not_text", f"`{name}` is {found}")
    if not value.strip():
        raise BadRow("empty_text", f"`{name}` is empty or white space")
    check_unicode([value])
    return value


def _read_label(value: Any) -> str | int:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        if value < 0:  # Some data sets write -1 for "no label".
            raise BadRow("no_label", f"label {value}; numbers of labels begin at 0")
        return value
    if not isinstance(value, str) or not value:
        raise BadRow("bad_label", f"label {value!r}; a label is a name or a whole number")
    check_unicode([value])
    return value


def find_label_number(label: str | int, labels: Sequence[str], named: bool) -> int:
    """Return the index in `labels` of `label`, which is a name or a number.

    `named` says that the run file names the labels, so that a number is an index. Raises BadRow for
    an unknown label.
    """
    if isinstance(label, int) and named and str(label) not in labels:
        if label < len(labels):
            return label
    elif str(label) in labels:
        return labels.index(str(label))
    shown = ", ".join(labels[:12])
    raise BadRow("unknown_label", f"label {label!r}; there are: {shown}")


def settle_labels(numbers: Mapping[str, int], names: Mapping[str, int]) -> tuple[str, ...]:
    """Return the labels in order: numbers by size, names in alphabetical order.

    `numbers` and `names` count the rows of each label. Raises DataError if both kinds occur, if
    there are fewer than two labels, and if there are so many that they must be free text.
    """
    if numbers and names:
        raise DataError(
            f"labels: some rows have numbers ({min(numbers)}), others names ({min(names)}); "
            "write the names under `labels` in the run file, in the order of their numbers"
        )
    found = tuple(sorted(numbers, key=int)) if numbers else tuple(sorted(names))
    if len(found) < 2:
        found_labels = f"only one label, {found[0]!r}" if found else "no label"
        raise DataError(f"labels: the rows have {found_labels}; a classifier needs at least two")
    if len(found) > MOST_LABELS:
        raise DataError(
            f"labels: the rows have {len(found):,} different ones, more than {MOST_LABELS:,}, "
            f"such as {found[0]!r}; write them under `labels` in the run file"
        )
    return found


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
