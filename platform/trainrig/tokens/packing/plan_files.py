"""The files of a plan: decisions about rows that tokenizing makes once and training looks up.

A plan lies below its shards' folder and is never changed:

    plans/NAME.json         the head: what the plan is, for which shards, a sum of itself; last
    plans/NAME.ARRAY        flat little-endian arrays that can be memory-mapped
    plans/NAME.ARRAY.sums   the sums of their blocks (block_sums.py)

Each array holds the entries of all sources, one source after the other in alphabetical order.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import FileSum
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.block_sums import SUMS, compute_file_block_sums
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.flat import FlatArray
from trainrig.tokens.shards.token_shards import TokenShards

FORMAT = 2  # of all files of a plan; raised when a reader of this one could misread the next
PLANS = "plans"  # the folder, below that of the shards
HEAD = ".json"

Arrays = Mapping[str, np.dtype[Any]]  # name → how its entries lie on disk
Entries = dict[str, dict[str, int]]  # source → array → how many entries are the source's


class PlanHead(BaseModel):
    """What a plan is."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    shards: str  # fingerprint of those it was made for
    settings: dict[str, int]
    entries: Entries
    files: dict[str, FileSum]  # by array

    def encode(self) -> bytes:
        """The bytes of the file."""
        entries = self.model_dump(mode="json")
        return json.dumps(entries | {"sum": manifest.digest(entries)}, indent=1).encode()


def write_plan(
    shards: TokenShards,
    name: str,
    settings: Mapping[str, int],
    arrays: Arrays,
    fill: Callable[[Mapping[str, Path]], Entries],
) -> dict[str, FileSum]:
    """Write the plan `name` of `shards`; the sums of its files, by path below the shards' folder.

    `fill` is given a local file for each of `arrays` and writes it.
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
    """A plan that was written, of whose arrays nothing is read until asked. May be pickled."""

    def __init__(
        self,
        shards: TokenShards,
        name: str,
        arrays: Arrays,
        cache: BlockCache | None,
        remedy: str,
    ) -> None:
        """Raises ConfigError if there is none: `remedy` says what to write where, to have one.

        DataError for one that is torn, of another format, or made for other shards.
        """
        path = storage.join(shards.folder, PLANS, name)
        self.head = _read_head(path + HEAD, remedy)
        if self.head.shards != shards.fingerprint:
            raise DataError(f"{path + HEAD}: made for other shards than lie here; tokenize again")
        self._arrays = {
            array: _open_array(f"{path}.{array}", dtype, self.head.files[array], cache)
            for array, dtype in arrays.items()
        }
        self._first = {array: _find_first_entries(self.head.entries, array) for array in arrays}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the head, in which are the sums of all that the plan holds."""
        return manifest.digest(self.head.model_dump())

    def count(self, array: str, source: str) -> int:
        """How many entries of `array` are of `source`."""
        return self.head.entries[source][array]

    def read(self, array: str, source: str, begin: int, end: int) -> NDArray[Any]:
        """The source's entries `begin` up to `end`."""
        first = self._first[array][source]
        return self._arrays[array].read(first + begin, first + end)

    def take(self, array: str, source: str, indices: Integers) -> NDArray[Any]:
        """The source's entries at `indices`."""
        return self._arrays[array].take(self._first[array][source] + indices)

    def make_impossible_error(self, array: str, found: str) -> DataError:
        """The error for values `found` in `array` that no plan for these shards can have."""
        return DataError(f"{self._arrays[array].path}: {found}; tokenize again")

    def search(self, array: str, source: str, values: Integers) -> Integers:
        """How many of the source's entries, which ascend, are at most each of `values`."""
        first = self._first[array][source]
        past = first + self.count(array, source)
        return self._arrays[array].search(values, "right", first, past) - first


def _read_head(path: str, remedy: str) -> PlanHead:
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such plan was made; {remedy}") from None
    try:
        found = json.loads(data)
        number, right = found["format"], found.pop("sum", None)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: torn or not ours: {error}") from None
    if number != FORMAT:
        raise DataError(
            f"{path}: a plan of format {number}; this trainrig reads {FORMAT}; tokenize again"
        )
    if right != manifest.digest(found):
        raise DataError(f"{path}: damaged: other bytes than were written; tokenize again")
    try:
        return PlanHead.model_validate(found)
    except ValidationError as error:
        raise DataError(f"{path}: torn or not ours: {error.errors()[0]['msg']}") from None


def _open_array(
    path: str, dtype: np.dtype[Any], expected: FileSum, cache: BlockCache | None
) -> FlatArray:
    found = storage.measure_size(path) if storage.exists(path) else None
    if found != expected.bytes:
        raise DataError(
            f"{path}: {'missing' if found is None else f'{found} bytes'}, but its plan tells of "
            f"{expected.bytes} bytes; tokenize again"
        )
    return FlatArray(path, dtype, found // dtype.itemsize, cache)


def _find_first_entries(entries: Entries, array: str) -> dict[str, int]:
    first, at = {}, 0
    for source in sorted(entries):
        first[source] = at
        at += entries[source][array]
    return first
