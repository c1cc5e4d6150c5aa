"""Masks what identifies a person or a machine: `ann@example.com` becomes `<EMAIL>`."""

from trainrig.corpus.rewrite.pii.mask import PII, Kind, Span, mask, passes_luhn, passes_mod_97

__all__ = ["PII", "Kind", "Span", "mask", "passes_luhn", "passes_mod_97"]
