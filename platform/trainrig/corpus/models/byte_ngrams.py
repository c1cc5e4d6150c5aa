"""Naive Bayes over n-grams of bytes: py3langid's model of 139 languages (Lui and Baldwin 2012).

The model is a file of the py3langid package, so nothing is downloaded. trainrig reads and applies
it with its own code, many texts at a time. The tests compare with py3langid itself.

An automaton reads the bytes of a text and emits, at each byte, the longest n-gram of the model that
ends there. A class scores its prior plus, for each different n-gram, log(1 + occurrences) times the
n-gram's log-probability. The file is compressed by LZMA and has the layout of py3langid 0.4.
"""

import importlib.util
import io
import lzma
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Float32s, Int32s, Int64s, UInt8s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.errors import DataError

# Steps of a stored log-probability. The file has half-precision numbers of 1 to 32 nats, whose
# steps are 1/1024 or multiples of that.
_STEPS = 1024
_ROWS = 4_096  # n-grams whose log-probabilities are converted at a time
_LANES = 16  # texts that the automaton reads together


class ByteNGrams(NamedTuple):
    """The model. Shapes: S states, T distinct rows of transitions, F n-grams, K classes."""

    transitions_T256: UInt32s  # the next state, by the next byte
    rows_S: UInt32s  # a state's row of transitions
    n_grams_S: Int32s  # the n-gram that a state emits, or -1
    steps_FK: NDArray[np.int16]  # log-probabilities, in 1/1024
    priors_K: Float32s


class ByteModel(NamedTuple):
    """A model and the names of its classes; several classes may have one name."""

    names: tuple[str, ...]
    n_grams: ByteNGrams


def find_model() -> Path:
    """Return the path of the model in the package py3langid, which is not imported."""
    package = importlib.util.find_spec("py3langid")
    if package is None or package.origin is None:
        raise DataError(
            "the package py3langid, which has the model of short texts' languages, is not "
            'installed; run `pip install "py3langid>=0.4,<0.5"`, or set language.model = "lid.176"'
        )
    return Path(package.origin).parent / "data" / "model.npz.xz"


def read_byte_model(path: Path) -> ByteModel:
    """Read the model at `path`. Raises DataError if it is not a model of this kind."""
    try:
        with np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False) as file:
            # The largest arrays are read one after another, so that less memory is in use at once.
            steps = _count_steps(file["ptc"])
            transitions = file["nextmove"].astype(np.uint32, copy=False).reshape(-1, 256)
            n_grams = ByteNGrams(
                transitions,
                file["nextmove_row"].astype(np.uint32),
                file["out_feat"].astype(np.int32),
                steps,
                file["pc"].astype(np.float32),
            )
            names = tuple(file["classes"].tolist())
    except (lzma.LZMAError, ValueError, KeyError, OSError, EOFError) as error:
        raise DataError(f"{path} is not a model of py3langid 0.4 or later: {error}") from None
    return ByteModel(names, n_grams)


def _count_steps(log_probabilities: NDArray[np.float16]) -> NDArray[np.int16]:
    counted = np.empty(log_probabilities.shape, np.int16)
    most = np.iinfo(np.int16).max
    for first in range(0, len(counted), _ROWS):
        steps = log_probabilities[first : first + _ROWS].astype(np.float32) * _STEPS
        if not np.abs(steps).max() <= most:  # NaN is refused as well
            raise ValueError("a log-probability is outside -32 to 32")
        counted[first : first + _ROWS] = np.rint(steps)
    return counted


class ByteScores(NamedTuple):
    """Scores of texts. Shapes: D texts, K classes."""

    scores_DK: Float32s  # logarithms of likelihoods, with any offset per text
    sizes_D: Int64s  # bytes of each text


def score_bytes(texts: Sequence[str], n_grams: ByteNGrams) -> ByteScores:
    """Score each class of `n_grams` for each of `texts`.

    Texts are read in Unicode's composed form, with single spaces between their words and around
    them: the first and the last word then have the n-grams of words within a text.
    """
    encoded = [
        f" {' '.join(unicodedata.normalize('NFC', text).split())} ".encode("utf-8", "surrogatepass")
        for text in texts
    ]
    sizes = np.array([len(data) for data in encoded], np.int64)
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    scores = np.empty((len(texts), len(n_grams.priors_K)), np.float32)
    _score(data, starts, n_grams, scores)
    return ByteScores(scores, sizes)


@compile_nogil
def _score(
    data: UInt8s,
    starts: Int64s,
    model: ByteNGrams,
    scores: Float32s,
) -> None:
    emitted = np.empty(len(data), np.int32)
    for first in range(0, len(scores), _LANES):
        _run_automaton(data, starts[first : first + _LANES + 1], model, emitted)
    counts = np.zeros(len(model.steps_FK), np.int32)
    step = np.float32(1 / _STEPS)
    for text in range(len(scores)):
        found = emitted[starts[text] : starts[text + 1]]
        different = 0
        for n_gram in found:
            if n_gram >= 0:
                if counts[n_gram] == 0:
                    found[different] = n_gram
                    different += 1
                counts[n_gram] += 1
        sums = scores[text]
        sums[:] = model.priors_K
        for number in range(different):
            n_gram = found[number]
            weight = np.float32(np.log(1.0 + counts[n_gram])) * step
            counts[n_gram] = 0
            steps = model.steps_FK[n_gram]
            for label in range(len(sums)):
                sums[label] += weight * np.float32(steps[label])


@compile_nogil
def _run_automaton(
    data: UInt8s,
    starts: Int64s,
    model: ByteNGrams,
    emitted: Int32s,
) -> None:
    """Write the n-gram that each byte of a few texts emits, or -1.

    The texts advance together, a byte of each in turn: the tables are larger than the processor's
    caches, and the processor loads entries for several texts at once.
    """
    texts = len(starts) - 1
    states = np.zeros(texts, np.uint32)
    longest = 0
    for text in range(texts):
        longest = max(longest, starts[text + 1] - starts[text])
    for at in range(longest):
        for text in range(texts):
            place = starts[text] + at
            if place < starts[text + 1]:
                row = model.rows_S[states[text]]
                states[text] = model.transitions_T256[row, data[place]]
                emitted[place] = model.n_grams_S[states[text]]
