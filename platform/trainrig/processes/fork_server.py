"""Forks processes from one that has already imported everything.

Importing torch and what stands on it takes some seconds of CPU time, and a run whose worker died
would wait for them again. One process on each node has done it already and outlives the workers:
asked for a rank, it forks. Nothing in it may start a thread or touch a GPU, which a fork would not
survive; importing does neither.

Knows no Ray. The server, started as a module, ends with whoever started it, and a forked process
with whoever asked for it and with the server: nobody is left behind, however they die.
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
from trainrig.processes.peer import read_peer
from trainrig.processes.process_identity import Process

PREFIX = "trainrig-fork-"  # of the servers' addresses
# Names without files, which go with the server however it dies; other systems have folders alone.
ABSTRACT = sys.platform == "linux"
IMPORTED = 120.0  # s that a server may take to import everything; on a busy machine it takes ten
MEMORY_RAN_OUT = "memory ran out"  # in how a process ended of which that is known
VMSTAT = Path("/proc/vmstat")
BACKLOG = 4096  # connections that wait while the server imports
CROWDED = 0.05  # s until a client tries again whom so many strangers left no room


class ProcessDied(Exception):
    """A forked process ended without having said that it would."""


@dataclass(frozen=True)
class ServerAddress:
    """Where a fork server is, and what it is asked with."""

    socket: str  # a name of the kernel's begins with @; else a path
    token: str = field(repr=False)


class ForkServer:
    """Starts the server of this machine, and again when it has died."""

    def __init__(self, *modules: str) -> None:
        """`modules`: those to import in advance."""
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None
        self._address = ServerAddress("", "")
        self._oom_kills = count_oom_kills()
        self.get_address()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel of this machine had to end a process since this was last asked."""
        before, self._oom_kills = self._oom_kills, count_oom_kills()
        return self._oom_kills > before

    def get_address(self) -> ServerAddress:
        """Where a `ForkedProcess` is to be had."""
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
            folder = tempfile.mkdtemp(prefix=PREFIX)  # its owner's alone: what is asked for is run
            name = str(Path(folder, "fork"))
        self._address = ServerAddress(name, token)
        # Bound here, so that one can ask at once; the answer comes when all is imported.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_to_socket_name(name))
            listener.listen(BACKLOG)
            number = listener.fileno()
            self._server = subprocess.Popen(
                [sys.executable, "-m", forking.__name__, str(number), folder, *self._modules],
                stdin=subprocess.PIPE,  # for the token, and no more: its end is ours
                pass_fds=[number],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, as whoever asks is going to hear
            # Command lines are for every user to read, and environments for every child.
            self._server.stdin.write(token.encode())
            self._server.stdin.flush()


def _is_abstract(address: str) -> bool:
    return address.startswith("@")


def _to_socket_name(address: str) -> str:
    """What the kernel knows `address` by."""
    return f"\0{address[1:]}" if _is_abstract(address) else address


def _sweep() -> None:
    """Remove what servers that were killed have left."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/fork"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                shutil.rmtree(path.parent, ignore_errors=True)
            except OSError:
                continue  # another user's, or gone


class ForkedProcess:
    """A process forked for this one, which it does not outlive."""

    def __init__(self, address: ServerAddress, function: str, first: Any) -> None:
        """Call `function`, "package.module:name", there with its end of a channel.

        It has this process's environment, working directory, search path and output; the first
        that its channel gives is `first`. Raises ProcessDied if the server is gone.
        """
        self._oom_kills = count_oom_kills()
        self._channel, its_end = Pipe()
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(IMPORTED)
        try:
            _connect(self._control, address.socket)
            self._lines = self._control.makefile("r")
            with its_end:  # not closed before it has arrived
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
            raise ProcessDied(f"its fork server is gone: {error}") from None

    def send(self, what: Any) -> None:
        """Put `what` into the channel."""
        with contextlib.suppress(BrokenPipeError):  # `receive` is going to say so
            self._channel.send(what)

    def receive(self) -> Any:
        """The next that the process says. Raises ProcessDied if it can say nothing more."""
        if self._channel in wait([self._channel, self._control]):
            try:
                return self._channel.recv()
            except (EOFError, ConnectionResetError):
                pass
        how = self._lines.readline()
        if not how:  # nobody is left to end it
            self._process.kill()
        self.close()
        raise ProcessDied(
            describe_end(int(how), count_oom_kills() > self._oom_kills)
            if how
            else "its fork server ended, or its machine"
        )

    def ask_to_end(self) -> None:
        """Have the process killed; `receive` says when it is gone. From any thread, at any time."""
        with contextlib.suppress(OSError):  # it is gone
            self._control.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Have the process killed, and return once it is gone."""
        self.ask_to_end()
        self._lines.readline()
        self.close()

    def close(self) -> None:
        """End the process, if it has not ended by itself. Does not wait."""
        self._channel.close()
        self._control.close()
        if getattr(self, "_lines", None):
            self._lines.close()


def describe_end(status: int, short_of_memory: bool) -> str:
    """In words; `short_of_memory`: the kernel ended a process for want of it meanwhile."""
    if status == -signal.SIGKILL and short_of_memory:
        return f"killed by the kernel, as {MEMORY_RAN_OUT}"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with {status}"


def count_oom_kills() -> int:
    """Processes that the kernel of this machine has ended for want of memory, in whatever limits;
    0 where it does not say."""
    with contextlib.suppress(OSError):
        for line in VMSTAT.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _connect(client: socket.socket, name: str) -> None:
    """Connect to the server of that `name`. Raises OSError if that is gone.

    Other users' connections may fill the server's queue while it imports: it is tried again then.
    """
    until = time.monotonic() + IMPORTED
    while True:
        try:
            client.connect(_to_socket_name(name))
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError("others' connections fill its queue") from None
            time.sleep(CROWDED)
        else:
            break
    if (peer := read_peer(client)) and peer.user != os.getuid():
        raise OSError(f"a process of user {peer.user} took its place")
