"""Masks what identifies a person or a machine: `ann@example.com` becomes `<EMAIL>`.

A file for each kind of find; `mask` brings them together.
"""

from trainrig.corpus.rewrite.pii.mask import PII, Kind, MaskedSpan, mask

__all__ = ["PII", "Kind", "MaskedSpan", "mask"]
