"""Explains why a curation kept nothing."""

from collections import Counter
from collections.abc import Mapping
from typing import Any


def explain_nothing_read(counts: Mapping[str, Any]) -> str:
    """Explain why none of the records gave a document; `counts` are from the reading."""
    reasons = Counter(counts["quarantined"])
    if not reasons:
        return "the inputs contain no page"
    return (
        f"no record gave a document, of {reasons.total():,} read "
        f"({_format_most_common(reasons)}); name other files in `paths`, or set another "
        "`extractor`"
    )


def explain_nothing_kept(counts: Mapping[str, Any]) -> str:
    """Explain which steps dropped all documents; `counts` are from the manifest."""
    reasons = Counter(counts["dropped_by"])
    documents = counts["documents_extracted"]
    return (
        f"documents ({documents:,}) were dropped mostly by {_format_most_common(reasons)}; relax "
        "`filters`"
    )


def _format_most_common(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in reasons.most_common(3))
