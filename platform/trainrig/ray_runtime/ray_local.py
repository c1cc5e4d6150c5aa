"""A Ray that this process starts for itself: started minimally, watched, and cleaned up.

Ray's own processes are found by the files that they hold open in their session folder: workers
outlive a raylet that was killed, and are nobody's children then.
"""

import atexit
import contextlib
import logging
import os
import shutil
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from trainrig.errors import ClusterError, ClusterLost
from trainrig.processes.process_identity import Process
from trainrig.ray_runtime import ray_private

log = logging.getLogger(__name__)
OWNER = "trainrig-owner.json"  # in a session folder: the process that the session is of
STARTING = "trainrig-starting-{}.json"  # beside them: a process (its number) whose Ray has no owner
DIES_WITHIN = 5.0  # s for a process that was sent SIGKILL to be gone
LOOK_AGAIN = 0.05  # s between two looks whether it is
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
def whole_or_nothing() -> Iterator[None]:
    """Have a Ray that starts in the block start no more than is needed, and leave neither processes
    nor a folder behind if it fails.

    Raises ClusterError then. On a machine that is far too busy Ray gives up after 30 s.
    """
    before = _list_own_sessions()
    try:
        with (
            _mark_start(),
            ray_private.without_unneeded_processes(),
            ray_private.shielded_from_signals(),
        ):
            yield
    except Exception as error:
        for folder in _list_own_sessions() - before:
            kill_users(folder)
            remove_session(folder)
        raise ClusterError(
            f"no Ray could be started on this machine, which may be too busy or out of memory: "
            f"{' '.join(str(error).split())}; the same command tries again"
        ) from error


@contextlib.contextmanager
def _mark_start() -> Iterator[None]:
    """Have it on record that this process starts a Ray, until that has an owner: if it is killed
    before, `sweep` finds what it began."""
    marker = ray_private.find_sessions_folder() / STARTING.format(os.getpid())
    with contextlib.suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(Process.here().model_dump_json())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            marker.unlink()


def _list_own_sessions() -> set[Path]:
    """The sessions that bear the number of this process."""
    return _list_sessions_of(os.getpid())


def _list_sessions_of(pid: int) -> set[Path]:
    """The sessions that bear that process's number, as Ray names them."""
    return set(ray_private.find_sessions_folder().glob(f"session_*_{pid}"))


class Session:
    """A Ray that this process has started."""

    in_doubt = False  # whether it lives: never

    def __init__(self, folder: Path, daemons: dict[str, Any]) -> None:
        """`daemons`: by their name, as processes that can be polled."""
        self.folder, self._daemons = folder, daemons
        self.keeps_logs = False  # once something has failed of which they may tell more
        with contextlib.suppress(OSError):
            (folder / OWNER).write_text(Process.here().model_dump_json())

    @classmethod
    def of_this_process(cls) -> "Session":
        """That of the Ray that `ray.init` has just started."""
        node = ray_private.get_local_node()
        found = {name: each[0].process for name, each in node.all_processes.items()}
        return cls(Path(node.get_session_dir_path()), found)

    @property
    def logs(self) -> Path:
        """The folder of what its processes said."""
        return self.folder / "logs"

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
        """End what is left of its processes and remove its folder; but for its logs, if something
        has failed."""
        kill_users(self.folder)
        if not self.keeps_logs or not self.logs.is_dir():
            remove_session(self.folder)
            return
        log.warning("what Ray's processes said is in %s", self.logs)
        for path in self.folder.iterdir():
            if path != self.logs:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


class Joined:
    """A Ray of somebody else's, which this process has joined."""

    def __init__(self, endpoints: dict[str, tuple[str, int]]) -> None:
        """`endpoints`: by what is behind them, addresses and ports."""
        self._endpoints = endpoints
        self._answered = dict.fromkeys(endpoints, time.monotonic())
        self.in_doubt = False  # whether it lives: somebody has not answered, the last time

    @classmethod
    def of_this_process(cls) -> "Joined":
        """The one that `ray.init` has just joined."""
        import ray

        node = ray_private.get_local_node()
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


def kill_users(folder: Path) -> None:
    """SIGKILL to each process but this one that writes a file below `folder`; returns once they are
    gone."""
    until = time.monotonic() + DIES_WITHIN
    while (left := _find_users(folder)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_AGAIN)


def _find_users(folder: Path) -> set[int]:
    """Linux alone says it."""
    below, found = f"{folder}/", set[int]()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if os.readlink(path).startswith(below) and path.lstat().st_mode & stat.S_IWUSR:  # noqa: PTH115
                found.add(int(path.parts[2]))
    return found - {os.getpid()}


def sweep() -> None:
    """Remove the sessions whose owner is dead, or died before it had one, and end what is left of
    their processes."""
    folder = ray_private.find_sessions_folder()
    for path in folder.glob(f"session_*/{OWNER}"):
        # Ray's link `session_latest` leads to a folder that is found by its own name.
        if not path.parent.is_symlink() and _is_dead(path):
            began = time.monotonic()
            _remove_with_users(path.parent)
            log.warning(
                "a process that was killed left its Ray in %s: waited %.1f s for that to end; "
                "another Ray and all workers are started anew",
                path.parent,
                time.monotonic() - began,
            )
    for path in folder.glob(STARTING.format("*")):
        if _is_dead(path):
            begun = path.stat().st_mtime
            for session in _list_sessions_of(int(path.stem.rpartition("-")[2])):
                if session.stat().st_mtime >= begun:  # not of a process that had the number before
                    _remove_with_users(session)
            path.unlink(missing_ok=True)


def _is_dead(record: Path) -> bool:
    """Whether the process that `record` tells of is no more; if it can be read."""
    with contextlib.suppress(OSError, ValueError):  # another's, or torn
        return Process.model_validate_json(record.read_text()).gone()
    return False


def _remove_with_users(session: Path) -> None:
    kill_users(session)
    remove_session(session)


def remove_session(folder: Path) -> None:
    """All of a session that nobody uses any more, and the link that names it as the latest."""
    shutil.rmtree(folder, ignore_errors=True)
    latest = folder.parent / "session_latest"
    with contextlib.suppress(OSError):
        if latest.is_symlink() and not latest.exists():
            latest.unlink()
        folder.parent.rmdir()  # if that was all


def _describe_end(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def send_known_words_to_log() -> None:
    """Have Ray write what we say better ourselves to its logs, not to the terminal.

    Of a node that is gone it prints forty lines, the last of that node's own log among them.
    """
    ray_private.filter_driver_output(lambda text: not any(words in text for words in SAID_BETTER))
