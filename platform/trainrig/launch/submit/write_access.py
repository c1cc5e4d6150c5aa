"""Checks of a run's output folder: whether it can be written to, and whether machines share it."""

import secrets
from pathlib import Path

from trainrig import storage
from trainrig.errors import ClusterError, ConfigError, DataError
from trainrig.storage.writable import check_folder

MOUNTS = "/proc/self/mounts"
# File systems that several machines can mount, by their names in Linux.
SHARED = ("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "glusterfs", "cifs", "smb3", "afs")


def check_writable(folder: str) -> None:
    """Raise ConfigError or DataError if `folder` cannot be written to.

    The folder need not exist. In a bucket, an object is created, on condition that none has its
    name (as runs do for locks and manifests), and deleted.
    """
    if not folder.startswith(storage.S3):
        check_folder(folder)
        return
    probe = storage.join(folder, f".probe-{secrets.token_hex(8)}")
    try:
        storage.create(probe, probe.encode())
        storage.delete(probe)
    except DataError:
        raise  # the bucket does not exist
    except ClusterError as error:
        raise ConfigError(f"{folder}: cannot be written to from this machine: {error}") from None


def find_shared_disk(path: str) -> str | None:
    """Return the file system of `path` as "type (source)", or None if machines cannot share it."""
    try:
        lines = Path(MOUNTS).read_text().splitlines()
    except OSError:
        return None
    mounts = [line.split()[:3] for line in lines]
    containing = [mount for mount in mounts if _is_below(path, mount[1].replace("\\040", " "))]
    if not containing:
        return None
    source, _, kind = max(containing, key=lambda mount: len(mount[1]))
    return f"{kind} ({source})" if kind in SHARED or kind.startswith("fuse.") else None


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
