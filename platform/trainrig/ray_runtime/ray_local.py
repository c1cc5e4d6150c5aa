"""A Ray that this process starts for itself: started minimally, watched, and cleaned up.

Where it lies, and how others' Rays that were killed are found again: `session_folder.py`.
"""

import atexit
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from trainrig.errors import ClusterError, ClusterLost, ConfigError
from trainrig.processes.peer import find_listener
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.session_folder import (
    kill_users,
    make_private_folder,
    remove_private_folder,
)

log = logging.getLogger(__name__)
SAID_BETTER = (
    "Raylet is terminated",
    "has been marked dead because",
    "A worker died or was killed while executing a task",
)
ANSWER = 1.0  # s that a server on another machine has to answer a knock
LOOK_AT_RAY = 0.5  # s between two looks whether it lives
SILENT = 5.0  # s without an answer, after which it is taken to be lost

_Result = TypeVar("_Result")


@contextlib.contextmanager
def whole_or_nothing() -> Iterator[Path]:
    """Have a Ray that starts in the block start no more than is needed, in the private folder that
    the block is given, and leave neither processes nor the folder behind if it fails.

    Raises ClusterError then. On a machine that is far too busy Ray gives up after 30 s.
    """
    folder = make_private_folder()
    try:
        with ray_private.without_unneeded_processes(), ray_private.shielded_from_signals():
            yield folder
    except BaseException as error:
        kill_users(folder)
        remove_private_folder(folder)
        if not isinstance(error, Exception) or isinstance(error, ConfigError):
            raise
        raise ClusterError(
            f"no Ray could be started on this machine, which may be too busy or out of memory: "
            f"{' '.join(str(error).split())}; the same command tries again"
        ) from error


class Session:
    """A Ray that this process has started."""

    in_doubt = False  # whether it lives: never

    def __init__(self, folder: Path, logs: Path, daemons: dict[str, Any]) -> None:
        """Args:

        folder: the private folder of the Ray.
        logs: the folder of what its processes said, below `folder`.
        daemons: its processes by name; they can be polled.
        """
        self.folder, self.logs, self._daemons = folder, logs, daemons
        self.keeps_logs = False  # once something has failed of which they may tell more

    @classmethod
    def of_this_process(cls, folder: Path) -> "Session":
        """Return the session of the Ray that `ray.init` has just started in the private `folder`.

        Raises ConfigError if another user's process listens at one of its sockets.
        """
        node = ray_private.get_local_node()
        _check_sockets(node, frozenset({os.getuid()}))
        found = {name: each[0].process for name, each in node.all_processes.items()}
        return cls(folder, Path(node.get_session_dir_path(), "logs"), found)

    def find_problem(self) -> str | None:
        """Why it cannot go on; None while it can."""
        for name, what in (("raylet", "raylet"), ("gcs_server", "GCS")):
            daemon = self._daemons[name]
            if (code := daemon.poll()) is not None:
                return (
                    f"the {what} of this machine's Ray (process {daemon.pid}) {_describe_end(code)}"
                )
        return None

    def end(self) -> None:
        """SIGKILL to all that is left of its processes; returns once they are gone."""
        for daemon in self._daemons.values():
            if daemon.poll() is None:
                daemon.kill()
        kill_users(self.folder)

    def remove(self) -> None:
        """End the processes that are left and remove the private folder.

        The logs are kept if something has failed.
        """
        kill_users(self.folder)
        if not self.keeps_logs or not self.logs.is_dir():
            remove_private_folder(self.folder)
            return
        log.warning("what Ray's processes said is in %s", self.logs)
        remove_private_folder(self.folder, keep=self.logs)


class Joined:
    """A Ray of somebody else's, which this process has joined."""

    def __init__(self, endpoints: dict[str, tuple[str, int]]) -> None:
        """`endpoints`: by what is behind them, addresses and ports."""
        self._endpoints = endpoints
        self._answered = dict.fromkeys(endpoints, time.monotonic())
        self.in_doubt = False  # whether it lives: somebody has not answered, the last time

    @classmethod
    def of_this_process(cls) -> "Joined":
        """Return the connection that `ray.init` has just made.

        Raises ConfigError if a process of neither this user nor root listens at the raylet's
        sockets: Ray lets every user of the machine put others in their place.
        """
        import ray

        node = ray_private.get_local_node()
        _check_sockets(node, frozenset({os.getuid(), 0}))
        head, _, port = str(node.gcs_address).rpartition(":")
        endpoints = {f"the GCS at {node.gcs_address}": (head.strip("[]"), int(port))}
        here = ray.get_runtime_context().get_node_id()
        for each in ray.nodes():  # type: ignore[no-untyped-call]
            if each["NodeID"] == here:
                endpoint = each["NodeManagerAddress"], each["NodeManagerPort"]
                endpoints["the raylet of this machine in its cluster"] = endpoint
        return cls(endpoints)

    def find_problem(self) -> str | None:
        """Why this process cannot use it any more; None while it can."""
        self.in_doubt = False
        for what, endpoint in self._endpoints.items():
            if is_reachable(endpoint):
                self._answered[what] = time.monotonic()
            elif time.monotonic() - self._answered[what] > SILENT:
                return f"{what} does not answer"
            else:
                self.in_doubt = True
        return None


def enter(connection: Session | Joined) -> None:
    """`ray.init` has just made it; it is left again when this process ends."""
    global _joined
    if not _registered:
        _registered.append(atexit.register(leave))
    _joined = connection


_joined: Session | Joined | None = None  # what this process is connected to
_registered: list[object] = []  # once


def keep_logs() -> None:
    """Something failed of which the logs of Ray's processes may tell more: if they are of this
    process's own Ray, leave them behind."""
    if isinstance(_joined, Session):
        _joined.keeps_logs = True


def leave() -> None:
    """Disconnect from Ray, and remove what one that was started for this process has written."""
    global _joined
    import ray

    ray.shutdown()
    if isinstance(_joined, Session):
        _joined.remove()
    _joined = None


def end_own() -> bool:
    """End all processes of the Ray that was started for this process, however many still live;
    False if this process has joined another's."""
    if not isinstance(_joined, Session):
        return False
    _joined.end()
    leave()
    return True


def call_while_ray_lives(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """What `function` gives of these `arguments`; raises ClusterLost once Ray is no more.

    Without its head, Ray's own calls wait for it, and after a minute they end the process. So the
    call is made in a thread of its own, which is left to itself then. It is there for another
    reason as well: Ray swallows some of what the handlers of signals raise in its code.
    """
    result: Future[_Result] = Future()

    def run() -> None:
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name=function.__name__, daemon=True).start()
    while not wait([result], timeout=LOOK_AT_RAY).done:
        raise_if_lost()
    if result.exception():
        raise_if_lost(surely=True)
    return result.result()


def raise_if_lost(surely: bool = False) -> None:
    """Raise ClusterLost if the Ray that this process is connected to is no more; `surely`: also if
    that takes a while to know."""
    while _joined:
        if problem := _joined.find_problem():
            raise ClusterLost(problem)
        if not (surely and _joined.in_doubt):
            return
        time.sleep(LOOK_AT_RAY)


def is_reachable(endpoint: tuple[str, int]) -> bool:
    """Whether somebody opens `endpoint`, address and port."""
    try:
        socket.create_connection(endpoint, timeout=ANSWER).close()
    except OSError:
        return False
    return True


def _check_sockets(node: Any, users: frozenset[int]) -> None:
    """Raise ConfigError if a process of none of `users` listens at a socket of the local raylet."""
    for path in (node.raylet_socket_name, node.plasma_store_socket_name):
        try:
            peer = find_listener(path, ANSWER)
        except OSError:  # gone, or too busy: `find_problem` tells
            continue
        if peer and peer.user not in users:
            raise ConfigError(
                f"{path}: a process ({peer.pid}) of user {peer.user} listens there, and this is "
                f"user {os.getuid()}; start Ray as this user or as root, with a folder that others "
                "cannot write to (`ray start --temp-dir`)"
            )


def _describe_end(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def send_known_words_to_log() -> None:
    """Have Ray write what we say better ourselves to its logs, not to the terminal.

    Of a node that is gone it prints forty lines, the last of that node's own log among them.
    """
    ray_private.filter_driver_output(lambda text: not any(words in text for words in SAID_BETTER))
