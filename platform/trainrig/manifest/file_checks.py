"""Checks of the files of a folder against the sizes and sums in its manifest."""

import hashlib

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest.records import MANIFEST, FileSum, Manifest, read_manifest


def read_input(folder: str, stage: str) -> Manifest:
    """The manifest of `folder`, which `stage` must have made. Raises DataError."""
    manifest = read_manifest(folder)
    if manifest.stage != stage:
        raise DataError(
            f"{folder}: made by `{manifest.stage}`, but the output of `{stage}` is wanted"
        )
    check_files(folder, manifest)
    return manifest


def check_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file that `manifest` lists is gone or has another size."""
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if not storage.exists(path):
            raise DataError(
                f"{path}: gone, though {MANIFEST} lists it; delete {folder} and run its stage again"
            )
        if (found := storage.measure_size(path)) != entry.bytes:
            raise DataError(
                f"{path}: {found} bytes, but {MANIFEST} says {entry.bytes}; delete {folder} and "
                "run its stage again"
            )


def verify_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file that `manifest` lists has other bytes; reads all of them."""
    check_files(folder, manifest)
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if storage.compute_sha256(path) != entry.sha256:
            raise DataError(
                f"{path}: other bytes than {MANIFEST} has the SHA-256 of; delete {folder} and run "
                "its stage again"
            )


def read_file(folder: str, name: str) -> bytes:
    """The bytes of the file `name` in `folder`, which are those that its manifest has the sum of.

    Of a folder without a manifest nothing can be said. Raises DataError for other bytes, and for a
    file that is not there.
    """
    path = storage.join(folder, name)
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; run the stage that makes {folder}") from None
    if storage.exists(storage.join(folder, MANIFEST)):
        check_sum(path, hashlib.sha256(data).hexdigest(), read_manifest(folder).files.get(name))
    return data


def check_sum(path: str, found: str, expected: FileSum | None) -> None:
    """Raise DataError unless `found`, the SHA-256 of the file at `path`, is that `expected`."""
    if expected is not None and found != expected.sha256:
        raise DataError(
            f"{path}: damaged: other bytes than {MANIFEST} has the SHA-256 of; restore it, or run "
            "its stage again"
        )


def compute_file_sum(path: str) -> FileSum:
    """Size and SHA-256 of the file at `path`."""
    return FileSum(bytes=storage.measure_size(path), sha256=storage.compute_sha256(path))
