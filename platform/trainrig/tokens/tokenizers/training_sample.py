"""A reproducible random sample of documents, as the text that a tokenizer is trained on."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from trainrig.config import Field, Settings
from trainrig.errors import ConfigError

# Share of the sample by which texts may exceed it before they are sorted and the surplus is
# dropped. Sorting then takes a few percent of the reading time, and memory 9/8 of the sample.
SLACK = Fraction(1, 8)
EVERYTHING = ""  # the pool of all documents, if there are no weights


class TextSampling(Settings):
    """Amount of text to train a tokenizer on, and its sources."""

    # Bytes (UTF-8) of text to train on. More text changes few entries, and costs about 1 s for 4 MB
    # on two cores.
    bytes: int = Field(default=100_000_000, ge=1)
    # Share of each source in the sample, in any unit, where sources that are not named are left
    # out; None: documents are drawn regardless of their source.
    weights: dict[str, float] | None = None
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)  # random seed of the sample


@dataclass(frozen=True)
class DrawnTexts:
    """A drawn sample: its texts in random order, and its bytes of UTF-8 by source."""

    texts: list[str]
    bytes_of: dict[str, int]


class _Drawn(NamedTuple):
    """A candidate for the sample; the lowest keys are chosen."""

    key: bytes  # keyed hash of the id: a random rank that does not depend on document order
    id: str
    source: str
    text: str
    bytes: int


def draw_sample(documents: Iterable[tuple[str, str, str]], settings: TextSampling) -> DrawnTexts:
    """Return a sample of `documents` (id, source, text), independent of their order.

    A hash of the id, keyed by the seed, puts the documents in a random order, and the first ones
    are taken. With weights, `settings.bytes` is divided among the sources by weight. A source with
    less text than its share gives all its text. The rest of its share is divided among the others
    by weight, repeatedly, until every share is filled or all text is taken. The last text of a
    source is cut where the share ends, and a character that this would split is left out.

    Holds at most 9/8 of the sample and one document of each source. Raises ConfigError if a weight
    is negative or names a source without documents, or if all weights are 0.
    """
    weights = _check_weights(settings.weights)
    pools = {name: _Pool() for name in weights}
    seen: set[str] = set()
    held = 0
    limit = int(settings.bytes * (1 + SLACK))
    seed = str(settings.seed).encode()
    for identity, source, text in documents:
        seen.add(source)
        pool = pools.get(source if settings.weights is not None else EVERYTHING)
        if pool is None or not text:
            continue
        key = hashlib.blake2b(identity.encode(), key=seed, digest_size=16).digest()
        held += pool.add(key, identity, source, text)
        if held > limit:
            held = _drop_surplus(pools, weights, settings.bytes)
    _check_named(settings.weights, seen)
    held = _drop_surplus(pools, weights, settings.bytes)
    return _join_pools(pools, _compute_shares(pools, weights, settings.bytes))


class _Pool:
    """Candidates for the sample of one source, or of all; those with the lowest keys are taken."""

    def __init__(self) -> None:
        self.drawn: list[_Drawn] = []
        self.bytes = 0
        self._highest: _Drawn | None = None  # texts with a higher key are surplus

    def add(self, key: bytes, identity: str, source: str, text: str) -> int:
        """Hold a text unless it is known to be surplus; return the bytes that this adds."""
        if self._highest and key > self._highest.key:
            return 0
        drawn = _Drawn(key, identity, source, text, len(text.encode()))
        self.drawn.append(drawn)
        self.bytes += drawn.bytes
        return drawn.bytes

    def truncate(self, share: int) -> None:
        """Drop the texts after the one that reaches `share` bytes, at least 1.

        Shares only shrink as further documents arrive, so a dropped text is never needed again.
        """
        if self.bytes < share:
            return
        self.drawn.sort()
        held = kept = 0
        while held < share:
            held += self.drawn[kept].bytes
            kept += 1
        del self.drawn[kept:]
        self.bytes = held
        self._highest = self.drawn[-1]


def _drop_surplus(
    pools: Mapping[str, _Pool], weights: Mapping[str, Fraction], sample_bytes: int
) -> int:
    """Truncate each pool to its share of the texts so far; return the bytes that remain."""
    for name, share in _compute_shares(pools, weights, sample_bytes).items():
        # Shares are rounded down. One byte more distinguishes a full pool from a short one.
        pools[name].truncate(share + 1)
    return sum(pool.bytes for pool in pools.values())


def _compute_shares(
    pools: Mapping[str, _Pool], weights: Mapping[str, Fraction], sample_bytes: int
) -> dict[str, int]:
    """Return the bytes to take from each pool, by weight and to within a byte.

    A pool with less text than its share gives all of it. The arithmetic is exact, so that shares do
    not depend on the order of the documents. A pool that was truncated before still holds at least
    its share, and so gets the same share as if it held everything.
    """
    shares: dict[str, int] = {}
    left = Fraction(sample_bytes)
    open_pools = dict(weights)
    while open_pools:
        unit = left / sum(open_pools.values())
        short = [name for name, weight in open_pools.items() if pools[name].bytes < weight * unit]
        if not short:
            return shares | {name: int(weight * unit) for name, weight in open_pools.items()}
        for name in short:
            shares[name] = pools[name].bytes
            left -= shares[name]
            del open_pools[name]
    return shares


def _join_pools(pools: Mapping[str, _Pool], shares: Mapping[str, int]) -> DrawnTexts:
    chosen: list[_Drawn] = []
    for name, share in shares.items():
        pool = pools[name]
        beyond = pool.bytes - share
        if beyond > 0:
            last = pool.drawn.pop()
            # Only the end of the last text can be part of a character.
            text = last.text.encode()[: last.bytes - beyond].decode(errors="ignore")
            if text:
                pool.drawn.append(last._replace(text=text, bytes=len(text.encode())))
        chosen += pool.drawn
    chosen.sort()
    bytes_of: dict[str, int] = {}
    for drawn in chosen:
        bytes_of[drawn.source] = bytes_of.get(drawn.source, 0) + drawn.bytes
    return DrawnTexts([drawn.text for drawn in chosen], dict(sorted(bytes_of.items())))


def _check_weights(weights: Mapping[str, float] | None) -> dict[str, Fraction]:
    """Return the weights above 0 by pool; raise ConfigError for negative or infinite weights."""
    if weights is None:
        return {EVERYTHING: Fraction(1)}
    for source, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise ConfigError(
                f"sample.weights: source '{source}' has the weight {weight:g}; give it 0 or more"
            )
    shares = {source: Fraction(weight) for source, weight in sorted(weights.items()) if weight}
    if not shares:
        raise ConfigError(
            "sample.weights: all are 0, so there is nothing to train on; give one source a weight "
            "above 0, or leave weights out to draw documents of all sources"
        )
    return shares


def _check_named(weights: Mapping[str, float] | None, seen: set[str]) -> None:
    for source in weights or {}:
        if source not in seen:
            there = ", ".join(sorted(seen)) or "none"
            raise ConfigError(
                f"sample.weights: no document is of source '{source}'; there are: {there}"
            )
