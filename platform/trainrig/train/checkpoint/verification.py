"""Verification at the end of a run: all ranks read back what they wrote, in parallel.

The result is a file next to the manifest, so that no single process has to read everything again:

    verified.json    {"manifest": SUM of the manifest, "files": {NAME: SHA-256 of the whole file}}
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from trainrig import storage
from trainrig.manifest import FileSum
from trainrig.train.checkpoint.adapter_entries import compute_manifest_sum
from trainrig.train.checkpoint.chunks import READERS, FileChunks, batched, read_chunk
from trainrig.train.checkpoint.manifest import CheckpointManifest

VERIFIED = "verified.json"
Sums = dict[str, str]  # file name → SHA-256


def read_back(target: str, files: Mapping[str, FileChunks], go_on: Callable[[], None]) -> Sums:
    """Return the SHA-256 of each of `files` of the checkpoint `target`, verifying each chunk.

    `go_on` is called between reads. Raises DamagedCheckpoint on a mismatch.
    """
    return {name: _compute_sum(storage.join(target, name), c, go_on) for name, c in files.items()}


def _compute_sum(path: str, wanted: FileChunks, go_on: Callable[[], None]) -> str:
    whole = hashlib.sha256()
    with ThreadPoolExecutor(READERS) as threads:
        for some in batched(wanted.iterate_chunks(), READERS):  # chunks in memory at the same time
            for data in threads.map(lambda chunk: read_chunk(path, *chunk), some):
                whole.update(data.data)
            go_on()
    return whole.hexdigest()


def record_verified(target: str, sums: Mapping[str, str]) -> None:
    """Record next to the manifest of `target` that all its files were read back and are valid."""
    found = {"manifest": compute_manifest_sum(target), "files": dict(sorted(sums.items()))}
    storage.create(storage.join(target, VERIFIED), json.dumps(found, indent=1).encode())


def read_verified_sums(checkpoint: str) -> dict[str, FileSum] | None:
    """Return size and SHA-256 of each file of `checkpoint`, as its ranks verified them.

    Returns None if they did not, or if the record does not match the manifest.
    """
    try:
        found = json.loads(storage.read(storage.join(checkpoint, VERIFIED)))
        sums: dict[str, str] = found["files"]
        right = found["manifest"] == compute_manifest_sum(checkpoint)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    files = CheckpointManifest.read(checkpoint).files
    if not right or sums.keys() != files.keys():
        return None
    return {name: FileSum(bytes=files[name].bytes, sha256=sums[name]) for name in files}
