"""Extraction of the answer from a generated text, and its comparison with the right answers."""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from trainrig.evaluate.checks.instructions import is_followed
from trainrig.evaluate.checks.maths import extract_formula, normalise_latex
from trainrig.evaluate.checks.settings import (
    AnswerCheck,
    ExactMatch,
    InstructionMatch,
    MathsMatch,
    NumericMatch,
    PatternMatch,
    TokenF1,
)

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(
    r"[-+]?[$€£]?\s?(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d+)?|[-+]?[$€£]?\s?\d[\d,]*\.?"
)


def cut_at(text: str, until: Sequence[str]) -> str:
    """Return `text` up to the first occurrence of any text in `until`."""
    places = [at for mark in until if mark and (at := text.find(mark)) >= 0]
    return text[: min(places)] if places else text


def extract_answer(text: str, pattern: str | None, take: Literal["first", "last"]) -> str | None:
    """Return the part of `text` that `pattern` matches, or None if it does not match.

    The part is the first group that took part in the match, or the whole match without groups. If
    `pattern` is None, the part is the whole text. White space at both ends is removed.
    """
    if pattern is None:
        return text.strip()
    matches = list(re.finditer(pattern, text))
    if not matches:
        return None
    match = matches[0 if take == "first" else -1]
    # The alternatives of a pattern may have one group each, so some groups are None.
    return next((group for group in match.groups() if group is not None), match.group()).strip()


def score_answer(
    check: AnswerCheck,
    given: str | None,
    targets: Sequence[str],
    instructions: Sequence[Mapping[str, Any]] = (),
) -> dict[str, float]:
    """Return the scores of an answer by metric, with the headline metric first.

    `given` is None if no answer was found in the text; `instructions` are used for IFEval alone.
    """
    if isinstance(check, InstructionMatch):
        return _score_instructions(given or "", instructions)
    if isinstance(check, TokenF1):
        f1 = (
            max((_compute_token_f1(given, target) for target in targets), default=0.0)
            if given
            else 0.0
        )
        exact = given is not None and any(
            _normalise_squad(given) == _normalise_squad(target) for target in targets
        )
        return {"f1": f1, "exact_match": float(exact)}
    right = given is not None and any(is_right(check, given, target) for target in targets)
    return {"exact_match": float(right)}


def is_right(check: AnswerCheck, given: str, target: str) -> bool:
    """Return whether the answer `given` matches `target` under the rule `check`."""
    match check:
        case ExactMatch():
            return _normalise_exact(given, check) == _normalise_exact(target, check)
        case NumericMatch():
            mine = find_first_number(given)
            wanted = find_first_number(target)
            if mine is None or wanted is None:
                return False
            return abs(mine - wanted) <= Decimal(repr(check.tolerance))
        case PatternMatch():
            find = re.fullmatch if check.whole else re.search
            return find(target, given) is not None
        case MathsMatch():
            return normalise_latex(extract_formula(given)) == normalise_latex(target)
    return _normalise_squad(given) == _normalise_squad(target)


def find_first_number(text: str) -> Decimal | None:
    """Return the first number in `text`, or None if there is none.

    Thousands separators and currency signs are ignored.
    """
    match = _NUMBER.search(text)
    return _parse_decimal(match.group()) if match else None


def find_numbers(text: str) -> list[Decimal]:
    """Return all numbers in `text`, parsed as in `find_first_number`."""
    found = (_parse_decimal(match.group()) for match in _NUMBER.finditer(text))
    return [number for number in found if number is not None]


def _parse_decimal(written: str) -> Decimal | None:
    digits = re.sub(r"[,$€£\s]", "", written).rstrip(".")
    try:
        return Decimal(digits)
    except InvalidOperation:
        return None


def _normalise_exact(text: str, check: ExactMatch) -> str:
    text = text.strip()
    if check.ignore_case:
        text = text.lower()
    return text.translate(_PUNCTUATION).strip() if check.ignore_punctuation else text


def _normalise_squad(text: str) -> str:
    """Normalise `text` as in SQuAD: lower case, no punctuation or articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _compute_token_f1(given: str, target: str) -> float:
    mine = _normalise_squad(given).split()
    wanted = _normalise_squad(target).split()
    if not mine or not wanted:
        return float(mine == wanted)
    shared = sum((Counter(mine) & Counter(wanted)).values())
    return 2 * shared / (len(mine) + len(wanted))


def _score_instructions(text: str, instructions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    strict = [is_followed(instruction, text) for instruction in instructions]
    loose = [
        any(is_followed(instruction, variant) for variant in _list_variants(text))
        for instruction in instructions
    ]
    return {
        "prompt_strict": float(all(strict)),
        "prompt_loose": float(all(loose)),
        "instruction_strict": sum(strict) / len(strict),
        "instruction_loose": sum(loose) / len(loose),
    }


def _list_variants(text: str) -> list[str]:
    """Return the variants of `text` for the loose metric of IFEval (section 2.2 of the paper).

    The variants are without the first line, the last line or both, each with and without asterisks,
    so that an introduction, an ending or bold type do not count as a failure.
    """
    lines = text.split("\n")
    cuts = [lines, lines[1:], lines[:-1], lines[1:-1]]
    variants = ["\n".join(cut).strip() for cut in cuts]
    return [text, *variants, *(variant.replace("*", "") for variant in variants)]
