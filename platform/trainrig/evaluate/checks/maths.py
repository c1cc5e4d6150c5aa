r"""Normalisation of LaTeX formulas, so that equal formulas can be compared as text.

It ignores the differences that MATH's own comparison ignores (Hendrycks et al. 2021,
arXiv:2103.03874): spaces, units, `\left`, `\dfrac`, fractions and roots without braces, `0.5`.
"""

import re

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
