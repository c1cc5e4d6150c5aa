"""Script of the process that runs a user's Python: one line of JSON per request and per answer.

It imports the standard library alone, so that it starts fast. It exits when its parent does. Output
that the user's code prints goes to stderr.
"""

import contextlib
import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer requests from stdin until stdin is closed."""
    _leave_signals_to_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    service = _Service()
    while True:
        request = json.loads(requests.get())
        try:
            answer = json.dumps({"result": service.answer(**request)})
        except BaseException as error:  # SystemExit too: user code must not end the process
            answer = json.dumps({"error": _describe_error(error)})
        answers.write(answer + "\n")
        answers.flush()


def _leave_signals_to_parent() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP, which the parent handles.

    This sets handlers that do nothing. A blocked or ignored signal would stay so in programs that
    the user's code starts, and these must react to signals. The parent may be a Ray process, which
    blocks these signals, so they are unblocked here.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _listen(requests: "queue.SimpleQueue[str]") -> None:
    """Put lines of stdin into `requests`; exit at the end of stdin, even during a call."""
    with contextlib.suppress(ValueError):
        for line in sys.stdin:
            requests.put(line)
    os._exit(0)


class _NotThere(Exception):
    """Error: the user's code has no function or class of the requested name."""


class _Service:
    """Handler of requests: calls the loaded function, or runs episodes of the loaded class."""

    def __init__(self) -> None:
        self._target: Any = None
        self._episodes: dict[int, Any] = {}

    def answer(self, do: str, arguments: list[Any], episode: int = 0) -> Any:
        """Return the result of the request `do`: load, call, reset, step or forget."""
        if do == "load":
            return self._load(*arguments)
        if do == "call":
            return self._target(*arguments)
        if do == "reset":
            self._episodes[episode] = self._target()
            return self._episodes[episode].reset(*arguments)
        if do == "step":
            return self._episodes[episode].step(*arguments)
        self._episodes.clear()
        return None

    def _load(self, name: str, module: str, source: str | None) -> None:
        """Find `name` in the module `module`, or in `source`, the text of the file `module`."""
        if source is None:
            there = importlib.import_module(module)
        else:
            there = types.ModuleType("user_code")
            there.__file__ = module
            sys.modules["user_code"] = there  # dataclasses look their module up there
            exec(compile(source, module, "exec"), there.__dict__)
        if not callable(getattr(there, name, None)):
            names = [n for n, value in vars(there).items() if callable(value) and n[0] != "_"]
            raise _NotThere(f"there is no '{name}'; the code defines {', '.join(names) or 'none'}")
        self._target = getattr(there, name)


def _describe_error(error: BaseException) -> str:
    if isinstance(error, _NotThere):
        return str(error)
    told = " ".join(f"{type(error).__name__}: {error}".split())
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__
    ]
    if frames and not isinstance(error, SyntaxError):
        told += f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})"
    return told


if __name__ == "__main__":
    main()
