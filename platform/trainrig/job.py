"""Common part of all job scripts: `python jobs/VERB.py RUN.toml [--set a.b=value …]`.

The command line has the same exit codes: 0 done, 1 failed, 2 invalid input, 75 stopped cleanly but
unfinished, 130 after Ctrl-C. One line on stderr gives the reason; unexpected errors keep their
traceback.

The environment variable TRAINRIG_OUTCOME may name a file. The reason for the end is then written
there as JSON, for the program that started the process.
"""

import argparse
import contextlib
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainrig import config, storage
from trainrig.config import Run, RunFile
from trainrig.errors import ClusterError, ConfigError, InputError, TrainrigError, Unfinished
from trainrig.manifest import MANIFEST, Manifest
from trainrig.processes.child_process import ensure_home
from trainrig.processes.stop_signals import StopRequest, list_stop_signals, outlive_terminal
from trainrig.ray_runtime import ray_local
from trainrig.ray_runtime.start_checks import describe_thread_shortage
from trainrig.storage.writable import check_folder

OUTCOME = (
    "TRAINRIG_OUTCOME"  # variable that names a local file for {"kind", "message", "exit_code"}
)
LOG_LEVEL = "TRAINRIG_LOG_LEVEL"  # variable that names the least severe messages to print
LOG_LEVELS = ("debug", "info", "warning", "error")
GOES_ON = "run the same command to continue"
NO_THREAD = "can't start new thread"  # Python's message when the thread limit is reached
BEGINS_AGAIN = "run the same command to start again"
# Errors for which the operating system refuses a path, which the user can fix.
REFUSED = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
}


def main(
    model: type[Run], stage: Callable[[Run], Manifest], arguments: Sequence[str] | None = None
) -> None:
    """Run `stage` with the run file on the command line, and print its counts as JSON."""
    parser = argparse.ArgumentParser(description=f"Run `{model.verb}` with a run file.")
    parser.add_argument("run_file", metavar="RUN.toml", help="run file to run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        dest="changes",
        help="change one key of the run file; repeatable",
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(format="trainrig: %(message)s")
    with exit_codes():
        set_log_level()
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints its messages there
            run = load(model, given.run_file, given.changes)
            with if_stopped(describe_restart(run)):
                manifest = stage(run)
        print(json.dumps(manifest.counts))


def set_log_level() -> None:
    """Set the level of trainrig's loggers to the one that TRAINRIG_LOG_LEVEL names, or to `info`.

    Raises ConfigError if the variable names another level.
    """
    level = os.environ.get(LOG_LEVEL) or "info"
    if level.lower() not in LOG_LEVELS:
        hint = config.suggest_choice(level, LOG_LEVELS)
        raise ConfigError(f"--log-level (or {LOG_LEVEL}): no level '{level}'{hint}")
    logging.getLogger("trainrig").setLevel(level.upper())


def load(model: type[Run], path: str, changes: Sequence[str]) -> Run:
    """Load the run file at `path`, and check that its output can be written.

    Raises ConfigError if the file is invalid or the output cannot be written. The output of a
    finished run is not checked, and may lie on a read-only disk.
    """
    run = config.load(model, path, changes)
    check_output(run)
    return run


def check_output(run: RunFile) -> None:
    """Raise ConfigError if the output of `run` cannot be written; a finished one need not be."""
    output = run.output
    if storage.is_remote(output) or not storage.exists(storage.join(output, MANIFEST)):
        check_folder(output)


def describe_restart(run: RunFile) -> str:
    """Tell in a message whether the same command resumes `run` after a stop or starts over."""
    return GOES_ON if run.resumes else BEGINS_AGAIN


@contextlib.contextmanager
def if_stopped(said: str) -> Iterator[None]:
    """Attach the message `said` to a stop signal or Ctrl-C that ends the block.

    A message that an inner `if_stopped` has attached is kept.
    """
    try:
        yield
    except (_Stopped, KeyboardInterrupt) as stopped:
        stopped.args = stopped.args or (said,)
        raise


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Exit with the module's exit codes if the block raises an error that trainrig foresees.

    SIGTERM (a stopped job, a preempted machine) and SIGHUP (a closed terminal) end the process as
    unfinished, with the message of `if_stopped`. A SIGHUP that was ignored stays ignored.
    """
    heeded = list_stop_signals()
    before = {number: signal.getsignal(number) for number in heeded}
    request = StopRequest()

    def stop(number: int, frame: object) -> None:
        if not request.is_repeat(number):  # a repeated signal must not interrupt the shutdown
            raise _Stopped(signal.Signals(number))

    ray_local.exit_code = None
    outcome = os.environ.pop(OUTCOME, None)  # removed, so that child processes do not inherit it
    outlive_terminal()
    try:
        for number in heeded:
            signal.signal(number, stop)
        ensure_home()
        yield
    except BaseException as error:
        ending = _describe_ending(error)
        _write_outcome(outcome, error, ending)
        over = isinstance(error, SystemExit)  # normal end of a command
        if not over and (ending is None or ending[1] == ClusterError.exit_code):
            ray_local.keep_logs()
        if ending is None:
            raise
        message, code = ending
        print(f"trainrig: {message}", file=sys.stderr)
        ray_local.exit_code = code
        raise SystemExit(code) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe_ending(error: BaseException) -> tuple[str, int] | None:
    """Return the message for `error` and the exit code, or None for an unexpected error."""
    match error:
        case TrainrigError():
            return str(error), error.exit_code
        case _Stopped():
            return (
                f"stopped by {error.signal.name}; {_get_restart_note(error)}",
                Unfinished.exit_code,
            )
        case KeyboardInterrupt():
            return f"interrupted; {_get_restart_note(error)}", 130
        case storage.UnreadableFile():
            problem = f"{os.fsdecode(error.filename)}: cannot be read: {error.strerror}"
            return f"{problem}; the disk may be failing", InputError.exit_code
        case OSError(errno=errno.EIO) if error.filename:
            return f"{os.fsdecode(error.filename)}: {error.strerror}; the disk may be failing", 1
        case OSError() if error.errno in REFUSED and error.filename:
            return f"{os.fsdecode(error.filename)}: {error.strerror}", InputError.exit_code
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}the disk is full; free some space and run the same command again", 1
        case RuntimeError() if NO_THREAD in str(error):
            return describe_thread_shortage(), InputError.exit_code
    return None


def _get_restart_note(stopped: BaseException) -> str:
    return str(stopped.args[0]) if stopped.args else BEGINS_AGAIN


def _write_outcome(path: str | None, error: BaseException, ending: tuple[str, int] | None) -> None:
    if path is None or isinstance(error, SystemExit):  # wrong usage, or success
        return
    kind: type[BaseException] = type(error)
    if isinstance(error, _Stopped):
        kind = Unfinished
    elif isinstance(error, OSError) and ending:
        kind = InputError if ending[1] == InputError.exit_code else ClusterError
    message, code = ending or (str(error), 1)
    entry = {"kind": kind.__name__, "message": message, "exit_code": code}
    with contextlib.suppress(OSError):  # the exit code remains as a signal
        Path(path).write_text(json.dumps(entry))


class _Stopped(BaseException):
    """A stop signal, raised in the main thread.

    It is a BaseException, so that no `except Exception` in the main thread swallows it.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.signal = number
