"""Extraction of the answer from a generated text, and its comparison with the right answers.

Formulas in LaTeX are normalised, so that equal ones can be compared as text. The comparison ignores
the differences that MATH's own comparison ignores (Hendrycks et al. 2021, arXiv:2103.03874):
spaces, units, left and right, dfrac, fractions and roots without braces, `0.5`.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from trainrig.evaluate.tasks import task_definition
from trainrig.evaluate.tasks.ifeval_instructions import is_followed

_DROPPED = (
    "\\!",
    "\\,",
    "\\;",
    "\\ ",
    "\\left",
    "\\right",
    "^{\\circ}",
    "^\\circ",
    "\\$",
    "$",
    "\\%",
    "%",
)
_FRACTION = re.compile(r"\\frac\s*(\{[^{}]*\}|[^{}\s])\s*(\{[^{}]*\}|[^{}\s])")
_ROOT = re.compile(r"\\sqrt\s*([^{\[\s\\])")
_SIMPLE = re.compile(r"(-?\d+)/(-?\d+)")
_UNIT = re.compile(r"\\text\{\s[^{}]*\}\s*$")


def find_last_boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{…}` or `\fbox{…}` in `text`, or `text` if none."""
    at = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if at < 0:
        return text
    rest = text[at:]
    if rest.startswith("\\boxed "):
        return rest[len("\\boxed ") :].split("$")[0].strip()
    begin = rest.find("{")
    depth = 0
    for place, letter in enumerate(rest[begin:], begin):
        depth += (letter == "{") - (letter == "}")
        if depth == 0 and begin >= 0:
            return rest[begin + 1 : place]
    return text  # the brace is never closed


def extract_formula(text: str) -> str:
    """Return the formula of an answer.

    This is the last boxed formula, else the text between the first and the last dollar sign, else
    all of the text.
    """
    if "\\boxed" in text or "\\fbox" in text:
        return find_last_boxed(text)
    first = text.find("$")
    last = text.rfind("$")
    return text[first + 1 : last] if 0 <= first < last else text


def normalise_latex(text: str) -> str:
    """Return the formula `text` in its normal form, in which equal formulas are equal texts."""
    text = text.replace("\n", "").strip().rstrip(".").replace("\\\\", "\\")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _UNIT.sub("", text)
    for dropped in _DROPPED:
        text = text.replace(dropped, "")
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name.strip()) <= 2:
        text = value  # "x = 3" becomes "3"
    text = re.sub(r"(^|[^\d])\.(\d)", r"\g<1>0.\2", text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _FRACTION.sub(lambda found: _format_fraction(found[1], found[2]), text)
    text = re.sub(r"\s+", "", text)
    if text == "0.5":
        return "\\frac{1}{2}"
    if simple := _SIMPLE.fullmatch(text):
        return _format_fraction(simple[1], simple[2])
    return text


def _format_fraction(above: str, below: str) -> str:
    return f"\\frac{{{above.strip('{}').strip()}}}{{{below.strip('{}').strip()}}}"


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
    check: task_definition.AnswerCheck,
    given: str | None,
    targets: Sequence[str],
    instructions: Sequence[Mapping[str, Any]] = (),
) -> dict[str, float]:
    """Return the scores of an answer by metric, with the headline metric first.

    `given` is None if no answer was found in the text; `instructions` are used for IFEval alone.
    """
    if isinstance(check, task_definition.InstructionMatch):
        return _score_instructions(given or "", instructions)
    if isinstance(check, task_definition.TokenF1):
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


def is_right(check: task_definition.AnswerCheck, given: str, target: str) -> bool:
    """Return whether the answer `given` matches `target` under the rule `check`."""
    match check:
        case task_definition.ExactMatch():
            return _normalise_exact(given, check) == _normalise_exact(target, check)
        case task_definition.NumericMatch():
            mine = find_first_number(given)
            wanted = find_first_number(target)
            if mine is None or wanted is None:
                return False
            return abs(mine - wanted) <= Decimal(repr(check.tolerance))
        case task_definition.PatternMatch():
            find = re.fullmatch if check.whole else re.search
            return find(target, given) is not None
        case task_definition.MathsMatch():
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


def _normalise_exact(text: str, check: task_definition.ExactMatch) -> str:
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
