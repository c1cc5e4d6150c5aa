"""The process that a user's own Python runs in: requests in, answers out, a line of JSON each.

Imports the standard library alone, so that it starts in no time. It ends when its parent does. What
the user's code prints goes where errors go.
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
    """Answer until the requests end."""
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
        except BaseException as error:  # sys.exit is no way out either
            answer = json.dumps({"error": _describe_error(error)})
        answers.write(answer + "\n")
        answers.flush()


def _leave_signals_to_parent() -> None:
    """Do nothing at a signal that asks the parent to stop.

    A handler, as a signal that is blocked or ignored stays so in the programs that the user's code
    starts, and those heed theirs. Ray's processes, which may be the parent, block them.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _listen(requests: "queue.SimpleQueue[str]") -> None:
    """Hand the lines on; at their end, whatever the user's code is doing, end."""
    with contextlib.suppress(ValueError):
        for line in sys.stdin:
            requests.put(line)
    os._exit(0)


class _NotThere(Exception):
    """The user's code lacks what was named."""


class _Service:
    """What is asked for by `do`."""

    def __init__(self) -> None:
        self._target: Any = None
        self._episodes: dict[int, Any] = {}

    def answer(self, do: str, arguments: list[Any], episode: int = 0) -> Any:
        """What the user's code gives."""
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
            sys.modules["user_code"] = there  # dataclasses and the like look for it
            exec(compile(source, module, "exec"), there.__dict__)
        if not callable(getattr(there, name, None)):
            names = [n for n, each in vars(there).items() if callable(each) and n[0] != "_"]
            raise _NotThere(f"no '{name}'; it has {', '.join(names) or 'none'}")
        self._target = getattr(there, name)


def _describe_error(error: BaseException) -> str:
    if isinstance(error, _NotThere):
        return str(error)
    told = " ".join(f"{type(error).__name__}: {error}".split())
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if each.filename != __file__
    ]
    if frames and not isinstance(error, SyntaxError):
        told += f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})"
    return told


if __name__ == "__main__":
    main()
