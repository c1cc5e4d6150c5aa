"""What every job script does: `python jobs/VERB.py RUN.toml [--set a.b=value …]`.

Exit codes are those of the command line: 0 done, 1 failed, 2 the user's input, 75 ended whole but
unfinished, 130 after Ctrl-C. One line on stderr says why; what we did not foresee keeps its
traceback.

Who started the process may name a file in TRAINRIG_OUTCOME. Why it ended is then written there: a
log tells people, this tells programs.
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
from trainrig.errors import ClusterError, InputError, TrainrigError, Unfinished
from trainrig.manifest import MANIFEST, Manifest
from trainrig.processes.home import ensure_home
from trainrig.processes.stop_signals import StopRequest, list_stop_signals, outlive_terminal
from trainrig.ray_runtime import ray_local
from trainrig.ray_runtime.start_checks import describe_thread_shortage
from trainrig.storage.writable import check_folder

OUTCOME = "TRAINRIG_OUTCOME"  # names a local file for {"kind", "message", "exit_code"}
GOES_ON = "the same command goes on from what was whole"
NO_THREAD = "can't start new thread"  # as Python says that a limit is reached
BEGINS_AGAIN = "the same command begins again"
# The system says no to a path, which is for the user to mend.
REFUSED = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
}


def main(
    model: type[Run], stage: Callable[[Run], Manifest], arguments: Sequence[str] | None = None
) -> None:
    """Do `stage` as the run file on the command line says; its counts on stdout, as JSON."""
    parser = argparse.ArgumentParser(description=f"Do what a run file for `{model.verb}` says.")
    parser.add_argument("run_file", metavar="RUN.toml", help="run file of the command")
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
    logging.getLogger("trainrig").setLevel(logging.INFO)
    with exit_codes():
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints its messages there
            run = load(model, given.run_file, given.changes)
            with if_stopped(describe_restart(run)):
                manifest = stage(run)
        print(json.dumps(manifest.counts))


def load(model: type[Run], path: str, changes: Sequence[str]) -> Run:
    """The run that the file at `path` describes, if its results can be written.

    Raises ConfigError. A finished run may lie on a disk that is mounted to be read: it has nothing
    left to write.
    """
    run = config.load(model, path, changes)
    output = run.output
    if output.startswith(storage.S3) or not storage.exists(storage.join(output, MANIFEST)):
        check_folder(output)
    return run


def describe_restart(run: RunFile) -> str:
    """What becomes of `run` if it is stopped and then done again."""
    return GOES_ON if run.resumes else BEGINS_AGAIN


@contextlib.contextmanager
def if_stopped(said: str) -> Iterator[None]:
    """Have `said` of the block if a stop signal or Ctrl-C ends it, unless a block in it knows
    better."""
    try:
        yield
    except (_Stopped, KeyboardInterrupt) as stopped:
        stopped.args = stopped.args or (said,)
        raise


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """End the process as the module says when the block raises what trainrig foresees.

    SIGTERM (a stopped job, a machine taken back) and SIGHUP (a closed terminal) end it as
    unfinished, and `if_stopped` says what is left of it. A SIGHUP that was ignored stays so.
    """
    heeded = list_stop_signals()
    before = {number: signal.getsignal(number) for number in heeded}
    request = StopRequest()

    def stop(number: int, frame: object) -> None:
        if not request.is_repeat(number):  # which would break off the end that is under way
            raise _Stopped(signal.Signals(number))

    outcome = os.environ.pop(OUTCOME, None)  # not for the processes that this one starts
    outlive_terminal()
    try:
        for number in heeded:
            signal.signal(number, stop)
        ensure_home()
        yield
    except BaseException as error:
        ending = _describe_ending(error)
        _write_outcome(outcome, error, ending)
        over = isinstance(error, SystemExit)  # as a command line ends that did all it was asked
        if not over and (ending is None or ending[1] == ClusterError.exit_code):
            ray_local.keep_logs()
        if ending is None:
            raise
        message, code = ending
        print(f"trainrig: {message}", file=sys.stderr)
        raise SystemExit(code) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe_ending(error: BaseException) -> tuple[str, int] | None:
    """The line that is said of `error`, and the exit code; None: it was not foreseen."""
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
            return f"{where}storage is full; free some and run it again", 1
        case RuntimeError() if NO_THREAD in str(error):
            return describe_thread_shortage(), InputError.exit_code
    return None


def _get_restart_note(stopped: BaseException) -> str:
    return str(stopped.args[0]) if stopped.args else BEGINS_AGAIN


def _write_outcome(path: str | None, error: BaseException, ending: tuple[str, int] | None) -> None:
    if path is None or isinstance(error, SystemExit):  # a wrong command line, or all is well
        return
    kind: type[BaseException] = type(error)
    if isinstance(error, _Stopped):
        kind = Unfinished
    elif isinstance(error, OSError) and ending:
        kind = InputError if ending[1] == InputError.exit_code else ClusterError
    message, code = ending or (str(error), 1)
    entry = {"kind": kind.__name__, "message": message, "exit_code": code}
    with contextlib.suppress(OSError):  # the exit code still tells most of it
        Path(path).write_text(json.dumps(entry))


class _Stopped(BaseException):
    """A stop signal, raised wherever the main thread is: no `except Exception` there may swallow
    it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.signal = number
