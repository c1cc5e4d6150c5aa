"""The text classifier: a linear model, calibrated on held-out texts and stored in one file.

It is learnt from texts that are wanted and texts that are not. Held-out texts calibrate its
probabilities and measure its quality.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.array_files import open_arrays, write_arrays
from trainrig.corpus.array_types import Bools, Float64s
from trainrig.corpus.limits import Scores, quantise_scores
from trainrig.corpus.models import linear_classifier
from trainrig.corpus.models.language_id import identify_all
from trainrig.errors import DataError

BINS = 10
THRESHOLDS = tuple(n / 10 for n in range(1, 10))
_NEWTON_STEPS = 100
# regularisation of the slope; keeps it finite where a threshold separates the classes
_SIGMOID_PRIOR = 1e-3

Reals = Float64s
Labels = Bools


class Sigmoid(NamedTuple):
    """Maps a raw score to a probability: 1 / (1 + exp(-(slope · score + shift)))."""

    slope: float
    shift: float

    def __call__(self, raw: Reals) -> Reals:
        """Return the probability of each raw score."""
        return 1 / (1 + np.exp(-np.clip(self.slope * raw + self.shift, -500, 500)))


def fit_sigmoid(raw: Reals, labels: Labels) -> Sigmoid:
    """Fit the sigmoid that maximises the likelihood of `labels` (Platt 1999), by Newton's method.

    Target values are (n + 1) / (n + 2) instead of 1, and similarly for 0, as in Platt. Otherwise
    scores that separate the classes perfectly would give probabilities of 0 and 1.
    """
    wanted = int(labels.sum())
    others = int((~labels).sum())
    targets = np.where(labels, (wanted + 1) / (wanted + 2), 1 / (others + 2))
    scale = float(np.abs(raw).max()) or 1.0
    columns = np.stack([raw / scale, np.ones_like(raw)])
    at = np.zeros(2)
    loss = np.inf
    for _ in range(_NEWTON_STEPS):
        chance = Sigmoid(*at)(columns[0])
        gradient = columns @ (chance - targets) + _SIGMOID_PRIOR * at
        curve = (columns * (chance * (1 - chance))) @ columns.T + _SIGMOID_PRIOR * np.eye(2)
        step = np.linalg.solve(curve, gradient)
        size = 1.0
        while size > 1e-6 and (now := _compute_loss(at - size * step, columns, targets)) > loss:
            size /= 2
        at = at - size * step
        before = loss
        loss = now
        if before - loss < 1e-12 * abs(loss):
            break
    return Sigmoid(float(at[0]) / scale, float(at[1]))


def _compute_loss(at: Reals, columns: Reals, targets: Reals) -> float:
    logits = at @ columns
    likely = targets * np.logaddexp(0, -logits) + (1 - targets) * np.logaddexp(0, logits)
    return float(likely.sum() + _SIGMOID_PRIOR * (at @ at) / 2)


def compute_area(scores: Reals, labels: Labels) -> float:
    """Compute the area under the ROC curve.

    It is the share of pairs in which the wanted text scores above the other; ties count half.
    """
    wanted = int(labels.sum())
    others = int((~labels).sum())
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[labels].sum() - wanted * (wanted + 1) / 2) / (wanted * others))


class Bin(NamedTuple):
    """Texts of similar probability; a calibrated model has `predicted` near `observed`."""

    predicted: float  # mean probability
    observed: float  # share of the texts that are wanted
    texts: int


def compute_reliability(scores: Reals, labels: Labels) -> list[Bin]:
    """Compute the reliability curve over those tenths of the probability range that have texts."""
    place = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    return [
        Bin(
            round(float(scores[place == n].mean()), 6),
            round(float(labels[place == n].mean()), 6),
            int(np.count_nonzero(place == n)),
        )
        for n in range(BINS)
        if (place == n).any()
    ]


class AtThreshold(NamedTuple):
    """Precision and recall of keeping texts with a probability of at least `least`."""

    least: float
    precision: float  # share of the kept texts that are wanted; 1 if none is kept
    recall: float  # share of the wanted texts that are kept
    kept: float  # share of all texts that are kept


def measure_at_thresholds(scores: Reals, labels: Labels) -> list[AtThreshold]:
    """Measure precision and recall at thresholds from 0.1 to 0.9."""
    found = []
    for least in THRESHOLDS:
        kept = scores >= least
        right = int((kept & labels).sum())
        found.append(
            AtThreshold(
                least,
                round(right / max(1, int(kept.sum())), 6) if kept.any() else 1.0,
                round(right / int(labels.sum()), 6),
                round(float(kept.mean()), 6),
            )
        )
    return found


KIND = "classifier"
BATCH = 1_000  # texts split into words at a time
LEAST_HELD_OUT = 10  # smallest number of held-out texts of each kind to calibrate with


class Learning(Settings):
    """Hyperparameters of a classifier. The defaults are trainrig's own (docs/performance.md)."""

    # Longest n-grams, in words: fastText's `wordNgrams`; DCLM used 2.
    words: int = Field(default=2, ge=1, le=5)
    # Log2 of the number of hash buckets, each of 4 bytes; fastText has 2 million buckets.
    buckets_log2: int = Field(default=21, ge=8, le=28)
    epochs: int = Field(default=5, ge=1)  # passes over the texts
    rate: float = Field(default=0.5, gt=0)  # initial learning rate of AdaGrad
    # Share of the texts to hold out, chosen by hash. One half calibrates the scores; the other half
    # measures the classifier.
    held_out: float = Field(default=0.2, gt=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**63)  # random seed of the order of the texts


@dataclass(frozen=True)
class ClassifierModel:
    """Computes the probability that a text is one of the wanted texts."""

    weights_B: linear_classifier.Weights
    words: int
    sigmoid: Sigmoid
    facts: dict[str, Any]  # training data and measured quality

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """Return probabilities in steps of 1/10000; NaN for a text without words.

        They hold for a mix of texts like the training data. The language only decides how a text is
        split into words.
        """
        raw = linear_classifier.compute_evidence(
            linear_classifier.extract_features(texts, languages), self.weights_B, self.words
        )
        return quantise_scores(self.sigmoid(raw))

    def save(self, path: str) -> None:
        """Write the model to `path`."""
        facts = {"words": self.words, "sigmoid": list(self.sigmoid), "facts": self.facts}
        write_arrays(path, KIND, {"weights": self.weights_B}, facts)

    @classmethod
    def open(cls, path: str) -> Self:
        """Open the model at `path`, mapped into memory. Raises DataError if it is invalid."""
        arrays, facts = open_arrays(path, KIND)
        return cls(arrays["weights"], facts["words"], Sigmoid(*facts["sigmoid"]), facts["facts"])


def train(
    positives: Iterable[str], negatives: Iterable[str], learning: Learning
) -> ClassifierModel:
    """Train a classifier that separates `positives` from `negatives`, reproducibly.

    A repeated text counts each time, but its copies are either all held out or all used for
    training. Raises DataError if either side has too few texts to train on or to hold out.
    """
    wanted = _ClassTexts("positives", positives, learning)
    others = _ClassTexts("negatives", negatives, learning)
    learnt = linear_classifier.concatenate_features([wanted.learnt, others.learnt])
    labels = np.repeat([True, False], [wanted.count, others.count])
    weights = linear_classifier.learn(
        learnt,
        labels,
        2**learning.buckets_log2,
        learning.words,
        learning.epochs,
        learning.rate,
        learning.seed,
    )
    raw = [
        np.nan_to_num(linear_classifier.compute_evidence(side.held, weights, learning.words))
        for side in (wanted, others)
    ]
    scores = np.concatenate(raw)
    truths = np.repeat([True, False], [len(side) for side in raw])
    # Files are read in order, so every second text gives each half a similar mix.
    fitting = np.concatenate([np.arange(len(side)) % 2 == 0 for side in raw])
    sigmoid = fit_sigmoid(scores[fitting], truths[fitting])
    probabilities = quantise_scores(sigmoid(scores[~fitting]))
    truths = truths[~fitting]
    facts = {
        "positives": {"learnt": wanted.count, "held_out": len(raw[0])},
        "negatives": {"learnt": others.count, "held_out": len(raw[1])},
        "measured_texts": len(truths),
        "auc": round(compute_area(probabilities, truths), 6),
        "reliability": [row._asdict() for row in compute_reliability(probabilities, truths)],
        "thresholds": [row._asdict() for row in measure_at_thresholds(probabilities, truths)],
    }
    return ClassifierModel(weights, learning.words, sigmoid, facts)


class _ClassTexts:
    """The texts of one class, as features: those for training and those held out."""

    def __init__(self, name: str, texts: Iterable[str], learning: Learning) -> None:
        learnt: list[linear_classifier.Features] = []
        held: list[linear_classifier.Features] = []
        there = (text for text in texts if text and not text.isspace())
        for batch in iter(lambda: list(itertools.islice(there, BATCH)), []):
            out = [_is_held_out(text, learning.held_out) for text in batch]
            languages, _ = identify_all(batch)
            for into, of in ((learnt, False), (held, True)):
                chosen = [number for number, is_held_out in enumerate(out) if is_held_out is of]
                into.append(
                    linear_classifier.extract_features(
                        [batch[n] for n in chosen], [languages[n] for n in chosen]
                    )
                )
        if not learnt:
            raise DataError(f"{name}: the files contain no text to train on; name other files")
        self.learnt = linear_classifier.concatenate_features(learnt)
        self.held = linear_classifier.concatenate_features(held)
        self.count = len(self.learnt.firsts_D1) - 1
        held_out = len(self.held.firsts_D1) - 1
        if not self.count or held_out < LEAST_HELD_OUT:
            raise DataError(
                f"{name}: {self.count} texts to train on and {held_out} held out, but at least 1 "
                f"and {LEAST_HELD_OUT} are required; name more texts"
            )


def _is_held_out(text: str, share: float) -> bool:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
