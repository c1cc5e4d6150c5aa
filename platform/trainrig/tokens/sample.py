"""The text that a tokenizer is trained on."""

import bisect
from collections.abc import Iterable


def draw_sample(documents: Iterable[tuple[str, str]], sample_bytes: int) -> list[str]:
    """The texts to train on, out of `(document id, text)`: those of the lowest ids, in that order.

    Ids are hashes, so this is a random sample, and the same one in whatever order the documents
    come. It ends exactly at `sample_bytes` (less the bytes of a character cut in two): the text
    that would go beyond is cut. Holds no more than the sample and one document.
    """
    sample: list[tuple[str, bytes]] = []
    held = 0  # bytes
    for identity, text in documents:
        if held >= sample_bytes and identity > sample[-1][0]:
            continue
        encoded = text.encode()
        bisect.insort(sample, (identity, encoded))
        held += len(encoded)
        while held - len(sample[-1][1]) >= sample_bytes:
            held -= len(sample.pop()[1])
    if held > sample_bytes:
        identity, last = sample.pop()
        sample.append((identity, last[: len(last) - (held - sample_bytes)]))
    # Only the end of the last text can hold half a character.
    return [encoded.decode(errors="ignore") for _, encoded in sample]
