"""Checks of a folder's files against the sizes and SHA-256 sums in its manifest."""

import hashlib

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest.records import MANIFEST, FileSum, Manifest, read_manifest


def read_input(folder: str, stage: str) -> Manifest:
    """Read the manifest of `folder` and check the sizes of its files.

    Raises DataError if another stage than `stage` wrote the folder, or if a file is missing or has
    another size.
    """
    manifest = read_manifest(folder)
    if manifest.stage != stage:
        raise DataError(
            f"{folder}: is the output of `{manifest.stage}`, not of `{stage}`; name an output "
            f"of `{stage}`"
        )
    check_files(folder, manifest)
    return manifest


def check_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file that `manifest` lists is missing or has another size."""
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if not storage.exists(path):
            raise DataError(
                f"{path}: missing, though {MANIFEST} lists it; delete {folder} and run its "
                "stage again"
            )
        if (found := storage.measure_size(path)) != entry.bytes:
            raise DataError(
                f"{path}: {found} bytes, but {MANIFEST} says {entry.bytes}; delete {folder} and "
                "run its stage again"
            )


def verify_files(folder: str, manifest: Manifest) -> None:
    """Raise DataError if a file differs from its SHA-256 in `manifest`; all files are read."""
    check_files(folder, manifest)
    for name, entry in manifest.files.items():
        path = storage.join(folder, name)
        if storage.compute_sha256(path) != entry.sha256:
            raise DataError(
                f"{path}: damaged: its SHA-256 differs from the one in {MANIFEST}; delete "
                f"{folder} and run its stage again"
            )


def read_file(folder: str, name: str) -> bytes:
    """Read the file `name` in `folder` and check its bytes against the folder's manifest.

    In a folder without a manifest, the bytes are not checked. Raises DataError if the file does not
    exist or has another SHA-256 than the manifest lists.
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
    """Raise DataError if `found`, the SHA-256 of the file at `path`, differs from `expected`.

    Nothing is checked if `expected` is None.
    """
    if expected is not None and found != expected.sha256:
        raise DataError(
            f"{path}: damaged: its SHA-256 differs from the one in {MANIFEST}; restore the "
            "file, or run its stage again"
        )


def compute_file_sum(path: str) -> FileSum:
    """Compute the size and SHA-256 of the file at `path`."""
    return FileSum(bytes=storage.measure_size(path), sha256=storage.compute_sha256(path))
