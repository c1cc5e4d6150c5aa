"""The text that a tokenizer is trained on: a random sample, the same one wherever it is drawn."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from trainrig.config import Field, Settings
from trainrig.errors import ConfigError

# How far beyond the sample texts may pile up before they are sorted and the surplus is dropped:
# sorting is then a few percent of the time that reading takes, and memory 9/8 of the sample.
SLACK = Fraction(1, 8)
EVERYTHING = ""  # the pool of all documents, when no weights are given


class TextSampling(Settings):
    """How much text to train on, and from which sources."""

    # Bytes (UTF-8) of text to train on; more changes few entries, and costs about 1 s for 4 MB on
    # two cores.
    bytes: int = Field(default=100_000_000, ge=1)
    # Share of each source in the sample, in any unit; a source not named gives nothing; None:
    # documents as they come.
    weights: dict[str, float] | None = None
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)  # random seed of the sample


@dataclass(frozen=True)
class DrawnTexts:
    """What was drawn: the texts in a random order, and how many bytes of UTF-8 by source."""

    texts: list[str]
    bytes_of: dict[str, int]


class _Drawn(NamedTuple):
    """A text that may be in the sample; the lowest go first."""

    key: bytes  # a hash of seed and id: a random place, the same in any order of documents
    id: str
    source: str
    text: str
    bytes: int


def draw_sample(documents: Iterable[tuple[str, str, str]], settings: TextSampling) -> DrawnTexts:
    """A sample of `documents` (id, source, text), the same one in whatever order they come.

    A keyed hash of seed and id puts the documents in a random order, and the first are taken. With
    weights, so many bytes are taken from each source that `settings.bytes` is divided by weight. A
    source that has less text than its share gives all of it, and what it lacks is divided among
    the others by their weights, again and again until each has enough or all is taken. The text
    that would go beyond a source's share is cut there, less the bytes of a character cut in two.

    Holds no more than 9/8 of the sample and one document of each source. Raises ConfigError if a
    weight is negative, names no source of the documents, or if all are 0.
    """
    weights = _check_weights(settings.weights)
    pools = {name: _Pool() for name in weights}
    seen: set[str] = set()
    held, limit = 0, int(settings.bytes * (1 + SLACK))
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
    """Texts of one source, or of all, of which the lowest keys will be taken."""

    def __init__(self) -> None:
        self.drawn: list[_Drawn] = []
        self.bytes = 0
        self._highest: _Drawn | None = None  # what sorts after this is known to be surplus

    def add(self, key: bytes, identity: str, source: str, text: str) -> int:
        """Hold a text unless it is known to be surplus; the bytes that are held more."""
        if self._highest and key > self._highest.key:
            return 0
        drawn = _Drawn(key, identity, source, text, len(text.encode()))
        self.drawn.append(drawn)
        self.bytes += drawn.bytes
        return drawn.bytes

    def truncate(self, share: int) -> None:
        """Drop what comes after the text that reaches `share` bytes, at least 1.

        Shares only shrink as documents come, so what is dropped is never missed.
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
    """Cut each pool to its share of what has come so far; the bytes that are then held."""
    for name, share in _compute_shares(pools, weights, sample_bytes).items():
        pools[name].truncate(share + 1)  # shares are rounded down; a pool at its share is not short
    return sum(pool.bytes for pool in pools.values())


def _compute_shares(
    pools: Mapping[str, _Pool], weights: Mapping[str, Fraction], sample_bytes: int
) -> dict[str, int]:
    """Bytes to take from each pool, by weight, as far as it has them; to within a byte each.

    Exact arithmetic, so that no share depends on the order of the documents. A pool that was cut
    before still has at least its share, so it takes the same one as if it held everything.
    """
    shares: dict[str, int] = {}
    left, open_pools = Fraction(sample_bytes), dict(weights)
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
            # Only the end of the last text can hold half a character.
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
    """The pools' weights, those of 0 left out. Raises ConfigError for what cannot be shares."""
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
            "sample.weights: they sum to 0, so there is nothing to train on; give one source a "
            "weight above 0, or leave weights out to take documents as they come"
        )
    return shares


def _check_named(weights: Mapping[str, float] | None, seen: set[str]) -> None:
    for source in weights or {}:
        if source not in seen:
            there = ", ".join(sorted(seen)) or "none"
            raise ConfigError(
                f"sample.weights: no document is of source '{source}'; there are: {there}"
            )
