"""Client of the fork server, a process that has imported everything and forks new processes.

Importing torch and the libraries on top of it takes some seconds of CPU time, which a run whose
worker died would pay again. One server process on each node imports once, outlives the workers, and
forks a process for each new rank. Nothing in the server may start a thread or touch a GPU, which
would break in a fork; imports do neither.

This module does not depend on Ray. The server ends when the process that started it ends. A forked
process ends when its requester or the server ends, so no process is left behind, however they die.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any

from trainrig.processes import forking
from trainrig.processes.process_identity import Process, read_peer

PREFIX = "trainrig-fork-"  # prefix of the servers' addresses
# Linux has abstract socket names without files, which vanish with the server however it dies.
ABSTRACT = sys.platform == "linux"
IMPORTED = 120.0  # time limit of a server's imports, in s; on a busy machine they take ten
MEMORY_RAN_OUT = "memory ran out"  # part of the description of a process killed by the OOM killer
VMSTAT = Path("/proc/vmstat")
BACKLOG = 4096  # connections that wait while the server imports
CROWDED = 0.05  # s before a client tries again to connect when the server's queue is full


class ProcessDied(Exception):
    """A forked process ended without announcing its end."""


@dataclass(frozen=True)
class ServerAddress:
    """Address of a fork server, and the secret token that requests must show."""

    socket: str  # an abstract socket name if it begins with @, else a path
    token: str = field(repr=False)


class ForkServer:
    """The fork server of this machine, which is started again when it has died."""

    def __init__(self, *modules: str) -> None:
        """Start a server that imports `modules` in advance."""
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None
        self._address = ServerAddress("", "")
        self._oom_kills = count_oom_kills()
        self.get_address()

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel's OOM killer ended a process since the last call."""
        before, self._oom_kills = self._oom_kills, count_oom_kills()
        return self._oom_kills > before

    def get_address(self) -> ServerAddress:
        """Return the address of the server, starting the server again if it is gone."""
        dead = self._server is None or self._server.poll() is not None
        name = self._address.socket
        if dead or not (_is_abstract(name) or Path(name).exists()):
            self._start()
        return self._address

    def _start(self) -> None:
        if self._server and self._server.stdin:
            self._server.stdin.close()
        folder, token = "", secrets.token_hex(forking.TOKEN_BYTES // 2)
        if ABSTRACT:
            name = f"@{PREFIX}{secrets.token_hex(16)}"
        else:
            _sweep()
            # Only this user may enter the folder, because the server runs whatever is requested.
            folder = tempfile.mkdtemp(prefix=PREFIX)
            name = str(Path(folder, "fork"))
        self._address = ServerAddress(name, token)
        # The socket is bound here, so that clients can connect before the imports are done.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_to_socket_name(name))
            listener.listen(BACKLOG)
            number = listener.fileno()
            self._server = subprocess.Popen(
                [sys.executable, "-m", forking.__name__, str(number), folder, *self._modules],
                stdin=subprocess.PIPE,  # carries the token; its end tells the server to end
                pass_fds=[number],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the server has died, which requests report
            # Every user can read command lines, and every child inherits the environment.
            self._server.stdin.write(token.encode())
            self._server.stdin.flush()


def _is_abstract(address: str) -> bool:
    return address.startswith("@")


def _to_socket_name(address: str) -> str:
    """Convert `address` to the name that the socket functions take."""
    return f"\0{address[1:]}" if _is_abstract(address) else address


def _sweep() -> None:
    """Remove the socket folders of servers that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/fork"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                shutil.rmtree(path.parent, ignore_errors=True)
            except OSError:
                continue  # the socket is another user's, or gone


class ForkedProcess:
    """A process forked for this one, which it does not outlive."""

    def __init__(self, address: ServerAddress, function: str, first: Any) -> None:
        """Fork a process that calls `function` ("package.module:name") with its end of a channel.

        The process gets this process's environment, working directory, search path and output. The
        first message in its channel is `first`. Raises ProcessDied if the server is gone.
        """
        self._oom_kills = count_oom_kills()
        self._channel, its_end = Pipe()
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(IMPORTED)
        try:
            _connect(self._control, address.socket)
            self._lines = self._control.makefile("r")
            with its_end:  # closed here only after the server has received a copy
                asked = [address.token.encode()]
                socket.send_fds(self._control, asked, [its_end.fileno(), 1, 2])
                answer = self._lines.readline()
            if not answer[:1].isdigit():
                raise OSError(answer.strip() or "it ended; its log says why")
            self.pid = int(answer)
            self._process = Process.of(self.pid)
            self._control.settimeout(None)
            self._channel.send((function, dict(os.environ), str(Path.cwd()), sys.path))
            self._channel.send(first)
        except OSError as error:
            self.close()
            raise ProcessDied(f"its fork server cannot be reached: {error}") from None

    def send(self, what: Any) -> None:
        """Send `what` to the process; if the process is dead, `receive` reports that."""
        with contextlib.suppress(BrokenPipeError):  # `receive` reports the death
            self._channel.send(what)

    def receive(self) -> Any:
        """Wait for the next message of the process. Raises ProcessDied if the process is dead."""
        if self._channel in wait([self._channel, self._control]):
            try:
                return self._channel.recv()
            except (EOFError, ConnectionResetError):
                pass
        how = self._lines.readline()
        if not how:  # the server is gone and cannot kill it
            self._process.kill()
        self.close()
        raise ProcessDied(
            describe_end(int(how), count_oom_kills() > self._oom_kills)
            if how
            else "its fork server or its machine has ended"
        )

    def ask_to_end(self) -> None:
        """Ask the server to kill the process, without waiting; may be called from any thread.

        `receive` reports when the process is gone.
        """
        with contextlib.suppress(OSError):  # the process is gone
            self._control.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Ask the server to kill the process, and wait until it is gone."""
        self.ask_to_end()
        self._lines.readline()
        self.close()

    def close(self) -> None:
        """Close the connections, which also ends the process; does not wait for that."""
        self._channel.close()
        self._control.close()
        if getattr(self, "_lines", None):
            self._lines.close()


def describe_end(status: int, short_of_memory: bool) -> str:
    """Describe how a process with exit `status` ended.

    `short_of_memory` says that the kernel's OOM killer ended a process in the meantime.
    """
    if status == -signal.SIGKILL and short_of_memory:
        return f"killed by the kernel, as {MEMORY_RAN_OUT}"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with {status}"


def count_oom_kills() -> int:
    """Return how many processes the kernel's OOM killer has ended, including those in cgroups.

    Returns 0 on a system that does not report the number.
    """
    with contextlib.suppress(OSError):
        for line in VMSTAT.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _connect(client: socket.socket, name: str) -> None:
    """Connect to the server at `name`. Raises OSError if the server is gone.

    Connections of other users may fill the server's queue while it imports. Connecting is then
    tried again.
    """
    until = time.monotonic() + IMPORTED
    while True:
        try:
            client.connect(_to_socket_name(name))
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError("connections of other processes fill its queue") from None
            time.sleep(CROWDED)
        else:
            break
    if (peer := read_peer(client)) and peer.user != os.getuid():
        raise OSError(f"a process of user {peer.user} has taken its socket")
