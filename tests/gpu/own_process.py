"""Work in a separate process, forked from one that never touches the device."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

ROW_SECONDS = 150  # limit for one row of a table, including compilation

Running = tuple[multiprocessing.process.BaseProcess, Connection]


def alone(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return the result of `work` in a separate process, or {"failed": …} if it ends otherwise."""
    return collect(start(work, *arguments))


def start(work: Callable[..., dict[str, Any]], *arguments: Any) -> Running:
    """Start `work` in a separate process."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_answer, args=(theirs, work, *arguments)
    )
    process.start()
    theirs.close()
    return process, ours


def collect(running: Running) -> dict[str, Any]:
    """Wait for the process and return its result, or {"failed": …} if it ended otherwise."""
    process, ours = running
    found: dict[str, Any] = {"failed": f"not within {ROW_SECONDS} s"}
    if ours.poll(ROW_SECONDS):
        try:
            found = ours.recv()
        except EOFError:
            found = {"failed": "its process ended without a word"}
    process.join(10)
    process.kill()
    return found


def _answer(channel: Connection, work: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    try:
        channel.send(work(*arguments))
    except Exception as error:
        traceback.print_exc()
        channel.send({"failed": f"{type(error).__name__}: {error}"[:300]})
    finally:
        channel.close()
        sys.stderr.flush()
        os._exit(0)  # skips waiting for threads of a process group
