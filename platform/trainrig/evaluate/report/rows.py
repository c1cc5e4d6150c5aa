"""Scored rows as text samples of a report page."""

from collections.abc import Mapping
from typing import Any

from trainrig.report import TextSample

LONGEST = 1200  # most characters shown of a prompt or an answer


def build_row_sample(row: Mapping[str, Any], label: str) -> TextSample:
    """Build a sample with the prompt of a row, and the expected and the given answer."""
    parts = [shorten_middle(str(row["prompt"]))]
    if choices := row.get("choices"):
        nats = row["log_likelihoods"]
        parts += [
            f"({n:.2f}) {shorten_middle(text)}" for n, text in zip(nats, choices, strict=True)
        ]
    else:
        parts.append(f"→ {shorten_middle(str(row.get('written', row['given'])))}")
    expected, given = (shorten_middle(str(row[name])) for name in ("expected", "given"))
    note = f"expected: {expected}; given: {given}"
    if "outcome" in row:
        note = f"the program {row['outcome']}"
    return TextSample(f"row {row['row']}, {label}", "\n".join(parts), note)


def shorten_middle(text: str) -> str:
    """Return `text`, without its middle if it is longer than `LONGEST`."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} […] {text[-half:]}"
