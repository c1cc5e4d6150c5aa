"""Reports the passages that were removed most often, and the longest."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.dedup import key_file, sliced_file

EXCERPT = 160  # bytes of a passage that are kept to show it
REPEATED_TEXT = np.dtype(
    [("key", "<u8"), ("count", "<i8"), ("length", "<i8"), ("excerpt", f"V{EXCERPT}")]
)


@dataclass(frozen=True)
class RepeatedText:
    """A text that was cut, all of it at once, one or more times."""

    copies: int  # that were cut: one less than there were, if all stood alone
    length: int  # bytes
    excerpt: str  # its beginning


def save_repeated_texts(path: str, repeated_texts: Sequence[bytes]) -> None:
    """Count what was cut of a split, each of `repeated_texts` once, to `path`."""
    records = np.zeros(len(repeated_texts), REPEATED_TEXT)
    digests = [
        hashlib.blake2b(repeated_text, digest_size=8).digest() for repeated_text in repeated_texts
    ]
    records["key"] = np.frombuffer(b"".join(digests), "<u8")
    records["count"] = 1
    records["length"] = [len(repeated_text) for repeated_text in repeated_texts]
    # Copied byte by byte: numpy would end it at a zero.
    excerpts = b"".join(
        repeated_text[:EXCERPT].ljust(EXCERPT, b"\0") for repeated_text in repeated_texts
    )
    records["excerpt"] = np.frombuffer(excerpts, f"V{EXCERPT}")
    key_file.save(path, key_file.merge_records(records))


def read_repeated_texts(
    paths: Sequence[str], most: int, memory: int
) -> dict[str, list[RepeatedText]]:
    """`frequent`: those cut most often; `long`: the longest. At most so many of each.

    `paths` are those of phase 5. Reads a range of keys at a time, of about `memory` bytes; equals
    go by their other number, then by their text.
    """
    distinct = sum(int(sliced_file.read_bounds(path)[-1]) for path in paths)
    parts = key_file.choose_part_count(distinct, REPEATED_TEXT, memory)
    frequent: list[RepeatedText] = []
    long: list[RepeatedText] = []
    for part in range(parts):
        records = key_file.merge_records(key_file.load(paths, REPEATED_TEXT, part, parts))
        for top, first, second in ((frequent, "count", "length"), (long, "length", "count")):
            order = np.lexsort((records["key"], -records[second], -records[first]))[:most]
            top += map(_read_repeated_text, records[order])
    return {
        "frequent": sorted(frequent, key=lambda p: (-p.copies, -p.length, p.excerpt))[:most],
        "long": sorted(long, key=lambda p: (-p.length, -p.copies, p.excerpt))[:most],
    }


def _read_repeated_text(record: np.void) -> RepeatedText:
    text = bytes(record["excerpt"])[: int(record["length"])]
    return RepeatedText(int(record["count"]), int(record["length"]), text.decode("utf-8", "ignore"))
