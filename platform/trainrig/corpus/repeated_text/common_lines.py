"""Removal of lines or paragraphs that occur in many documents of the corpus.

There are three phases. Each is a pure function of texts and files, so any number of workers can
share it:

1. `count_lines`, for each split: write the sorted 64-bit keys of its lines, with counts.
2. `find_common_lines`, for each range of keys: find those that the corpus has too often.
3. `cut_lines`, for each split: locate these lines in its texts.

The settings are those of CCNet (Wenzek et al. 2019, arXiv:1911.00359, section 3.1: 64 bits of a
hash of each normalised paragraph, all copies removed), except for the count, which is that of Llama
3: lines seen more than six times are removed (arXiv:2407.21783, section 3.1.1).

Lines with the same normal form are the same line. The form is CCNet's, with the choices of its
code: lower case, accents removed, digits replaced by 0, punctuation and control characters removed.
In addition, each run of white space is one space, and none at the ends. A character's form has up
to four characters (a Korean syllable becomes its letters).

Array suffixes: C is the number of characters of all texts, D of texts, U of units, which are lines
or paragraphs.
"""

import dataclasses
import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.array_types import Bools, Int64s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.repeated_text import record_files
from trainrig.corpus.repeated_text.record_files import Records, RemovedSpans, save_spans

COMMON_LINES = "common_lines"  # `by` of the removed spans


class CommonLines(Settings):
    """Removes lines that the corpus has too often, such as menus, notices and calls to subscribe.

    Lines are the same if their normal forms are equal: lower case, each digit 0, without
    punctuation and accents, each run of white space as one space.
    """

    kind: Literal["CommonLines"] = "CommonLines"
    # Unit that is counted and removed: lines, or paragraphs separated by blank lines.
    unit: Literal["line", "paragraph"] = "line"
    # What is counted: the documents that contain a line, or all its occurrences.
    count: Literal["documents", "occurrences"] = "documents"
    # Most documents (or occurrences) that a line may have before it is removed (Llama 3,
    # arXiv:2407.21783).
    most: int = Field(default=6, ge=1)
    # Fewest characters of a line that may be removed; shorter lines always stay ("Yes.").
    min_characters: int = Field(default=10, ge=1)
    keep_first: bool = False  # keep the first occurrence in the keep order
    # Whether lines are counted in each source by itself; false: in all sources together. So the
    # lines that all programs begin with in one source do not count against another source.
    by_source: bool = True
    # Sources whose lines are counted and removed; None: all. Code has many lines in common.
    sources: tuple[str, ...] | None = None

    def compute_salt(self, source: str) -> int | None:
        """Return a number that makes the keys of the lines of `source` differ, or 0 for none.

        The result is None if the lines of the source stay as they are.
        """
        if self.sources is not None and source not in self.sources:
            return None
        if not self.by_source:
            return 0
        return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), "big")


BLANK = 32
_UNKNOWN = 0xFFFFFFFF
_MET = 0xFFFFFFFE
SEVERAL = 0x80000000  # flag of an index into `several_starts`, for forms of several characters
_CODE_POINTS = 0x110000


def compute_form(character: str) -> str:
    """Return the normal form of one character: "", " ", or the characters to hash."""
    if character.isspace():
        return " "
    # the two forms differ only by their position in a word
    lower = character.lower().replace("ς", "σ")
    return "".join(map(_normalise_character, unicodedata.normalize("NFD", lower)))


def _normalise_character(character: str) -> str:
    category = unicodedata.category(character)
    if category in {"Mn", "Me", "Cc", "Cf"} or category[0] == "P":
        return ""
    return "0" if category == "Nd" else character


class Forms(NamedTuple):
    """The forms of all characters seen so far, as arrays for compiled loops."""

    of_code: UInt32s  # [code points] a code, 0 for none, or SEVERAL and an index
    several_codes: UInt32s
    # start of each form of several characters; the last entry is the end
    several_starts: Int64s


class NormalForm:
    """Cache of characters' forms, computed at first use, since most texts use few characters."""

    def __init__(self) -> None:
        self._of_code = np.full(_CODE_POINTS, _UNKNOWN, np.uint32)
        self._codes: list[int] = []
        self._starts = [0]

    def find_forms(self, codes: UInt32s) -> Forms:
        """Return the forms of all characters of `codes`, and of earlier calls."""
        for code in _find_new_characters(codes, self._of_code).tolist():
            self._of_code[code] = self._learn(compute_form(chr(code)))
        return Forms(
            self._of_code,
            np.array(self._codes, np.uint32),
            np.array(self._starts, np.int64),
        )

    def _learn(self, form: str) -> int:
        if len(form) < 2:
            return ord(form) if form else 0
        self._codes += map(ord, form)
        self._starts.append(len(self._codes))
        return SEVERAL | (len(self._starts) - 2)


@compile_nogil
def _find_new_characters(codes: UInt32s, of_code: UInt32s) -> UInt32s:
    """Return each character of `codes` that is new, and mark it as seen in `of_code`."""
    found = np.empty(min(len(codes), len(of_code)), np.uint32)
    count = 0
    for code in codes:
        if of_code[code] == _UNKNOWN:
            of_code[code] = _MET
            found[count] = code
            count += 1
    return found[:count]


_NEWLINE = 10
# FNV-1a's offset, and the multipliers of MurmurHash3's 64-bit finaliser.
_SEED = np.uint64(0xCBF29CE484222325)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@dataclass(frozen=True)
class Units:
    """The units (lines or paragraphs) of a batch of texts, in order."""

    documents_U: Int64s  # position of the text in the batch
    starts_U: Int64s  # position in characters of the text
    ends_U: Int64s  # end without the newline or blank lines that follow
    nexts_U: Int64s  # end with the newline or blank lines that follow
    keys_U: UInt64s  # 64-bit hash of the normal form; never 0
    lengths_U: Int64s  # characters of the normal form

    @classmethod
    def concatenate(cls, parts: Sequence["Units"]) -> "Units":
        """Concatenate the units of several batches."""
        columns = {}
        for field in dataclasses.fields(cls):
            kind = np.uint64 if field.name == "keys_U" else np.int64
            arrays = [np.empty(0, kind), *(getattr(part, field.name) for part in parts)]
            columns[field.name] = np.concatenate(arrays)
        return cls(**columns)


def find_units(
    texts: Sequence[str], settings: CommonLines, normal_form: NormalForm, salt: int = 0
) -> Units:
    """Return the units of `texts`; other values of `salt` give equal lines other keys.

    Two different lines have the same key with a probability of 2**-64.
    """
    codes_C = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    starts_D1 = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts_D1[1:])
    forms = normal_form.find_forms(codes_C)
    documents, starts, ends, nexts = _split_units(
        codes_C, starts_D1, forms.of_code, settings.unit == "paragraph"
    )
    keys, lengths = _hash_units(
        codes_C, starts, ends, forms.of_code, forms.several_codes, forms.several_starts
    )
    if salt:
        keys = np.maximum(keys ^ np.uint64(salt), np.uint64(1))
    begins = starts_D1[documents]
    return Units(documents, starts - begins, ends - begins, nexts - begins, keys, lengths)


@compile_nogil
def _split_units(
    codes: UInt32s,
    starts: Int64s,
    of_code: UInt32s,
    paragraphs: bool,
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return each unit's document, start, end, and the start of the next unit, all in `codes`."""
    most = len(starts)
    for code in codes:
        most += code == _NEWLINE
    documents = np.empty(most, np.int64)
    begins = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)
    nexts = np.empty(most, np.int64)
    count = 0
    for document in range(len(starts) - 1):
        place = starts[document]
        stop = starts[document + 1]
        within = False  # true if the previous line belongs to a paragraph
        while place < stop:
            begin = place
            blank = True
            while place < stop and codes[place] != _NEWLINE:
                blank &= of_code[codes[place]] == BLANK
                place += 1
            end = place
            place = min(place + 1, stop)  # skip the newline
            if not paragraphs or not (blank or within):
                documents[count] = document
                begins[count] = begin
                ends[count] = end
                nexts[count] = place
                count += 1
            elif count and documents[count - 1] == document:
                if not blank:
                    ends[count - 1] = end
                nexts[count - 1] = place
            within = not blank
    return documents[:count], begins[:count], ends[:count], nexts[:count]


@compile_nogil
def _hash_units(
    codes: UInt32s,
    starts: Int64s,
    ends: Int64s,
    of_code: UInt32s,
    several_codes: UInt32s,
    several_starts: Int64s,
) -> tuple[UInt64s, Int64s]:
    """Return the hash and the number of characters of each unit's normal form."""
    keys = np.empty(len(starts), np.uint64)
    lengths = np.empty(len(starts), np.int64)
    for unit in range(len(starts)):
        found = _SEED
        length = 0
        blank = False  # pending white space: written as one blank if another character follows
        for place in range(starts[unit], ends[unit]):
            form = of_code[codes[place]]
            if form == BLANK:
                blank = length > 0
            elif form:
                if blank:
                    found = (found ^ np.uint64(BLANK)) * _FIRST
                    found ^= found >> _SHIFT
                    length += 1
                    blank = False
                if form < SEVERAL:
                    found = (found ^ np.uint64(form)) * _FIRST
                    found ^= found >> _SHIFT
                    length += 1
                else:
                    first = form & (SEVERAL - 1)
                    for position in range(several_starts[first], several_starts[first + 1]):
                        found = (found ^ np.uint64(several_codes[position])) * _FIRST
                        found ^= found >> _SHIFT
                        length += 1
        found *= _SECOND
        keys[unit] = max(found ^ (found >> _SHIFT), np.uint64(1))
        lengths[unit] = length
    return keys, lengths


Batch = tuple[Sequence[str], Int64s]
"""Texts, and each document's number: its position in the keep order of the corpus."""

# `first` is the lowest document number
LINE = np.dtype([("key", "<u8"), ("count", "<i8"), ("first", "<i8")])


def count_lines(
    batches: Iterable[Batch], settings: CommonLines, path: str, source: str = ""
) -> dict[str, int]:
    """Count the lines of a split of `source` and write the counts to `path` (phase 1).

    It takes the memory of a batch, and 24 bytes for each different line, twice. Returns the number
    of `lines` that were long enough, and of `distinct` ones, which is the number of records.
    """
    normal_form = NormalForm()
    counted = []
    lines = 0
    salt = settings.compute_salt(source)
    for texts, numbers in batches if salt is not None else ():
        units = find_units(texts, settings, normal_form, salt or 0)
        long = units.lengths_U >= settings.min_characters
        lines += int(long.sum())
        counted.append(_count_keys(units.keys_U[long], numbers[units.documents_U[long]], settings))
    merged = record_files.merge_records(np.concatenate([np.empty(0, LINE), *counted]))
    record_files.save_by_key(path, merged)
    return {"lines": lines, "distinct": len(merged)}


def find_common_lines(
    paths: Sequence[str], part: int, parts: int, settings: CommonLines, path: str
) -> dict[str, int]:
    """Find the lines that all splits together have too often, in one range of keys (phase 2).

    The files of phase 1 are at `paths`; range `part` of `parts` is read, and the result written to
    `path`. It takes memory for twice the lines of the range (see `choose_line_range_count`).
    Returns the number of `common` lines, and of their `copies`, counted by `settings.count`.
    """
    merged = record_files.merge_records(record_files.load_key_range(paths, LINE, part, parts))
    common = merged[merged["count"] > settings.most]
    record_files.save_by_key(path, common)
    return {"common": len(common), "copies": int(common["count"].sum())}


def choose_line_range_count(distinct: int, memory: int) -> int:
    """Return the number of key ranges for `distinct` lines of all splits, given memory in bytes."""
    return record_files.choose_part_count(distinct, LINE, memory)


def _count_keys(keys: UInt64s, numbers: Int64s, settings: CommonLines) -> Records:
    """Return one record per key, sorted.

    All lines of a document must be in the same call.
    """
    records = np.empty(len(keys), LINE)
    records["key"] = keys
    records["count"] = 1
    records["first"] = numbers
    if settings.count == "documents":
        order = np.lexsort((numbers, keys))
        keys = keys[order]
        numbers = numbers[order]
        fresh = np.ones(len(keys), bool)
        fresh[1:] = (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1])
        records = records[order[fresh]]
    return record_files.merge_records(records)


def cut_lines(
    batches: Iterable[Batch],
    common: Sequence[str],
    settings: CommonLines,
    path: str,
    source: str = "",
) -> dict[str, int]:
    """Find the spans to remove from a split of `source`, and write them to `path` (phase 3).

    The texts must be those of phase 1; `common` are the files of phase 2. A line is removed with
    its newline, a paragraph with the blank lines after it. At the end of a text without a final
    newline, the newline before it is removed instead. Documents in the file are numbered within the
    split. It takes the memory of a batch, one file of `common`, and 48 bytes per line. Returns the
    numbers of `documents`, `lines` and `characters`, each also as `…_cut`.
    """
    normal_form = NormalForm()
    found = []
    numbers = []
    documents = 0
    characters = 0
    salt = settings.compute_salt(source)
    for texts, numbers_of in batches:
        units = find_units(texts, settings, normal_form, salt or 0)
        found.append(dataclasses.replace(units, documents_U=units.documents_U + documents))
        numbers.append(numbers_of)
        documents += len(texts)
        characters += sum(map(len, texts))
    units = Units.concatenate(found)
    number_D = np.concatenate([np.empty(0, np.int64), *numbers])
    goes_U = np.zeros(len(units.keys_U), bool)
    if salt is not None:
        goes_U = _mark_cut_units(units, number_D, common, settings)
    spans = _find_spans(units, goes_U)
    save_spans(path, spans)
    return {
        "documents": documents,
        "documents_cut": len(np.unique(spans.documents)),
        "lines": len(goes_U),
        "lines_cut": int(goes_U.sum()),
        "characters": characters,
        "characters_cut": int((spans.ends - spans.starts).sum()),
    }


def _mark_cut_units(
    units: Units, number_D: Int64s, common: Sequence[str], settings: CommonLines
) -> Bools:
    """Return which units are removed, as a mask."""
    long = np.flatnonzero(units.lengths_U >= settings.min_characters)
    keys = units.keys_U[long]
    goes = np.zeros(len(units.keys_U), bool)
    for records in record_files.find_keys(keys, common, LINE):
        there = records["key"] != 0
        hits = long[there]
        firsts = records["first"][there]
        goes[hits] = True
        if settings.keep_first:
            at_home = hits[number_D[units.documents_U[hits]] == firsts]
            _, first = np.unique(units.keys_U[at_home], return_index=True)
            goes[at_home[first]] = False
    return goes


def _find_spans(units: Units, goes_U: Bools) -> RemovedSpans:
    """Merge runs of consecutive removed units into spans."""
    removed = np.flatnonzero(goes_U)
    follows = np.zeros(len(removed), bool)  # true if the unit before is removed as well
    documents = units.documents_U[removed]
    follows[1:] = (np.diff(removed) == 1) & (documents[1:] == documents[:-1])
    heads = removed[~follows]
    tails = removed[np.append(~follows[1:], True)[: len(removed)]]
    starts = units.starts_U[heads]
    ends = units.nexts_U[tails]
    # At the end of a text without a final newline, the newline before it is removed.
    before = np.maximum(heads - 1, 0)
    inner = (heads > 0) & (units.documents_U[before] == units.documents_U[heads])
    last = inner & (ends == units.ends_U[tails])
    return RemovedSpans(
        units.documents_U[heads], np.where(last, units.ends_U[before], starts), ends
    )
