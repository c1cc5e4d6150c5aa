"""The fork server's process: imports everything once, then forks for clients with the token.

`fork_server.py` runs this module and connects to it. Nothing here may start a thread or touch a
GPU, which would break in a fork; imports do neither.

Other users of the machine can connect to an abstract socket. The server closes a connection whose
process belongs to another user, and one that does not send the token within a time limit. It never
blocks on a single client.
"""

import contextlib
import ctypes
import gc
import hmac
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from trainrig.processes.process_identity import read_peer

PR_SET_PDEATHSIG = 1  # an option of prctl(2) on Linux
# A request is the server's token with three file descriptors: the channel, standard output and
# standard error.
DESCRIPTORS = 3
TOKEN_BYTES = 32  # length of the token in a request
ASKED_WITHIN = 5.0  # time limit for a connected client to send the token, in s
MOST_STRANGERS = 64  # maximum number of connected clients that have not sent the token yet


class Server:
    """Server that forks a process for each client with the token, until its owner is gone."""

    def __init__(self, listener: socket.socket, token: bytes, problem: str = "") -> None:
        """Prepare to serve clients that connect to `listener`.

        `problem` says why the server cannot fork. It is reported to the first client.
        """
        self._problem = problem
        self._told = False
        self._listener = listener
        self._token = token
        self._clients: dict[int, socket.socket] = {}  # clients by the id of their process
        # Clients that have not sent the token, with their time limit, the oldest first.
        self._strangers: dict[socket.socket, float] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, waker = socket.socketpair()
        for end in (self._listener, self._woken, waker):
            end.setblocking(False)
        self._waker = waker

    def serve(self) -> None:
        """Serve clients until standard input ends, or until the problem has been reported."""
        # Without a handler for SIGCHLD, nothing would be written to the wakeup descriptor.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waker.fileno())
        for source in (self._listener, self._woken, sys.stdin):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(self._find_timeout()):
                if key.fileobj is sys.stdin:
                    for pid in self._clients:
                        os.kill(pid, signal.SIGKILL)  # safe: a child that was not waited for yet
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._strangers:
                    self._hear(key.fileobj)
                elif key.data in self._clients:  # a client writes no more, so this is its end
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)  # safe: a child that was not waited for yet
            self._drop_late_strangers()
            if self._told:
                return

    def _find_timeout(self) -> float | None:
        """Return the seconds until the oldest client without token is dropped, or None."""
        eldest = next(iter(self._strangers.values()), None)
        return None if eldest is None else max(0.0, eldest - time.monotonic())

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # the client is gone again
            return
        if (peer := read_peer(client)) and peer.user != os.getuid():
            client.close()
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._drop(next(iter(self._strangers)))
        client.setblocking(False)
        self._strangers[client] = time.monotonic() + ASKED_WITHIN
        self._selector.register(client, selectors.EVENT_READ)

    def _drop_late_strangers(self) -> None:
        now = time.monotonic()
        for stranger in [client for client, until in self._strangers.items() if until <= now]:
            self._drop(stranger)

    def _drop(self, stranger: socket.socket) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger)
        stranger.close()

    def _hear(self, client: socket.socket) -> None:
        """Fork for a client that sends the token; close the connection of any other client."""
        asked = b""
        descriptors = list[int]()
        with contextlib.suppress(OSError):
            asked, descriptors, _, _ = socket.recv_fds(client, TOKEN_BYTES, DESCRIPTORS)
        if len(descriptors) == DESCRIPTORS and hmac.compare_digest(asked, self._token):
            del self._strangers[client]
            self._selector.unregister(client)
            client.setblocking(True)
            if self._problem:
                _say(client, self._problem)
                client.close()
                self._told = True
            else:
                self._fork(client, descriptors)
        else:
            self._drop(client)
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork(self, client: socket.socket, descriptors: list[int]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            _die_with(server)
            self._become(client, *descriptors)
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
        """Run the requested function in the forked process, then exit; never return."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for end in (client, self._listener, self._woken, self._waker):
                end.close()
            for other in (*self._clients.values(), *self._strangers):
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


def _die_with(parent: int) -> None:
    """Make the kernel kill this process when its `parent` dies, which can no longer do so then.

    Ray kills the children of a worker that ends, but not their children. Without this, the trial of
    a killed driver would continue to train alongside the trial that another driver starts. On
    systems other than Linux, only the client ends this process in that case.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call above
        os._exit(1)


def _say(client: socket.socket, what: int | str) -> None:
    with contextlib.suppress(OSError):  # the client is gone, and its process soon will be
        client.sendall(f"{what}\n".encode())


def _call(channel: Connection) -> None:
    named, environment, folder, search = channel.recv()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = search
    module, name = named.split(":")
    function: Callable[[Connection], None] = getattr(importlib.import_module(module), name)
    function(channel)


def main(number: str, folder: str, *modules: str) -> None:
    """Import `modules`, then serve at the socket with the descriptor `number`.

    The token is read from standard input. At the end `folder` is removed, unless it is empty text.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C at the terminal
    problem = ""
    try:
        token = os.read(sys.stdin.fileno(), TOKEN_BYTES)
        if len(token) < TOKEN_BYTES:  # the process that started this one died
            return
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines()
            problem = f"its imports failed: {type(error).__name__}: {lines[-1] if lines else ''}"
        gc.freeze()  # otherwise a garbage collection would copy the imports' pages in each fork
        Server(socket.socket(fileno=int(number)), token, problem).serve()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
