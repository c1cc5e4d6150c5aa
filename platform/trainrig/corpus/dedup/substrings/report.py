"""Report of the texts that were removed most often, and of the longest."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.dedup import key_file, sliced_file

EXCERPT = 160  # bytes of a removed text that are kept as an excerpt
REPEATED_TEXT = np.dtype(
    [("key", "<u8"), ("count", "<i8"), ("length", "<i8"), ("excerpt", f"V{EXCERPT}")]
)


@dataclass(frozen=True)
class RepeatedText:
    """A text that was removed as one span, once or more often."""

    copies: int  # number of removed copies: one less than existed, if all were separate spans
    length: int  # length in bytes
    excerpt: str  # the beginning of the text


def save_repeated_texts(path: str, repeated_texts: Sequence[bytes]) -> None:
    """Count the texts removed from a split and write the counts to `path`.

    Each element of `repeated_texts` counts once.
    """
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

    At most `most` of each are returned. `paths` are the files of phase 5. One range of keys is read
    at a time, of about `memory` bytes. Ties are broken by the other number, then by the text.
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
