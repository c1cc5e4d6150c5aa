"""Signatures of one split, all that deduplication needs of its texts, and their file.

A MinHash signature is the minimum of a set of shingles under each of bands x rows permutations.

The file is an Arrow IPC file of one batch, with a row for each document:

    id string · characters int64 · digest, url binary[16] · keys uint64[bands] · ends int64
    · shingles list of uint32, sorted

It is not compressed, so it can be mapped: a reader of three documents' shingles touches only their
pages, and a reader of band keys reads nothing else. In a bucket, columns are read by byte ranges.
`ends` repeats the offsets of the lists, so that they can be read without the lists. Any Arrow
library can read the file.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.array_types import Int64s, UInt8s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.normalised_texts import DIGEST, NormalisedTexts, hash_texts
from trainrig.corpus.signatures.shingles import finalise_hash, shingle_texts
from trainrig.corpus.url_keys import compute_url_key
from trainrig.errors import DataError

_WIDTH = 32  # values per step of the compiled loop; arrays are padded to a multiple of it
_LARGEST = np.uint32(0xFFFFFFFF)
_STEP = 0x9E3779B97F4A7C15


def compute_signatures(shingles: UInt32s, ends: Int64s, settings: MinHash) -> UInt32s:
    """Return the signatures [texts, bands x rows] of sets of shingles, by the scheme "fast".

    A permutation is a x + b modulo 2^32 with an odd a, which is one-to-one on shingles (hashes).
    The sets are concatenated in `shingles` and end at `ends`.
    """
    rows = settings.bands * settings.rows
    multipliers, increments = build_permutations(rows, settings.seed)
    found = np.empty((len(ends), len(multipliers)), np.uint32)
    _find_least(shingles, ends, multipliers, increments, found)
    return found[:, :rows]


def compute_band_keys(signatures: UInt32s | UInt64s, settings: MinHash) -> UInt64s:
    """Return the band keys [texts, bands] of signatures.

    A key includes its band's number, so keys of different bands differ.
    """
    keys = np.empty((len(signatures), settings.bands), np.uint64)
    _hash_bands(np.ascontiguousarray(signatures, np.uint64), settings.rows, keys)
    return keys


def build_permutations(number: int, seed: int) -> tuple[UInt32s, UInt32s]:
    """Return `number` multipliers and increments, padded to a multiple of `_WIDTH`."""
    whole = -(-number // _WIDTH) * _WIDTH
    values = np.array(
        [
            finalise_hash(np.uint64((seed * 2**32 + place) * _STEP % 2**64))
            for place in range(1, whole + 1)
        ],
        np.uint64,
    )
    return values.astype(np.uint32) | np.uint32(1), (values >> np.uint64(32)).astype(np.uint32)


@compile_nogil
def _find_least(
    shingles: UInt32s, ends: Int64s, multipliers: UInt32s, increments: UInt32s, found: UInt32s
) -> None:
    start = 0
    for text in range(len(ends)):
        least = found[text]
        least[:] = _LARGEST
        in_fours = start + (ends[text] - start) // 4 * 4
        # one load and one store of `least` for four shingles
        for place in range(start, in_fours, 4):
            s = shingles[place]
            t = shingles[place + 1]
            u = shingles[place + 2]
            v = shingles[place + 3]
            for row in range(len(least)):
                a = multipliers[row]
                b = increments[row]
                st = min(np.uint32(s * a + b), np.uint32(t * a + b))
                uv = min(np.uint32(u * a + b), np.uint32(v * a + b))
                least[row] = min(least[row], min(st, uv))
        for place in range(in_fours, ends[text]):
            for row in range(len(least)):
                value = np.uint32(shingles[place] * multipliers[row] + increments[row])
                least[row] = min(least[row], value)
        start = ends[text]


@compile_nogil
def _hash_bands(signatures: UInt64s, rows: int, keys: UInt64s) -> None:
    for text in range(len(keys)):
        for band in range(keys.shape[1]):
            key = finalise_hash(np.uint64(band + 1))
            for row in range(band * rows, (band + 1) * rows):
                key = finalise_hash(key ^ signatures[text, row])
            keys[text, band] = key


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


def build_columns(arrays: Mapping[str, NDArray[Any]]) -> dict[str, pa.Array]:
    """Return the columns of the file for the arrays of `Signatures`, keyed by name."""
    ends = arrays["ends"].astype(np.int64)
    keys = arrays["keys"].astype(np.uint64)
    return {
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


def save_columns(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays of `Signatures`, keyed by name; equal arrays give equal bytes."""
    columns = build_columns(arrays)
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
    if storage.is_remote(path) and not whole:
        with storage.open_read(path) as stream:
            yield pa.PythonFile(stream, "r")
        return
    # The file is closed at once: callers open thousands, and a process may hold about 1024 open.
    # Mapped pages stay mapped as long as an array uses them.
    with pa.memory_map(str(storage.fetch_local_path(path))) as mapped:
        yield mapped


def _convert_to_binary(digests: UInt8s) -> pa.Array:
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


_BLOCK = 2**22  # bytes of text signed at a time; working memory is about ten times as much


@dataclass(frozen=True)
class Signatures:
    """Signatures of the texts of one split that passed the rules, in order."""

    ids: NDArray[np.str_]  # [documents]
    characters: Int64s  # [documents]
    digests: UInt8s  # [documents, 16] digests of the texts
    urls: UInt8s  # [documents, 16] digests of the normalised URLs
    keys: UInt64s  # [documents, bands] band keys
    shingles: UInt32s  # shingles of all documents, concatenated
    ends: Int64s  # [documents] where each document's shingles end

    @classmethod
    def of(cls, documents: Sequence[tuple[str, str, str]], settings: MinHash) -> "Signatures":
        """Compute the signatures of `(id, URL, text)` documents."""
        ids, urls, texts = zip(*documents, strict=True) if documents else ((), (), ())
        characters = np.fromiter(map(len, texts), np.int64, len(texts))
        return cls._of(ids, urls, characters, NormalisedTexts.of(texts), settings)

    @classmethod
    def from_table(cls, rows: pa.Table, settings: MinHash) -> "Signatures":
        """Compute the signatures of rows with `id`, `url` and `text`; texts are not copied."""
        ids = rows["id"].to_pylist()
        urls = rows["url"].to_pylist()
        characters = pc.utf8_length(rows["text"]).fill_null(0).to_numpy().astype(np.int64)
        return cls._of(ids, urls, characters, NormalisedTexts.from_arrow(rows["text"]), settings)

    @classmethod
    def _of(
        cls,
        ids: Sequence[str],
        urls: Sequence[str],
        characters: Int64s,
        texts: NormalisedTexts,
        settings: MinHash,
    ) -> "Signatures":
        keys, shingles, ends = compute_keys_and_shingles(texts, settings)
        digests = [hash_texts(texts.slice_texts(*block)) for block in texts.find_blocks(_BLOCK)]
        return cls(
            ids=np.array(ids, dtype=np.str_),
            characters=characters,
            digests=np.concatenate([np.empty((0, DIGEST), np.uint8), *digests]),
            urls=np.frombuffer(b"".join(map(compute_url_key, urls)), np.uint8).reshape(-1, DIGEST),
            keys=keys,
            shingles=shingles,
            ends=ends,
        )

    @classmethod
    def concatenate(cls, parts: Sequence["Signatures"]) -> "Signatures":
        """Concatenate the signatures of several pieces of a split, at least one."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("ids", "characters", "digests", "urls", "keys", "shingles")
        }
        firsts = np.cumsum([0, *(len(part.shingles) for part in parts)])
        ends = [first + part.ends for first, part in zip(firsts.tolist(), parts, strict=False)]
        return cls(**columns, ends=np.concatenate(ends))

    def save(self, path: str) -> None:
        """Write the signatures in the format that `load_columns` reads."""
        save_columns(path, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: str) -> "Signatures":
        """Map the signatures that `save` wrote: only the parts used are read.

        Raises DataError if the file is invalid.
        """
        return cls(**load_columns(path))


def compute_keys_and_shingles(
    texts: NormalisedTexts, settings: MinHash
) -> tuple[UInt64s, UInt32s, Int64s]:
    """Return the band keys [texts, bands], all shingles, and the end of each text's shingles."""
    keys = [np.empty((0, settings.bands), np.uint64)]
    shingles = [np.empty(0, np.uint32)]
    ends = [np.zeros(1, np.int64)]
    for first, end in texts.find_blocks(_BLOCK):
        block = texts.slice_texts(first, end)
        found, ends_here = shingle_texts(block, settings.shingle_words)
        keys.append(compute_band_keys(_sign_texts(block, found, ends_here, settings), settings))
        shingles.append(found)
        ends.append(ends[-1][-1] + ends_here)
    return np.concatenate(keys), np.concatenate(shingles), np.concatenate(ends)[1:]


def _sign_texts(
    texts: NormalisedTexts, shingles: UInt32s, ends: Int64s, settings: MinHash
) -> UInt32s | UInt64s:
    if settings.scheme == "fast":
        return compute_signatures(shingles, ends, settings)
    # imported here, because it imports scipy
    from trainrig.corpus.signatures.datasketch_signatures import compute_datasketch_signatures

    return compute_datasketch_signatures(texts, settings)
