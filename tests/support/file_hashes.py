"""Hashes of the files of a stage that are the same each time."""

from trainrig import storage
from trainrig.corpus.curate import REPORT_PAGE
from trainrig.manifest import CLAIM, MANIFEST


def hash_files(output: str) -> dict[str, str]:
    """Return the SHA-256 of the files below `output`, keyed by their path in it.

    Claim, manifest and report are left out, as they contain times and versions.
    """
    return {
        path.removeprefix(f"{output}/"): storage.compute_sha256(path)
        for path in storage.list_files(output)
        if path.rpartition("/")[2] not in {CLAIM, MANIFEST, REPORT_PAGE}
    }
