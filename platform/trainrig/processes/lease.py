"""Leases on run folders, which refuse a second driver of a live run.

The driver renews `lease.json` every few seconds. A lease that was not renewed for a while, or whose
process on this machine is gone, has expired and is taken over. Leases only protect users from a
mistake, and so may rely on clocks: the files of a run are protected by its attempts
(run_folder.py).
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

from pydantic import BaseModel, ConfigDict, ValidationError

from trainrig import storage
from trainrig.errors import ClusterError, FolderGone, OutputTaken
from trainrig.processes.process_identity import read_boot_id, read_start_time

log = logging.getLogger(__name__)
FILE = "lease.json"
RENEW_SECONDS = 5.0
EXPIRE_SECONDS = 30.0  # six missed renewals, so that a slow disk does not end a run


class LeaseOwner(BaseModel):
    """Identity of the process that holds a run folder, as written to `lease.json`."""

    model_config = ConfigDict(frozen=True)

    token: str  # random and different for each lease
    host: str
    boot: str  # id of the machine's current boot; empty on a system without one
    pid: int
    process_began: str  # start time in ticks since boot, as a pid can be reused
    started: float  # time.time()
    renewed: float

    @classmethod
    def here(cls) -> "LeaseOwner":
        """Return a new owner record for this process."""
        now = time.time()
        pid = os.getpid()
        return cls(
            token=secrets.token_hex(8),
            host=socket.gethostname(),
            boot=read_boot_id(),
            pid=pid,
            process_began=read_start_time(pid) or "",
            started=now,
            renewed=now,
        )

    def gone(self) -> bool:
        """Return whether the owner is dead, or is assumed dead because its lease has expired."""
        if (self.host, self.boot) == (socket.gethostname(), read_boot_id()) and self.boot:
            return read_start_time(self.pid) != self.process_began
        return time.time() - self.renewed > EXPIRE_SECONDS


def is_held(folder: str) -> bool:
    """Return whether a live run holds the run folder, as far as this machine can determine."""
    owner = _read_owner(storage.join(folder, FILE))
    return owner is not None and not owner.gone()


@contextlib.contextmanager
def hold_lease(folder: str) -> Iterator[None]:
    """Hold the run folder while the block runs. Raises OutputTaken if a live run holds it."""
    path = storage.join(folder, FILE)
    owner = LeaseOwner.here()
    if not storage.create(path, _encode_owner(owner)):
        there = _read_owner(path)
        if there and not there.gone():
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(there.started))
            raise OutputTaken(
                f"{folder}: in use by a live run (process {there.pid} on {there.host}, "
                f"since {since}, last heartbeat {max(0, time.time() - there.renewed):.0f} "
                "s ago); wait for it, or stop it. A run without a heartbeat for "
                f"{EXPIRE_SECONDS:.0f} s is taken over"
            )
        if there:
            log.warning(
                "%s: taken over from process %d on %s, which is dead", folder, there.pid, there.host
            )
        storage.write(path, _encode_owner(owner))
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(path, owner, ended), name="lease", daemon=True)
    thread.start()
    try:
        with _hold_on_disk(folder, lambda: _is_ours(path, owner)):
            yield
    finally:
        ended.set()
        thread.join()
        if _is_ours(path, owner):
            storage.delete(path)


def follow_lease(folder: str) -> contextlib.AbstractContextManager[None]:
    """Stop a process of the run that holds `folder` from writing there once it is removed.

    See `storage.hold_folder`, which does this for the block.
    """
    return _hold_on_disk(folder, lambda: is_held(folder))


def _hold_on_disk(
    folder: str, is_ours: Callable[[], bool]
) -> contextlib.AbstractContextManager[None]:
    """Hold `folder` by `storage.hold_folder`, unless it lies in a bucket, which has no folders."""
    if storage.is_remote(folder):
        return contextlib.nullcontext()
    return storage.hold_folder(folder, is_ours)


def _renew(path: str, owner: LeaseOwner, ended: threading.Event) -> None:
    while not ended.wait(RENEW_SECONDS):
        try:
            storage.check_held(path)
            if not _is_ours(path, owner):
                log.warning("%s: %s", path, _explain_loss(_read_owner(path)))
                return
            storage.write(path, _encode_owner(owner.model_copy(update={"renewed": time.time()})))
        except FolderGone:
            return  # the next write to the folder reports this
        except (OSError, ClusterError) as problem:  # a missing lease never ends a run
            log.warning("%s: the lease could not be renewed (%s)", path, problem)


def _is_ours(path: str, owner: LeaseOwner) -> bool:
    there = _read_owner(path)
    return there is not None and there.token == owner.token


def _explain_loss(there: LeaseOwner | None) -> str:
    """Explain how this process lost its lease, given the current owner `there`."""
    if there is None:
        return (
            "the lease is gone, though no other run took it over: it, or the whole run "
            "folder, was removed"
        )
    return (
        f"taken over by process {there.pid} on {there.host} while this run sent no "
        "heartbeat; only the work of that process counts"
    )


def _read_owner(path: str) -> LeaseOwner | None:
    """Read the owner of the lease at `path`; return None if the file is gone or invalid."""
    try:
        return LeaseOwner.model_validate_json(storage.read(path))
    except (FileNotFoundError, ValidationError):
        return None


def _encode_owner(owner: LeaseOwner) -> bytes:
    return owner.model_dump_json().encode()
