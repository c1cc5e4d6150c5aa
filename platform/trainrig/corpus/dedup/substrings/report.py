"""Report of the texts that were removed most often, and of the longest.

A split is the part of the corpus that one task processes. `save_repeated_texts` is called for each.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.dedup import key_file, sliced_file
from trainrig.corpus.dedup.sliced_file import Records

EXCERPT = 160  # bytes of a removed text that are kept as an excerpt
REPEATED_TEXT = np.dtype(
    [("key", "<u8"), ("count", "<i8"), ("length", "<i8"), ("excerpt", f"V{EXCERPT}")]
)


@dataclass(frozen=True)
class RepeatedText:
    """A text that was removed as one span, once or more often."""

    copies: int  # number of removed spans with this text; the kept occurrence is not counted
    length: int  # length in bytes
    excerpt: str  # the beginning of the text


def save_repeated_texts(path: str, repeated_texts: Sequence[bytes]) -> None:
    """Count how often each text was removed from a split, and write the counts to `path`."""
    records = np.zeros(len(repeated_texts), REPEATED_TEXT)
    digests = [
        hashlib.blake2b(repeated_text, digest_size=8).digest() for repeated_text in repeated_texts
    ]
    records["key"] = np.frombuffer(b"".join(digests), "<u8")
    records["count"] = 1
    records["length"] = [len(repeated_text) for repeated_text in repeated_texts]
    # Padded explicitly, because numpy would end a bytes value at a zero byte.
    excerpts = b"".join(
        repeated_text[:EXCERPT].ljust(EXCERPT, b"\0") for repeated_text in repeated_texts
    )
    records["excerpt"] = np.frombuffer(excerpts, f"V{EXCERPT}")
    key_file.save(path, key_file.merge_records(records))


def read_repeated_texts(
    paths: Sequence[str], most: int, memory: int
) -> dict[str, list[RepeatedText]]:
    """Return the texts removed most often (`frequent`) and the longest (`long`).

    At most `most` of each are returned. `paths` are the files that `save_repeated_texts` wrote. One
    range of keys is read at a time, of about `memory` bytes. Ties are broken by the other number,
    then by the key, which is a hash of the text.
    """
    distinct = sum(int(sliced_file.read_bounds(path)[-1]) for path in paths)
    parts = key_file.choose_part_count(distinct, REPEATED_TEXT, memory)
    frequent = np.empty(0, REPEATED_TEXT)
    long = np.empty(0, REPEATED_TEXT)
    for part in range(parts):
        records = key_file.merge_records(key_file.load(paths, REPEATED_TEXT, part, parts))
        frequent = _merge_top(frequent, records, "count", "length", most)
        long = _merge_top(long, records, "length", "count", most)
    return {
        "frequent": [_read_repeated_text(record) for record in frequent],
        "long": [_read_repeated_text(record) for record in long],
    }


def _merge_top(top: Records, records: Records, first: str, second: str, most: int) -> Records:
    """Return the `most` records of `top` and `records` with the highest `first`, then `second`."""
    best = np.lexsort((records["key"], -records[second], -records[first]))[:most]
    merged = np.concatenate([top, records[best]])
    return merged[np.lexsort((merged["key"], -merged[second], -merged[first]))[:most]]


def _read_repeated_text(record: np.void) -> RepeatedText:
    text = bytes(record["excerpt"])[: int(record["length"])]
    return RepeatedText(int(record["count"]), int(record["length"]), text.decode("utf-8", "ignore"))
