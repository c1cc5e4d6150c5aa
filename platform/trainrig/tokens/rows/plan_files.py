"""The interface of all packings, and the files of packing plans.

A row of T positions takes T + 1 ids: the target of each position is the id after it. A layout
divides each source into base windows, numbered from 0. A row is one base window, or several
adjacent ones. Which row is read at which step is decided elsewhere (pretraining.py).

A packing plan assigns documents to rows. It is made once and looked up in training.

Plans are in a folder below that of their shards and are never changed:

    plans/NAME.json         the header: settings, shards, entries, its own checksum; written last
    plans/NAME.ARRAY        flat little-endian arrays that can be memory-mapped
    plans/NAME.ARRAY.sums   the checksums of their blocks (flat_arrays.py)

Each array concatenates the entries of all sources, in alphabetical order of the sources.

Shapes: T positions of a base window, B rows of a call, P pieces of documents in one row.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import FileSum
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.flat_arrays import SUMS, FlatArray, compute_file_block_sums
from trainrig.tokens.shards.token_shards import TokenShards


class Layout(Protocol):
    """A packing of the documents in one folder of shards, in base windows of one length."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the plan that the layout reads; empty if it needs no plan."""
        ...

    def windows(self, source: str) -> int:
        """Return the number of base windows in one epoch of `source`."""
        ...

    def targets(self, source: str, windows: Integers, span: int) -> Integers:
        """Return [B] the number of targets in the row that begins at each window, without ids.

        Rows have `span` base windows. Only positions that are trained on count.
        """
        ...

    def read(
        self, source: str, window: int, span: int, ids: Integers, targets: Integers
    ) -> Integers:
        """Fill a row of `span` base windows, from `window` on.

        `ids` and `targets` are [span * T] and must not overlap in memory; a target that is not
        trained on becomes IGNORE. Returns [P, 2], ascending: the position in the row at which each
        piece of a document begins, and the document's number in its source. The first piece is at
        position 0, even if its document began in an earlier row. Raises IndexError for windows
        that `source` does not have.
        """
        ...


def check_windows(source: str, window: int, span: int, windows: int) -> None:
    """Raise IndexError unless the `span` windows from `window` on exist, of `windows` in all."""
    if not 0 <= window < window + span <= windows:
        raise IndexError(f"{source}: windows {window} to {window + span} of {windows}")


# Version of the plan format; incremented when an older reader could misread a newer plan.
FORMAT = 2
PLANS = "plans"  # folder of the plans, inside the shards' folder
HEAD = ".json"

Arrays = Mapping[str, np.dtype[Any]]  # array name → dtype on disk
Entries = dict[str, dict[str, int]]  # source → array name → number of the source's entries


class PlanHead(BaseModel):
    """The content of a plan's header."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    shards: str  # fingerprint of the shards that the plan is for
    settings: dict[str, int]
    entries: Entries
    files: dict[str, FileSum]  # array name → size and SHA-256

    def encode(self) -> bytes:
        """Return the bytes of the header's file."""
        entries = self.model_dump(mode="json")
        return json.dumps(entries | {"sum": manifest.digest(entries)}, indent=1).encode()


def write_plan(
    shards: TokenShards,
    name: str,
    settings: Mapping[str, int],
    arrays: Arrays,
    fill: Callable[[Mapping[str, Path]], Entries],
) -> dict[str, FileSum]:
    """Write the plan `name` of `shards`; return the sums of its files, by path below the shards.

    `fill` receives the path of an empty local file for each of `arrays`, writes the arrays there,
    and returns their numbers of entries.
    """
    folder = storage.join(shards.folder, PLANS)
    with contextlib.ExitStack() as unpublished:
        paths = {
            array: unpublished.enter_context(
                storage.atomic_file(storage.join(folder, f"{name}.{array}"))
            )
            for array in arrays
        }
        entries = fill({array: Path(path) for array, path in paths.items()})
        sums = {array: manifest.compute_file_sum(path) for array, path in paths.items()}
        of_blocks = {array: compute_file_block_sums(path) for array, path in paths.items()}
    files = {f"{PLANS}/{name}.{array}": entry for array, entry in sums.items()}
    for array, data in of_blocks.items():
        path = f"{PLANS}/{name}.{array}{SUMS}"
        storage.write(storage.join(shards.folder, path), data)
        files[path] = manifest.compute_file_sum(storage.join(shards.folder, path))
    head = PlanHead(shards=shards.fingerprint, settings=dict(settings), entries=entries, files=sums)
    head_path = storage.join(folder, name + HEAD)
    storage.write(head_path, head.encode())
    return files | {f"{PLANS}/{name}{HEAD}": manifest.compute_file_sum(head_path)}


class PackingPlanFiles:
    """A plan on disk or S3 whose arrays are read on demand; picklable."""

    def __init__(
        self,
        shards: TokenShards,
        name: str,
        arrays: Arrays,
        cache: BlockCache | None,
        remedy: str,
    ) -> None:
        """Open the plan; `remedy` tells the user how to get a plan that does not exist.

        Raises ConfigError, with `remedy`, if there is no such plan. Raises DataError if the plan is
        damaged, of another format version, or for other shards.
        """
        path = storage.join(shards.folder, PLANS, name)
        self.head = _read_head(path + HEAD, remedy)
        if self.head.shards != shards.fingerprint:
            raise DataError(f"{path + HEAD}: made for shards other than these; tokenize again")
        self._arrays = {
            array: _open_array(f"{path}.{array}", dtype, self.head.files[array], cache)
            for array, dtype in arrays.items()
        }
        self._first = {array: _find_first_entries(self.head.entries, array) for array in arrays}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the header, which contains the SHA-256 of each array."""
        return manifest.digest(self.head.model_dump())

    def count(self, array: str, source: str) -> int:
        """Return the number of entries of `array` for `source`."""
        return self.head.entries[source][array]

    def read(self, array: str, source: str, begin: int, end: int) -> NDArray[Any]:
        """Return the entries `begin` to `end` (exclusive) of `array` for `source`."""
        first = self._first[array][source]
        return self._arrays[array].read(first + begin, first + end)

    def take(self, array: str, source: str, indices: Integers) -> NDArray[Any]:
        """Return the entries of `array` for `source` at `indices`, counted within the source."""
        return self._arrays[array].take(self._first[array][source] + indices)

    def make_impossible_error(self, array: str, found: str) -> DataError:
        """Return the error for values in `array` that cannot occur in a plan for these shards."""
        return DataError(f"{self._arrays[array].path}: {found}; tokenize again")

    def search(self, array: str, source: str, values: Integers) -> Integers:
        """Return, for each of `values`, how many entries of the sorted array are at most that."""
        first = self._first[array][source]
        past = first + self.count(array, source)
        return self._arrays[array].search(values, "right", first, past) - first


def _read_head(path: str, remedy: str) -> PlanHead:
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: the plan does not exist; {remedy}") from None
    try:
        found = json.loads(data)
        number = found["format"]
        right = found.pop("sum", None)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: damaged, or not a packing plan: {error}") from None
    if number != FORMAT:
        raise DataError(
            f"{path}: has format {number}, but this trainrig reads {FORMAT}; tokenize again"
        )
    if right != manifest.digest(found):
        raise DataError(f"{path}: damaged: it has changed since it was written; tokenize again")
    try:
        return PlanHead.model_validate(found)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise DataError(f"{path}: damaged, or not a packing plan: {message}") from None


def _open_array(
    path: str, dtype: np.dtype[Any], expected: FileSum, cache: BlockCache | None
) -> FlatArray:
    found = storage.measure_sizes([path]).get(path)
    if found != expected.bytes:
        raise DataError(
            f"{path}: {'missing' if found is None else f'{found} bytes'}, but its plan records "
            f"{expected.bytes} bytes; tokenize again"
        )
    return FlatArray(path, dtype, found // dtype.itemsize, cache)


def _find_first_entries(entries: Entries, array: str) -> dict[str, int]:
    first = {}
    position = 0
    for source in sorted(entries):
        first[source] = position
        position += entries[source][array]
    return first
