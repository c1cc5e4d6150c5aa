"""Text as a page shows it: visible control characters, and numbers in the width of a cell."""

import re

# Characters that would break the markup or reverse the reading order: C0 and C1 controls, marks and
# overrides of writing direction, lone surrogates, and two characters that XML forbids.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufffe\uffff]"
)


def escape_invisible(text: str) -> str:
    """Spell out control characters, direction marks and lone surrogates, such as ⟨U+202E⟩."""
    text = text.replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


def format_number(value: int | float) -> str:
    """Format an integer in full (`1,234`), a float with four significant digits (`0.8123`)."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_BYTE_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_short(value: float) -> str:
    """Format a count in full below 10,000, else with three significant digits: `427M`, `720B`.

    All pages, messages and plans write parameters and tokens like this. From 1e15, where no letter
    is in use, the format is `2.07e+21`.
    """
    if abs(value) < 9_999.5:
        return format_number(value)
    if abs(value) >= 0.9995e15:
        return f"{value:.3g}"
    # 999,500 rounds to 1M, not to 1000k.
    size, letter = next((size, letter) for size, letter in _SIZES if abs(value) >= 0.9995 * size)
    return f"{value / size:.3g}{letter}"


def format_bytes(value: float) -> str:
    """Format a number of bytes with three significant digits: `812 bytes`, `15.2 MB`."""
    for size, unit in _BYTE_SIZES:
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}\u00a0{unit}"
    return f"{value:,.0f}\u00a0bytes"


def format_percent(part: float, whole: float) -> str:
    """Format the share of `part` in `whole` as `37.6 %`, or as `–` if `whole` is 0."""
    return f"{100 * part / whole:.1f}\u00a0%" if whole else "–"


def format_duration(seconds: float) -> str:
    """Format a duration as `0.4 s`, `12 s`, `4 min 10 s` or `2 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
    return f"{minutes // 60}\u00a0h {minutes % 60}\u00a0min"


def format_count(count: int | float, noun: str) -> str:
    """Return a count with its noun: `1 document`, `2 documents`, `3 entries`."""
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{format_number(count)} {noun if count == 1 else plural}"
