"""Documents that a run must not learn from, and rows of tokens without them.

A masked document keeps its place, so every other token stays where it is and batches keep their
order. Its ids are replaced by a filler, and no position inside it or just before it has a target.
So no weight depends on the text of a masked document, whatever attends to it.

Shapes: T positions of a base window, B rows of a call, P pieces of documents in one row.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.plan_files import Layout
from trainrig.tokens.rows.timeline import Timeline
from trainrig.tokens.shards.token_shards import TokenShards

FORMAT: Literal[1] = 1
CHUNK = 2**16  # samples whose rows are computed at a time
Windows = Mapping[str, Integers]  # source → base windows, ascending


class MaskedDocument(BaseModel):
    """A masked document: its place in the shards, and its names there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    number: NonNegativeInt  # number in its source, counted from 0
    id: str
    url: str


class MaskedDocuments(BaseModel):
    """Content of a file of masked documents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = FORMAT
    shards: str  # fingerprint of the token shards that the numbers belong to
    filler: NonNegativeInt  # id that replaces the ids of these documents
    documents: tuple[MaskedDocument, ...]  # ascending by source and number

    def encode(self) -> bytes:
        """Return the bytes of the file; equal documents give equal bytes."""
        return (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode()

    @property
    def sha256(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.encode()).hexdigest()

    def list_numbers(self) -> dict[str, Integers]:
        """Return the numbers of the documents of each source, ascending."""
        found: dict[str, list[int]] = {}
        for document in self.documents:
            found.setdefault(document.source, []).append(document.number)
        return {source: np.unique(np.array(n, np.int64)) for source, n in found.items()}

    def check(self, shards: TokenShards) -> None:
        """Raise DataError unless `shards` have these documents."""
        if self.shards != shards.fingerprint:
            raise DataError(
                f"masked_documents: the file is for shards other than {shards.folder}; run "
                "`trainrig forget` on a run of these shards"
            )
        if self.filler >= shards.vocabulary.size:
            raise DataError(
                f"masked_documents: filler {self.filler}, but the vocabulary of {shards.folder} "
                f"has {shards.vocabulary.size} entries"
            )
        for document in self.documents:
            of_source = document.source in shards.sources
            count = shards.count_documents(document.source) if of_source else 0
            if document.number >= count:
                raise DataError(
                    f"masked_documents: document {document.number} of source "
                    f"'{document.source}', but {shards.folder} has {count} there"
                )
            found = shards.document(document.source, document.number)
            if found.id != document.id:
                raise DataError(
                    f"masked_documents: document {document.number} of source "
                    f"'{document.source}' is '{document.id}', but '{found.id}' in {shards.folder}"
                )


def read_masked_documents(path: str) -> MaskedDocuments:
    """Read a file of masked documents. Raise ConfigError if it is missing or of another form."""
    try:
        return MaskedDocuments.model_validate_json(storage.read(path))
    except FileNotFoundError:
        raise ConfigError(
            f"masked_documents: {path} does not exist; leave it out, or restore the file that "
            "`trainrig forget` wrote"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"masked_documents: {path}: {where}: {first['msg']}; restore the file that "
            "`trainrig forget` wrote"
        ) from None


class MaskableLayout(Layout, Protocol):
    """A layout that knows which of its windows hold a document."""

    def find_windows(self, source: str, numbers: Integers) -> Integers:
        """Return [N, 2] each base window with a token of a document, and the document's number.

        `numbers` are document numbers in `source`. A token counts as an id of a row and as a
        target. The result is ascending, without repeats.
        """
        ...

    def find_last_target(self, source: str, window: int, span: int) -> int:
        """Return the number of the document of a row's last target, or -1 if there is none.

        The row has `span` base windows, from `window` on.
        """
        ...


class MaskedRows:
    """The rows of another layout, with masked documents replaced by a filler."""

    def __init__(
        self, layout: MaskableLayout, shards: TokenShards, masked: MaskedDocuments, length: int
    ) -> None:
        """Find the windows of the masked documents; raise DataError if `shards` lack one.

        `length` is that of a base window, in tokens.
        """
        masked.check(shards)
        self._layout = layout
        self._length = length
        self._filler = masked.filler
        self._numbers = masked.list_numbers()
        self._windows: Windows = {
            source: np.unique(layout.find_windows(source, numbers)[:, 0])
            for source, numbers in self._numbers.items()
        }
        self._lost: dict[tuple[str, int], int] = {}  # targets that a base window loses

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the plan of the layout below; masks are recorded apart."""
        return self._layout.fingerprint

    def windows(self, source: str) -> int:
        """Return the number of base windows in one epoch of `source`."""
        return self._layout.windows(source)

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return [B] the number of targets of each row, without those that masks remove."""
        counts = self._layout.targets(source, windows, span)
        if source not in self._windows:
            return counts
        inside = windows[:, None] + np.arange(span)
        for row, column in np.argwhere(np.isin(inside, self._windows[source])).tolist():
            counts[row] -= self._count_lost(source, int(inside[row, column]))
        return counts

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row, as `Layout.read` says, and mask the documents in it."""
        pieces = self._layout.read(source, window, span, ids, targets)
        if not self._holds(source, window, span):
            return pieces
        masked = np.isin(pieces[:, 1], self._numbers[source])
        ends = np.append(pieces[1:, 0], len(ids))
        for begin, end in zip(pieces[masked, 0], ends[masked], strict=True):
            ids[begin:end] = self._filler
            # The position before a document has its first token as the target.
            targets[max(begin - 1, 0) : end] = IGNORE
        if self._layout.find_last_target(source, window, span) in self._numbers[source]:
            targets[-1] = IGNORE
        return pieces

    def _holds(self, source: str, window: int, span: int) -> bool:
        """Return whether any of the windows has a token of a masked document."""
        if source not in self._windows:
            return False
        first, past = np.searchsorted(self._windows[source], [window, window + span])
        return bool(first < past)

    def _count_lost(self, source: str, window: int) -> int:
        """Return the number of targets that masks remove from a base window."""
        key = source, window
        if key not in self._lost:
            ids, targets = np.empty((2, self._length), dtype=np.int64)
            self._layout.read(source, window, 1, ids, targets)
            before = np.count_nonzero(targets != IGNORE)
            self.read(source, window, 1, ids, targets)
            self._lost[key] = int(before - np.count_nonzero(targets != IGNORE))
        return self._lost[key]


def iterate_uses(
    timeline: Timeline, windows: Windows, begin: int, past: int
) -> Iterator[tuple[int, str, int]]:
    """Yield (sample, source, base window) for each of `windows` that samples read.

    The samples are `begin` to `past` (exclusive), in order. Windows that a row reads again without
    training on them count too, because they are in its context.
    """
    starts = [stage.first_sample for stage in timeline.stages]
    bounds = sorted({begin, *(start for start in starts if begin < start < past), past})
    for stage_begin, stage_end in itertools.pairwise(bounds):
        for first in range(stage_begin, stage_end, CHUNK):
            samples = np.arange(first, min(first + CHUNK, stage_end), dtype=np.int64)
            yield from sorted(_find_uses(timeline, windows, samples))


def _find_uses(
    timeline: Timeline, windows: Windows, samples: Integers
) -> Iterator[tuple[int, str, int]]:
    places = timeline.find_places(samples)
    for source, wanted in windows.items():
        mask = places.sources == timeline.sources.index(source)
        if not mask.any() or not len(wanted):
            continue
        rows = timeline.find_source_stage(places.stage, source).find_rows(places.ordinals[mask])
        inside = rows.windows[:, None] + np.arange(rows.read.shape[1])
        for row, column in np.argwhere(np.isin(inside, wanted)).tolist():
            yield int(samples[mask][row]), source, int(inside[row, column])


class UsedMasks:
    """The masked documents that samples would have used, from the first sample on.

    Data before the first use of every masked document is the same as without masks. So a checkpoint
    from before it can be continued with masks.
    """

    def __init__(self, timeline: Timeline, masked: MaskedDocuments, layout: MaskableLayout) -> None:
        """Prepare to read the timeline."""
        self._timeline = timeline
        self._documents: dict[tuple[str, int], list[int]] = {}  # numbers in each base window
        self._windows: dict[str, Integers] = {}
        for source, numbers in masked.list_numbers().items():
            found = layout.find_windows(source, numbers)
            self._windows[source] = np.unique(found[:, 0])
            for window, number in found.tolist():
                self._documents.setdefault((source, window), []).append(number)
        self._first_uses: list[tuple[int, str, int]] = []  # (sample, source, document's number)
        self._read = 0  # samples that were read

    def iterate(self, begin: int, past: int) -> Iterator[tuple[int, str, int]]:
        """Yield (sample, source, document's number) for each use in samples `begin` to `past`."""
        for sample, source, window in iterate_uses(self._timeline, self._windows, begin, past):
            for number in self._documents[source, window]:
                yield sample, source, number

    def describe(self, samples: int) -> dict[str, object]:
        """Return the number of documents used before sample `samples`, and their digest.

        Returns {} if there are none.
        """
        seen = {(source, number) for _, source, number in self._first_uses}
        for sample, source, number in self.iterate(self._read, max(samples, self._read)):
            if (source, number) not in seen:
                seen.add((source, number))
                self._first_uses.append((sample, source, number))
        self._read = max(samples, self._read)
        used = sorted([s, n] for sample, s, n in self._first_uses if sample < samples)
        if not used:
            return {}
        digest = hashlib.sha256(json.dumps(used).encode()).hexdigest()
        return {"documents": len(used), "sha256": digest}
