"""Connections of this process to Ray: a local Ray that it starts, or a cluster that it joins.

A local Ray is started with few processes, monitored and cleaned up. `session_folder.py` manages its
folder, and finds the folders of killed Rays again.
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
from trainrig.processes.process_identity import find_listener
from trainrig.ray_runtime import ray_private, session_folder

log = logging.getLogger(__name__)
SAID_BETTER = (
    "Raylet is terminated",
    "has been marked dead because",
    "A worker died or was killed while executing a task",
)
ANSWER = 1.0  # time limit for a server to accept a connection, in s
LOOK_AT_RAY = 0.5  # s between two checks that Ray is alive
SILENT = 5.0  # s without any accepted connection, after which Ray is considered lost

_Result = TypeVar("_Result")


@contextlib.contextmanager
def whole_or_nothing() -> Iterator[Path]:
    """Start a minimal Ray in the block, and clean up completely if the start fails.

    Yields the private folder for Ray. If the block raises, Ray's processes are killed, the folder
    is removed, and the error is raised as ClusterError (ConfigError is raised unchanged). On a
    machine that is far too busy, Ray gives up after 30 s.
    """
    folder = session_folder.make_private_folder()
    try:
        with ray_private.without_unneeded_processes(), ray_private.shielded_from_signals():
            yield folder
    except BaseException as error:
        session_folder.kill_users(folder)
        session_folder.remove_private_folder(folder)
        if not isinstance(error, Exception) or isinstance(error, ConfigError):
            raise
        raise ClusterError(
            "no Ray could be started on this machine, which may be too busy or out of "
            f"memory: {' '.join(str(error).split())}; run the same command to try again"
        ) from error


class Session:
    """A local Ray that this process has started."""

    in_doubt = False  # False always, because the processes are polled directly

    def __init__(self, folder: Path, logs: Path, daemons: dict[str, Any]) -> None:
        """Describe a Ray that is already running.

        Args:
            folder: the private folder of Ray.
            logs: the folder of Ray's logs, below `folder`.
            daemons: Ray's processes by name, as `Popen` objects.
        """
        self.folder = folder
        self.logs = logs
        self._daemons = daemons
        self.keeps_logs = False  # True after a failure that the logs may explain

    @classmethod
    def read_current(cls, folder: Path) -> "Session":
        """Return the session of the Ray that `ray.init` has just started in the private `folder`.

        Raises ConfigError if another user's process listens at one of its sockets.
        """
        node = ray_private.get_local_node()
        _check_sockets(node, frozenset({os.getuid()}))
        found = {name: infos[0].process for name, infos in node.all_processes.items()}
        return cls(folder, Path(node.get_session_dir_path(), "logs"), found)

    def find_problem(self) -> str | None:
        """Describe which of Ray's main processes has died; return None while both live."""
        for name, what in (("raylet", "raylet"), ("gcs_server", "GCS")):
            daemon = self._daemons[name]
            if (code := daemon.poll()) is not None:
                return (
                    f"the {what} of this machine's Ray (process {daemon.pid}) {_describe_end(code)}"
                )
        return None

    def end(self) -> None:
        """Kill all remaining processes of Ray, and return once they are gone."""
        for daemon in self._daemons.values():
            if daemon.poll() is None:
                daemon.kill()
        session_folder.kill_users(self.folder)

    def remove(self) -> None:
        """Kill the remaining processes and remove the private folder.

        The logs are kept if `keeps_logs` is set.
        """
        session_folder.kill_users(self.folder)
        if not self.keeps_logs or not self.logs.is_dir():
            session_folder.remove_private_folder(self.folder)
            return
        log.warning("Ray logs: %s", self.logs)
        session_folder.remove_private_folder(self.folder, keep=self.logs)


class Joined:
    """An existing Ray cluster that this process has joined."""

    def __init__(self, endpoints: dict[str, tuple[str, int]]) -> None:
        """Monitor `endpoints`, which maps descriptions of servers to their address and port."""
        self._endpoints = endpoints
        self._answered = dict.fromkeys(endpoints, time.monotonic())
        self.in_doubt = False  # True if some endpoint did not answer at the last check

    @classmethod
    def read_current(cls) -> "Joined":
        """Return the connection that `ray.init` has just made.

        Raises ConfigError if a process of another user than this one or root listens at the
        raylet's sockets: Ray's folder lets every user of the machine replace the sockets.
        """
        import ray

        node = ray_private.get_local_node()
        _check_sockets(node, frozenset({os.getuid(), 0}))
        head, _, port = str(node.gcs_address).rpartition(":")
        endpoints = {f"the GCS at {node.gcs_address}": (head.strip("[]"), int(port))}
        here = ray.get_runtime_context().get_node_id()
        for record in ray.nodes():  # type: ignore[no-untyped-call]
            if record["NodeID"] == here:
                endpoint = record["NodeManagerAddress"], record["NodeManagerPort"]
                endpoints["the raylet of this machine in its cluster"] = endpoint
        return cls(endpoints)

    def find_problem(self) -> str | None:
        """Describe which endpoint is lost; return None while the cluster can be used.

        `in_doubt` is set if an endpoint did not answer now, but has answered recently.
        """
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
    """Record `connection`, which `ray.init` has just made; it is closed when this process ends."""
    global _joined
    if not _registered:
        _registered.append(atexit.register(leave))
    _joined = connection


_joined: Session | Joined | None = None  # the current connection of this process
_registered: list[object] = []  # holds one entry once `leave` is registered with atexit


def is_in_cluster() -> bool:
    """Return whether this process has joined a cluster, which further nodes may join too."""
    return isinstance(_joined, Joined)


def keep_logs() -> None:
    """Keep the logs of this process's local Ray, because they may explain a failure.

    Does nothing if this process has joined a cluster.
    """
    if isinstance(_joined, Session):
        _joined.keeps_logs = True


def leave() -> None:
    """Disconnect from Ray, and remove the processes and files of a local Ray."""
    global _joined
    import ray

    ray.shutdown()
    if isinstance(_joined, Session):
        _joined.remove()
    _joined = None


def end_own() -> bool:
    """Kill all processes of this process's local Ray and disconnect; return whether there was one.

    Returns False if this process has joined a cluster instead.
    """
    if not isinstance(_joined, Session):
        return False
    _joined.end()
    leave()
    return True


def call_while_ray_lives(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call `function` with `arguments` and return its result; raise ClusterLost if Ray is lost.

    If its head is gone, a call of Ray blocks, and ends the process after a minute. The call is
    therefore made in a separate thread, which is abandoned if Ray is lost. The thread also keeps
    signal handlers out of Ray's code, which swallows some of the exceptions that they raise.
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
    """Raise ClusterLost if the Ray that this process is connected to is lost.

    With `surely`, wait until every endpoint has answered or is known to be lost.
    """
    while _joined:
        if problem := _joined.find_problem():
            raise ClusterLost(problem)
        if not (surely and _joined.in_doubt):
            return
        time.sleep(LOOK_AT_RAY)


def is_reachable(endpoint: tuple[str, int]) -> bool:
    """Return whether a server accepts connections at `endpoint`, an address and a port."""
    try:
        socket.create_connection(endpoint, timeout=ANSWER).close()
    except OSError:
        return False
    return True


def _check_sockets(node: Any, users: frozenset[int]) -> None:
    """Raise ConfigError if a process of another user than `users` listens at a raylet socket."""
    for path in (node.raylet_socket_name, node.plasma_store_socket_name):
        try:
            peer = find_listener(path, ANSWER)
        except OSError:  # gone, or too busy: `find_problem` reports it
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
    """Redirect Ray's messages that trainrig words better from the terminal to a log file.

    For a lost node Ray prints forty lines, including the end of that node's log.
    """
    ray_private.filter_driver_output(lambda text: not any(words in text for words in SAID_BETTER))
