"""Forks processes from one that has already imported everything.

Importing torch and what stands on it takes some seconds of CPU time, and a run whose worker died
would wait for them again. One process on each node has done it already and outlives the workers:
asked for a rank, it forks. Nothing in it may start a thread or touch a GPU, which a fork would not
survive; importing does neither.

Knows no Ray. The server, started as a module, ends with whoever started it, and a forked process
with whoever asked for it and with the server: nobody is left behind, however they die.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import secrets
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

PREFIX = "trainrig-fork-"  # of the servers' addresses
# Names without files, which go with the server however it dies; other systems have folders alone.
ABSTRACT = sys.platform == "linux"
IMPORTED = 120.0  # s that a server may take to import everything; on a busy machine it takes ten
MEMORY_RAN_OUT = "memory ran out"  # in how a process ended of which that is known
VMSTAT = Path("/proc/vmstat")
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
ASK = b"fork"  # comes with three descriptors: of the channel, standard output, standard error


class ProcessDied(Exception):
    """A forked process ended without having said that it would."""


class ForkServer:
    """Starts the server of this machine, and again when it has died."""

    def __init__(self, *modules: str) -> None:
        """`modules`: those to import in advance."""
        self._modules = modules
        self._server: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._oom_kills = count_oom_kills()
        self.get_address()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel of this machine had to end a process since this was last asked."""
        before, self._oom_kills = self._oom_kills, count_oom_kills()
        return self._oom_kills > before

    def get_address(self) -> str:
        """Where a `ForkedProcess` is to be had."""
        dead = self._server is None or self._server.poll() is not None
        if dead or not (_is_abstract(self._address) or Path(self._address).exists()):
            self._start()
        return self._address

    def _start(self) -> None:
        if self._server and self._server.stdin:
            self._server.stdin.close()
        folder = ""
        if ABSTRACT:
            self._address = f"@{PREFIX}{secrets.token_hex(16)}"
        else:
            _sweep()
            folder = tempfile.mkdtemp(prefix=PREFIX)  # its owner's alone: what is asked for is run
            self._address = str(Path(folder, "fork"))
        # Bound here, so that one can ask at once; the answer comes when all is imported.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_to_socket_name(self._address))
            listener.listen()
            number = listener.fileno()
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(number), folder, *self._modules],
                stdin=subprocess.PIPE,  # never written to: its end is ours
                pass_fds=[number],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )


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

    def __init__(self, address: str, function: str, first: Any) -> None:
        """Call `function`, "package.module:name", there with its end of a channel.

        It has this process's environment, working directory, search path and output; the first
        that its channel gives is `first`. Raises ProcessDied if the server is gone.
        """
        self._oom_kills = count_oom_kills()
        self._channel, its_end = Pipe()
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(IMPORTED)
        try:
            self._control.connect(_to_socket_name(address))
            self._lines = self._control.makefile("r")
            with its_end:  # not closed before it has arrived
                socket.send_fds(self._control, [ASK], [its_end.fileno(), 1, 2])
                self.pid = int(self._lines.readline() or 0)
            if not self.pid:
                raise OSError("it ended; its log says why")
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
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
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


class _Server:
    """Forks for whoever asks, until its owner is gone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}  # by the process that was forked for it
        self._selector = selectors.DefaultSelector()
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.setblocking(False)
        self._waker = waker

    def serve(self) -> None:
        """Return when standard input ends."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # else nothing is written there
        signal.set_wakeup_fd(self._waker.fileno())
        for each in (self._listener, self._woken, sys.stdin):
            self._selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for pid in self._clients:
                        os.kill(pid, signal.SIGKILL)
                    return
                if key.fileobj is self._listener:
                    self._fork()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif key.data in self._clients:  # it never writes again: its end is there
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)

    def _fork(self) -> None:
        client, _ = self._listener.accept()
        if not _is_ours(client):
            client.close()
            return
        asked, descriptors, _, _ = socket.recv_fds(client, len(ASK), 3)
        if asked != ASK:  # gone before it had asked
            client.close()
            return
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            _die_with(server)
            self._become(client, *descriptors)
        for each in descriptors:
            os.close(each)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)
        _say(client, pid)

    def _reap(self) -> None:
        for pid in list(self._clients):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                client = self._clients.pop(pid)
                with contextlib.suppress(KeyError):
                    self._selector.unregister(client)
                _say(client, os.waitstatus_to_exitcode(status))
                client.close()

    def _become(self, client: socket.socket, channel: int, output: int, errors: int) -> None:
        """What the forked process does, to its end: nothing may bring it back from here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for each in (client, self._listener, self._woken, self._waker):
                each.close()
            for other in self._clients.values():
                other.close()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (output, 1), (errors, 2)):
                os.dup2(source, target)
                os.close(source)
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            _call(Connection(channel))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def _is_ours(client: socket.socket) -> bool:
    """Whether the user of this process asks. Where not Linux, the folder keeps others out."""
    if sys.platform != "linux":
        return True
    size = struct.calcsize("3i")
    asking = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", asking)
    return bool(user == os.getuid())


def _die_with(parent: int) -> None:
    """Have this process killed when its `parent` is, who then cannot do it any more.

    Ray kills the children of a worker that ends, and not theirs: a trial of a driver that was
    killed would train on, beside the one that another driver starts. Where there is no Linux, only
    who asked for this process ends it then.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def _say(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it is gone, and its process is going to be
        client.sendall(f"{number}\n".encode())


def _call(channel: Connection) -> None:
    named, environment, folder, search = channel.recv()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = search
    module, name = named.split(":")
    function: Callable[[Connection], None] = getattr(importlib.import_module(module), name)
    function(channel)


def _main(number: str, folder: str, *modules: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is the driver's
    try:
        for name in modules:
            importlib.import_module(name)
        gc.freeze()  # what is imported stays, and a collection would copy its pages in each fork
        _Server(socket.socket(fileno=int(number))).serve()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
