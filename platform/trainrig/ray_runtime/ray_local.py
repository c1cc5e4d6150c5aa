"""Connections of this process to Ray: a local Ray that it starts, or a cluster that it joins.

A local Ray is started, monitored and cleaned up. `session_folder.py` manages its
folder, and finds the folders of killed Rays again.
"""

import atexit
import contextlib
import logging
import os
import re
import signal
import socket
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from trainrig.errors import ClusterError, ClusterLost, ConfigError
from trainrig.processes.process_identity import (
    find_children,
    find_descendants,
    find_listener,
    read_end,
)
from trainrig.ray_runtime import session_folder

log = logging.getLogger(__name__)
DAEMONS = {"raylet": "raylet", "gcs_server": "GCS"}  # Ray's main processes, as messages name them
ANSWER = 1.0  # time limit for a server to accept a connection, in s
LOOK_AT_RAY = 0.5  # s between two checks that Ray is alive
LOOK_AT_CONNECTIONS = 0.01  # s between two checks that this process is connected
SILENT = 5.0  # s without any accepted connection, after which Ray is considered lost
CALLS_END = 5.0  # s to wait for the end of a thread's calls to a local Ray that has ended
OWN_FILES = Path("/dev/fd")  # has an entry for each open file of this process
FAILED_CHECK = re.compile(r"Check failed: (.+)")  # the line by which a process of Ray ends itself
INIT = 1  # id of the first process of a system or container

_Result = TypeVar("_Result")


def is_connected(folder: Path) -> bool:
    """Return whether this process is connected to a Unix socket below `folder`."""
    for path in OWN_FILES.iterdir():
        # The file that lists the folder, or one that was closed meanwhile, cannot be copied.
        with contextlib.suppress(OSError):
            if folder in Path(_read_peer(os.dup(int(path.name)))).parents:
                return True
    return False


def _read_peer(file: int) -> str:
    """Return the path to which the Unix socket `file` is connected, and close it; "" if to none."""
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        os.close(file)
        return ""
    with socket.socket(fileno=file) as connection:
        peer = connection.getpeername()
    return peer if isinstance(peer, str) else ""


def init_ray(**options: Any) -> Mapping[str, Any]:
    """Call `ray.init` with `options` and return the addresses of the connection.

    The call is made in a thread that lives as long as this process, for three reasons. Outside of
    the main thread, Ray installs no handler of SIGTERM. Ray's processes inherit the thread's signal
    mask: `timeout`, Slurm, systemd and a terminal that closes send their signal to all processes,
    and Ray's would end while ranks still save their checkpoint. The kernel ends Ray's processes
    with the thread that started them (Ray sets PR_SET_PDEATHSIG).

    If a signal handler raises during the call, as the handler of Ctrl-C does, the exception goes on
    only once a local Ray has started: processes that the thread starts later would escape the
    clean-up. Another exception ends that wait.
    """
    import ray

    result: Future[Mapping[str, Any]] = Future()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
        try:
            context: Any = ray.init(**options)  # typed as its base, which has no addresses
            result.set_result(context.address_info)
        except BaseException as error:
            result.set_exception(error)
            return
        threading.Event().wait()

    threading.Thread(target=run, name="ray", daemon=True).start()
    try:
        return result.result()
    except BaseException:
        if "_temp_dir" in options:  # a local Ray
            wait([result])
            if result.exception() is None:
                ray.shutdown()
        raise


@contextlib.contextmanager
def whole_or_nothing() -> Iterator[Path]:
    """Start a Ray in the block, and clean up completely if the start fails.

    Yields the private folder for Ray. If the block raises, Ray's processes are killed, the folder
    is removed, and the error is raised as ClusterError (ConfigError is raised unchanged). The logs
    stay where they may explain an unknown cause. On a machine that is far too busy, or if the GCS
    ends at its start, Ray gives up after 30 s.
    """
    folder = session_folder.make_private_folder()
    try:
        yield folder
    except BaseException as error:
        session_folder.kill_users(folder)
        if not isinstance(error, Exception) or isinstance(error, ConfigError):
            session_folder.remove_private_folder(folder)
            raise
        check = _find_failed_check(folder)
        logs = None if check else _find_logs(folder)
        session_folder.remove_private_folder(folder, keep=logs)
        if check:
            raise ClusterError(
                f"no Ray could be started on this machine; its GCS ended: {check}"
            ) from error
        raise ClusterError(
            "no Ray could be started on this machine, which may be too busy or out of "
            f"memory: {' '.join(str(error).split())}; run the same command to try again"
            f"{f' (Ray logs: {logs})' if logs else ''}"
        ) from error


def _find_logs(folder: Path) -> Path | None:
    """Return the folder of Ray's logs in the private `folder`; None if Ray wrote none."""
    found = folder.glob(f"{session_folder.RAY}/session_*/logs")
    return next((path for path in found if not path.parent.is_symlink()), None)


def _find_failed_check(folder: Path) -> str:
    """Return the check that ended the GCS in the private `folder`, from its log; "" if none did."""
    for path in folder.glob(f"{session_folder.RAY}/session_*/logs/gcs_server.err"):
        if found := FAILED_CHECK.search(path.read_text(errors="replace")):
            return found[1]
    return ""


class Session:
    """A local Ray that this process has started."""

    in_doubt = False  # False always, because the processes are polled directly

    def __init__(
        self, folder: Path, session: str, daemons: Mapping[str, int], head: tuple[str, int]
    ) -> None:
        """Describe a running Ray with the private folder `folder`, and its session folder in that.

        `daemons`: ids of Ray's main processes by name; empty on a system without /proc. `head`:
        address and port of the GCS.
        """
        self.folder = folder
        self.session = session
        self.logs = Path(session, "logs")
        self._daemons = daemons
        self._head = head
        self.keeps_logs = False  # True after a failure that the logs may explain
        self._leaving, self._left = threading.Event(), threading.Event()

    @classmethod
    def read_current(cls, folder: Path, addresses: Mapping[str, Any]) -> "Session":
        """Return the session of the Ray that `init_ray` has just started in the private `folder`.

        `addresses`: the result of `init_ray`. Raises ConfigError if another user's process listens
        at one of Ray's sockets.
        """
        _check_sockets(addresses, frozenset({os.getuid()}))
        head = _split_endpoint(addresses["gcs_address"])
        return cls(folder, addresses["session_dir"], find_children(DAEMONS), head)

    def find_problem(self) -> str | None:
        """Describe which of Ray's main processes has died; return None while all live."""
        for name, pid in self._daemons.items():
            if (end := read_end(pid)) is not None:
                return f"the {DAEMONS[name]} of this machine's Ray (process {pid}) {end}"
        if not self._daemons and not is_reachable(self._head):
            return "the GCS of this machine's Ray does not answer"
        return None

    def start_killer(self) -> None:
        """Start the thread that kills Ray's processes during `shut_down`.

        It is started early: a process that ends starts no threads any more (Python 3.12).
        """
        threading.Thread(target=self._kill_when_left, name="ray killer", daemon=True).start()

    def shut_down(self) -> None:
        """Disconnect this process from Ray, and kill Ray's processes at the earliest moment.

        `ray.shutdown` disconnects, then waits a second or two for each of Ray's processes, which
        ignore its SIGTERM; a killed process is not waited for. None may be killed before: Ray ends
        a connected process with exit code 1 once the node of its objects counts as dead.
        """
        import ray

        self._leaving.set()
        ray.shutdown()
        self._left.set()

    def _kill_when_left(self) -> None:
        self._leaving.wait()
        while is_connected(self.folder) and not self._left.wait(LOOK_AT_CONNECTIONS):
            pass
        session_folder.kill_users(self.folder)

    def end(self, spare: Collection[str] = ()) -> None:
        """Kill all processes of Ray except the DAEMONS in `spare`, and wait for their end."""
        spared = {pid for name, pid in self._daemons.items() if name in spare}
        session_folder.kill_users(self.folder, spared)

    def remove(self) -> None:
        """Kill the remaining processes and remove the private folder.

        The logs are kept if `keeps_logs` is set.
        """
        session_folder.kill_users(self.folder)
        self._remove_folder()

    def abandon(self) -> None:
        """Do the same as `remove`, but kill all processes in the last moment, without a wait.

        The DAEMONS are stopped before, so that none starts a process that is not found.
        """
        daemons = set(self._daemons.values())
        for pid in daemons:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        # A worker that is starting has no file open yet, and would outlive its raylet.
        started = {pid for daemon in daemons for pid in find_descendants(daemon)}
        users = session_folder.find_users(self.folder)
        self._remove_folder()
        for pid in daemons | started | users:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _remove_folder(self) -> None:
        if not self.keeps_logs or not self.logs.is_dir():
            session_folder.remove_private_folder(self.folder)
            return
        log.warning("Ray logs: %s", self.logs)
        session_folder.remove_private_folder(self.folder, keep=self.logs)


class Joined:
    """An existing Ray cluster that this process has joined."""

    def __init__(self, endpoints: dict[str, tuple[str, int]], session: str) -> None:
        """Monitor `endpoints`, which maps descriptions of servers to their address and port.

        `session`: Ray's session folder on this machine.
        """
        self.session = session
        self._endpoints = endpoints
        self._answered = dict.fromkeys(endpoints, time.monotonic())
        self.in_doubt = False  # True if some endpoint did not answer at the last check

    @classmethod
    def read_current(cls, addresses: Mapping[str, Any]) -> "Joined":
        """Return the connection that `init_ray` has just made, which returned `addresses`.

        Raises ConfigError if a process of another user than this one or root listens at the
        raylet's sockets: Ray's folder lets every user of the machine replace the sockets.
        """
        import ray

        _check_sockets(addresses, frozenset({os.getuid(), 0}))
        gcs = str(addresses["gcs_address"])
        endpoints = {f"the GCS at {gcs}": _split_endpoint(gcs)}
        here = ray.get_runtime_context().get_node_id()
        for record in ray.nodes():  # type: ignore[no-untyped-call]
            if record["NodeID"] == here:
                endpoint = record["NodeManagerAddress"], record["NodeManagerPort"]
                endpoints["the raylet of this machine in its cluster"] = endpoint
        return cls(endpoints, addresses["session_dir"])

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
        _registered.append(atexit.register(_leave_at_exit))
    if isinstance(connection, Session):
        connection.start_killer()
    _joined = connection


_joined: Session | Joined | None = None  # the current connection of this process
_registered: list[object] = []  # holds one entry once `_leave_at_exit` is registered
# Exit code of this process if an error ends it, for `_leave_at_exit`; None: it has no such error.
exit_code: int | None = None


_callers = weakref.WeakSet[threading.Thread]()  # threads that `start_caller` started


def start_caller(run: Callable[[], None], name: str) -> None:
    """Start a daemon thread with `name` that executes `run`, which calls Ray."""
    caller = threading.Thread(target=run, name=name, daemon=True)
    _callers.add(caller)
    caller.start()


def is_in_cluster() -> bool:
    """Return whether this process has joined a cluster, which further nodes may join too."""
    return isinstance(_joined, Joined)


def find_session_folder() -> str:
    """Return Ray's session folder on this machine; "" if `enter` has recorded no connection."""
    return _joined.session if _joined else ""


def keep_logs() -> None:
    """Keep the logs of this process's local Ray, because they may explain a failure.

    Does nothing if this process has joined a cluster.
    """
    if isinstance(_joined, Session):
        _joined.keeps_logs = True


def leave() -> None:
    """Disconnect from Ray, and remove the processes and files of a local Ray.

    If a thread calls Ray after the disconnection, Ray ends this process with exit code 1. So the
    callers of a local Ray are waited for: their calls end 1.5 s after the raylet has been killed,
    once the GCS counts it as dead. Not so in a child of INIT (systemd, an init in a container, an
    outlived shell): without its raylet, Ray would take the parent for a dead raylet, and end this
    process at once.
    """
    global _joined
    import ray

    if isinstance(_joined, Session):
        callers = [caller for caller in _callers if caller is not threading.current_thread()]
        if callers and os.getppid() != INIT:
            _joined.end(spare=["gcs_server"])
            for caller in callers:
                caller.join(CALLS_END)
        _joined.shut_down()
        _joined.remove()
    else:
        ray.shutdown()
    _joined = None


def _leave_at_exit() -> None:
    """Call `leave`, or exit at once if a thread still waits for Ray after an error.

    The thread can't be stopped. When the raylet ends, or is left, Ray ends a process with such a
    thread with exit code 1. One of Ray's agents is enough: the raylet ends with it.
    """
    if exit_code is None or not any(caller.is_alive() for caller in _callers):
        leave()
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(_joined, Session):
        _joined.abandon()
    os._exit(exit_code)


def end_own() -> bool:
    """Kill all processes of this process's local Ray and disconnect; return whether there was one.

    Returns False if this process has joined a cluster instead.
    """
    if not isinstance(_joined, Session):
        return False
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


def _split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return the address and the port of HOST:PORT."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def _check_sockets(addresses: Mapping[str, Any], users: frozenset[int]) -> None:
    """Raise ConfigError if a process of another user than `users` listens at a raylet socket."""
    for name in ("raylet_socket_name", "object_store_address"):
        path = addresses[name]
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
