"""Signature file of a split: an Arrow IPC file of one batch, with a row for each document.

id string · characters int64 · digest, url binary[16] · keys uint64[bands] · ends int64
    · shingles list of uint32, sorted

It is not compressed, so it can be mapped: a reader of three documents' shingles touches only their
pages, and a reader of band keys reads nothing else. In a bucket, columns are read by byte ranges.
`ends` repeats the offsets of the lists, so that they can be read without the lists. Any Arrow
library can read the file.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError

FORMAT = b"1"
_FORMAT_KEY = b"trainrig.signatures"
_DIGEST = 16  # bytes

# The file's column for each array's name.
_COLUMNS = {
    "ids": "id",
    "characters": "characters",
    "digests": "digest",
    "urls": "url",
    "keys": "keys",
    "ends": "ends",
    "shingles": "shingles",
}


def save_columns(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays of `Signatures`, keyed by name; equal arrays give equal bytes."""
    ends = arrays["ends"].astype(np.int64)
    keys = arrays["keys"].astype(np.uint64)
    columns = {
        "id": pa.array(arrays["ids"].tolist(), pa.string()),
        "characters": pa.array(arrays["characters"].astype(np.int64)),
        "digest": _convert_to_binary(arrays["digests"]),
        "url": _convert_to_binary(arrays["urls"]),
        "keys": pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), keys.shape[1]),
        "ends": pa.array(ends),
        "shingles": pa.LargeListArray.from_arrays(
            pa.array(np.concatenate([np.zeros(1, np.int64), ends])),
            pa.array(arrays["shingles"]),
        ),
    }
    batch = pa.RecordBatch.from_pydict(columns, metadata={_FORMAT_KEY: FORMAT})
    with (
        storage.atomic_file(path) as temporary,
        pa.OSFile(temporary, "wb") as file,
        pa.ipc.new_file(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def load_columns(path: str, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays `names`, or all of them, read-only; a local file is mapped.

    Raises DataError if the file is not a valid signature file.
    """
    wanted = list(names or _COLUMNS)
    with _open_signatures(path, whole="shingles" in wanted) as source:
        try:
            there = pa.ipc.open_file(source).schema
            if (there.metadata or {}).get(_FORMAT_KEY) != FORMAT:
                raise DataError(
                    f"{path}: not a signature file of this format; delete it to compute the "
                    "signatures again"
                )
            fields = [there.get_field_index(_COLUMNS[name]) for name in wanted]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            batch = pa.ipc.open_file(source, options=options).get_batch(0)
        except pa.ArrowInvalid:
            raise DataError(
                f"{path}: not a signature file, or truncated; delete it to compute the "
                "signatures again"
            ) from None
        return {name: _convert_to_numpy(batch.column(_COLUMNS[name])) for name in wanted}


@contextlib.contextmanager
def _open_signatures(path: str, whole: bool) -> Iterator[pa.NativeFile]:
    if path.startswith(storage.S3) and not whole:
        with storage.open_read(path) as stream:
            yield pa.PythonFile(stream, "r")
        return
    # The file is closed at once: callers open thousands, and a process may hold about 1024 open.
    # Mapped pages stay mapped as long as an array uses them.
    with pa.memory_map(str(storage.fetch_local_path(path))) as mapped:
        yield mapped


def _convert_to_binary(digests: NDArray[np.uint8]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(digests, np.uint8))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(_DIGEST), len(digests), [None, data])


def _convert_to_numpy(column: pa.Array) -> NDArray[Any]:
    kind = column.type
    if pa.types.is_string(kind):
        return np.array(column.to_pylist(), dtype=np.str_)
    if pa.types.is_fixed_size_binary(kind):
        return np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, _DIGEST)[: len(column)]
    if pa.types.is_fixed_size_list(kind):
        values: NDArray[Any] = column.flatten().to_numpy()
        return values.reshape(len(column), kind.list_size)
    if pa.types.is_large_list(kind):
        column = column.values
    array: NDArray[Any] = column.to_numpy()
    return array
