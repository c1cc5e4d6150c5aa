"""Parsing of rows as labelled texts, and as questions with answers in a context.

classified    {"text", "text_pair"?, "label"}
    questions     {"question", "context", "answers": {"text": [...], "answer_start": [...]}}

A label is a name or, where names are known, its number from 0. Questions have the format of SQuAD
(Rajpurkar et al. 2016, arXiv:1606.05250). Empty `answers` mean that the context holds no answer
(Rajpurkar et al. 2018, arXiv:1806.03822).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.errors import DataError
from trainrig.tokens.chat.chat_messages import (
    BadRow,
    check_unicode,
)
from trainrig.tokens.chat.example_rows import find_field

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
