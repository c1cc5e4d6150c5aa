"""Masks data that identify a person or a machine: `ann@example.com` becomes `<EMAIL>`.

Each kind of data has its own module; `mask` combines them.
"""

from trainrig.corpus.rewrite.pii.mask import PII, Kind, MaskedSpan, mask

__all__ = ["PII", "Kind", "MaskedSpan", "mask"]
