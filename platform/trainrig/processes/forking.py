"""The process of a fork server: imports everything once, then forks for whoever shows its token.

Run as a module by `fork_server.py`, which has the other end. Nothing in it may start a thread or
touch a GPU, which a fork would not survive; importing does neither.

Strangers may connect: other users of the machine, where the socket is a name of the kernel's. They
are hung up on by the credentials of their process, and others who do not show the token within a
limit of time. Nobody is waited for alone.
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

from trainrig.processes.peer import read_peer

PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
# What is asked with is the server's token, with three descriptors: of the channel, of standard
# output and of standard error.
DESCRIPTORS = 3
TOKEN_BYTES = 32  # as the token travels
ASKED_WITHIN = 5.0  # s for a client that has connected to show the token
MOST_STRANGERS = 64  # that may be connected and have not shown it


class Server:
    """Forks for whoever shows its token, until its owner is gone."""

    def __init__(self, listener: socket.socket, token: bytes, problem: str = "") -> None:
        """`problem`: why it can fork nobody, which is told to the first that asks."""
        self._problem, self._told = problem, False
        self._listener, self._token = listener, token
        self._clients: dict[int, socket.socket] = {}  # by the process that was forked for it
        # Those that have not shown the token, and until when they may; the eldest first.
        self._strangers: dict[socket.socket, float] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, waker = socket.socketpair()
        for end in (self._listener, self._woken, waker):
            end.setblocking(False)
        self._waker = waker

    def serve(self) -> None:
        """Return when standard input ends; with a problem, once that has been told."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # else nothing is written there
        signal.set_wakeup_fd(self._waker.fileno())
        for each in (self._listener, self._woken, sys.stdin):
            self._selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(self._find_timeout()):
                if key.fileobj is sys.stdin:
                    for pid in self._clients:
                        os.kill(pid, signal.SIGKILL)  # our child, and not waited for yet
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._strangers:
                    self._hear(key.fileobj)
                elif key.data in self._clients:  # it never writes again: its end is there
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)  # our child, and not waited for yet
            self._drop_late_strangers()
            if self._told:
                return

    def _find_timeout(self) -> float | None:
        """Return the seconds until the eldest stranger is to be dropped; None if there is none."""
        eldest = next(iter(self._strangers.values()), None)
        return None if eldest is None else max(0.0, eldest - time.monotonic())

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # it is gone again
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
        for stranger in [each for each, until in self._strangers.items() if until <= now]:
            self._drop(stranger)

    def _drop(self, stranger: socket.socket) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger)
        stranger.close()

    def _hear(self, client: socket.socket) -> None:
        """Fork for a client that shows the token; hang up on any other."""
        asked, descriptors = b"", list[int]()
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
        for each in descriptors:
            os.close(each)

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
        """What the forked process does, to its end: nothing may bring it back from here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for each in (client, self._listener, self._woken, self._waker):
                each.close()
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
    """Have this process killed when its `parent` is, who then cannot do it any more.

    Ray kills the children of a worker that ends, and not theirs: a trial of a driver that was
    killed would train on, beside the one that another driver starts. Where there is no Linux, only
    who asked for this process ends it then.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def _say(client: socket.socket, what: int | str) -> None:
    with contextlib.suppress(OSError):  # it is gone, and its process is going to be
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
    """Serve at the socket of that `number`, with the token that standard input begins with.

    Imports `modules` first; then `folder`, if it has a name, is removed at the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is the driver's
    problem = ""
    try:
        token = os.read(sys.stdin.fileno(), TOKEN_BYTES)
        if len(token) < TOKEN_BYTES:  # whoever started this died
            return
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines()
            problem = f"its imports failed: {type(error).__name__}: {lines[-1] if lines else ''}"
        gc.freeze()  # what is imported stays, and a collection would copy its pages in each fork
        Server(socket.socket(fileno=int(number)), token, problem).serve()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
