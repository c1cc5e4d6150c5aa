"""Blend of two models' scores into one probability for each language of a short text.

The blend is log-linear. A language that both models know has the logit

    lid_weight · log(likelihood by lid.176) + ngram_weight · bytes^-ngram_decay · (n-gram score)

where n-gram scores are counted from the text's best. A language that only one model knows has that
model's term alone, with a weight and a constant of its own. Languages that only the n-grams know
are never the answer, but take their share of the probability: Zulu is not named, and scores low.
The numbers were fitted by maximum likelihood on 19,144 texts in 117 languages: messages of
Evolution, Freeciv, GTK and VLC, pages of the help of GNOME and MATE, and human rights declarations
in 33 languages that one of the models lacks. `tests/benchmarks/fit_language_blend.py` names the
files and repeats the fit. Other texts judge: see `docs/evidence/curation.md`.

Scripts come first: letters of a script with few languages leave only these languages.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Bools, Float32s, Float64s, Int64s, UInt16s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.models.byte_ngrams import ByteScores
from trainrig.corpus.signals.text_arrays import LETTER, TextBatch


class _Weights(NamedTuple):
    """The fitted numbers of the blend."""

    lid_weight: float = 0.247
    lid_floor: float = 1.234e-4  # e^-9, added to each likelihood of lid.176, which may be 0
    ngram_weight: float = 2.785
    ngram_decay: float = 0.742
    only_lid_weight: float = 1.28
    # Raised by hand from the fitted -0.32, on 540 sentences of BIG-bench. So the languages that
    # only lid.176 knows, which are rare in the fit, are found as often as by lid.176 alone. With
    # -0.32, 29% of these sentences are right in place of 41%, and 85.0% of word pairs in place of
    # 84.5%.
    only_lid: float = 0.8
    only_ngrams: float = -3.03


_WEIGHTS = np.array(_Weights())

# Classes of the n-grams that are not languages, or that lid.176 knows by another code.
_NO_LANGUAGE = "zxx"
_OTHER_CODES = {"sdh": "ckb"}  # Kurdish in Arabic letters
# lid.176 has Serbo-Croatian beside its three standards, which the n-grams tell apart.
_NEVER = frozenset({"sh"})

# Blocks of Unicode whose letters few languages use: first and last character, and the languages.
_SCRIPTS = (
    (0x370, 0x3FF, ("el",)),
    (0x530, 0x58F, ("hy",)),
    (0x590, 0x5FF, ("he", "yi")),
    (0x780, 0x7BF, ("dv",)),
    (0x900, 0x97F, ("hi", "mr", "ne", "sa", "bh", "mai", "gom", "new")),
    (0x980, 0x9FF, ("bn", "as", "bpy")),
    (0xA00, 0xA7F, ("pa",)),
    (0xA80, 0xAFF, ("gu",)),
    (0xB00, 0xB7F, ("or",)),
    (0xB80, 0xBFF, ("ta",)),
    (0xC00, 0xC7F, ("te",)),
    (0xC80, 0xCFF, ("kn",)),
    (0xD00, 0xD7F, ("ml",)),
    (0xD80, 0xDFF, ("si",)),
    (0xE00, 0xE7F, ("th",)),
    (0xE80, 0xEFF, ("lo",)),
    (0xF00, 0xFFF, ("bo",)),
    (0x1000, 0x109F, ("my",)),
    (0x10A0, 0x10FF, ("ka", "xmf")),
    (0x1200, 0x137F, ("am",)),
    (0x1780, 0x17FF, ("km",)),
    (0x3040, 0x30FF, ("ja",)),
    (0xAC00, 0xD7AF, ("ko",)),
)
_KANA = next(number for number, (first, _, _) in enumerate(_SCRIPTS) if first == 0x3040)
_HAN = (0x4E00, 0x9FFF)
# Share of kana among the kana and Chinese characters of a text that makes it Japanese. Japanese
# prose has about half; Chinese quotes a word of it now and then.
_KANA_SHARE = 0.2


class Classes(NamedTuple):
    """Correspondence of the L labels of lid.176 with the K classes of the n-grams, S scripts."""

    targets_K: Int64s  # label of each class; L and above: other languages; -1: none
    others: int  # languages that only the n-grams know
    in_both_L: Bools
    allowed_SL: Bools  # languages of each script
    never_L: Bools


def match_classes(labels: Sequence[str], names: Sequence[str]) -> Classes:
    """Match the labels of lid.176 with the names of the n-grams' classes."""
    codes = [_OTHER_CODES.get(name, name) for name in names]
    others = sorted({*codes} - {*labels, _NO_LANGUAGE})
    places = {code: place for place, code in enumerate((*labels, *others))}
    targets = np.array([places.get(code, -1) for code in codes], np.int64)
    allowed = [[label in languages for label in labels] for _, _, languages in _SCRIPTS]
    never = np.array([label in _NEVER for label in labels])
    in_both = np.isin(np.arange(len(labels)), targets)
    return Classes(targets, len(others), in_both, np.array(allowed), never)


class Blended(NamedTuple):
    """The most likely label of each text, and its probability."""

    labels_D: Int64s
    scores_D: Float64s


def blend(
    batch: TextBatch,
    chosen: Int64s,
    likelihoods: Float32s,
    found: ByteScores,
    classes: Classes,
) -> Blended:
    """Blend the scores of the `chosen` texts of `batch`.

    Args:
        batch: the texts.
        chosen: [D] numbers of the texts.
        likelihoods: [D, L] by lid.176.
        found: the scores of the same texts by the n-grams.
        classes: the result of `match_classes`.
    """
    labels = np.empty(len(chosen), np.int64)
    scores = np.empty(len(chosen), np.float64)
    blocks = np.array([(first, last) for first, last, _ in _SCRIPTS], np.int64)
    scripts = np.empty(len(chosen), np.int64)
    _find_scripts(batch.codes_C, batch.classes_C, batch.starts_D1, chosen, blocks, scripts)
    _blend(likelihoods, *found, classes, scripts, _WEIGHTS, labels, scores)
    return Blended(labels, scores)


@compile_nogil
def _find_scripts(
    codes: UInt32s,
    kinds: UInt16s,
    starts: Int64s,
    chosen: Int64s,
    blocks: Int64s,
    scripts: Int64s,
) -> None:
    """Write the script of most letters of each text; -1: none, or one with many languages."""
    counts = np.empty(len(blocks), np.int64)
    for number in range(len(chosen)):
        counts[:] = 0
        letters = 0
        han = 0
        for place in range(starts[chosen[number]], starts[chosen[number] + 1]):
            code = np.int64(codes[place])
            letter = kinds[place] & LETTER != 0
            if code < blocks[0, 0]:
                letters += letter
                continue
            if _HAN[0] <= code <= _HAN[1]:
                han += 1
            block = np.searchsorted(blocks[:, 0], code, side="right") - 1
            if code <= blocks[block, 1]:
                # Vowel signs count as well, as they follow letters of the same script.
                counts[block] += 1
                letters += 1
            else:
                letters += letter
        script = counts.argmax()
        scripts[number] = script if 2 * counts[script] > letters else -1
        kana = counts[_KANA]
        if kana >= _KANA_SHARE * (kana + han) and kana > 0 and 2 * (kana + han) > letters:
            scripts[number] = _KANA


@compile_nogil
def _blend(
    likelihoods: Float32s,
    n_gram_scores: Float32s,
    sizes: Int64s,
    classes: Classes,
    scripts: Int64s,
    weights: Float64s,
    labels: Int64s,
    scores: Float64s,
) -> None:
    lid_weight, lid_floor, ngram_weight, ngram_decay = weights[:4]
    only_lid_weight, only_lid, only_ngrams = weights[4:]
    count = likelihoods.shape[1]
    terms = np.empty(count + classes.others, np.float64)
    for text in range(len(labels)):
        terms[:] = -np.inf
        best = -np.inf
        for number in range(len(classes.targets_K)):
            target = classes.targets_K[number]
            if target >= 0:
                terms[target] = max(terms[target], np.float64(n_gram_scores[text, number]))
                best = max(best, terms[target])
        scale = ngram_weight * max(sizes[text], 1) ** -ngram_decay
        script = scripts[text]
        chosen = 0
        for label in range(len(terms)):
            term = (terms[label] - best) * scale
            if label >= count:
                term += only_ngrams
            else:
                lid = np.log(np.float64(likelihoods[text, label]) + lid_floor)
                if classes.in_both_L[label]:
                    term += lid_weight * lid
                else:
                    term = only_lid_weight * lid + only_lid
                if classes.never_L[label]:
                    term = -np.inf
            if script >= 0 and (label >= count or not classes.allowed_SL[script, label]):
                term = -np.inf
            terms[label] = term
            if label < count and term > terms[chosen]:
                chosen = label
        total = 0.0
        highest = terms.max()
        for label in range(len(terms)):
            total += np.exp(terms[label] - highest)
        labels[text] = chosen
        scores[text] = np.exp(terms[chosen] - highest) / total
