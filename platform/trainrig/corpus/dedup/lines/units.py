"""Lines or paragraphs of texts: their positions, and the keys of their normal forms.

Array suffixes: C is the number of characters of all texts, D of texts, U of units.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.lines.normal_form import BLANK, SEVERAL, NormalForm
from trainrig.corpus.dedup.lines.settings import CommonLines

_NEWLINE = 10
# FNV-1a's offset, and the multipliers of MurmurHash3's 64-bit finaliser.
_SEED = np.uint64(0xCBF29CE484222325)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@dataclass(frozen=True)
class Units:
    """The units (lines or paragraphs) of a batch of texts, in order."""

    documents_U: NDArray[np.int64]  # position of the text in the batch
    starts_U: NDArray[np.int64]  # position in characters of the text
    ends_U: NDArray[np.int64]  # end without the newline or blank lines that follow
    nexts_U: NDArray[np.int64]  # end with the newline or blank lines that follow
    keys_U: NDArray[np.uint64]  # 64-bit hash of the normal form; never 0
    lengths_U: NDArray[np.int64]  # characters of the normal form

    @classmethod
    def concatenate(cls, parts: Sequence["Units"]) -> "Units":
        """Concatenate the units of several batches."""
        columns = {}
        for field in dataclasses.fields(cls):
            kind = np.uint64 if field.name == "keys_U" else np.int64
            arrays = [np.empty(0, kind), *(getattr(part, field.name) for part in parts)]
            columns[field.name] = np.concatenate(arrays)
        return cls(**columns)


def find_units(texts: Sequence[str], settings: CommonLines, normal_form: NormalForm) -> Units:
    """Return the units of `texts`.

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
    begins = starts_D1[documents]
    return Units(documents, starts - begins, ends - begins, nexts - begins, keys, lengths)


@compile_nogil
def _split_units(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    of_code: NDArray[np.uint32],
    paragraphs: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
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
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    of_code: NDArray[np.uint32],
    several_codes: NDArray[np.uint32],
    several_starts: NDArray[np.int64],
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
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
