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
from typing import NoReturn

from trainrig import config
from trainrig.config import Run
from trainrig.errors import ClusterError, TrainrigError, Unfinished
from trainrig.manifest import Manifest

OUTCOME = "TRAINRIG_OUTCOME"  # names a local file for {"kind", "message", "exit_code"}
STOPPED = "stopped by SIGTERM; the same command goes on from the last that was whole"


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
            manifest = stage(config.load(model, given.run_file, given.changes))
        print(json.dumps(manifest.counts))


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """End the process as the module says when the block raises what trainrig foresees.

    SIGTERM (a stopped job, a machine taken back) ends it as unfinished: stages are always whole.
    """
    before = signal.getsignal(signal.SIGTERM)
    outcome = os.environ.pop(OUTCOME, None)  # not for the processes that this one starts
    try:
        signal.signal(signal.SIGTERM, _stop)
        yield
    except BaseException as error:
        ending = _ending(error)
        _write_outcome(outcome, error, ending)
        if ending is None:
            raise
        message, code = ending
        print(f"trainrig: {message}", file=sys.stderr)
        raise SystemExit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _ending(error: BaseException) -> tuple[str, int] | None:
    """The line that is said of `error`, and the exit code; None: it was not foreseen."""
    match error:
        case TrainrigError():
            return str(error), error.exit_code
        case _Stopped():
            return STOPPED, Unfinished.exit_code
        case KeyboardInterrupt():
            return "interrupted; the same command goes on from here", 130
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}storage is full; free some and run it again", 1
    return None


def _write_outcome(path: str | None, error: BaseException, ending: tuple[str, int] | None) -> None:
    if path is None or isinstance(error, SystemExit):  # a wrong command line, or all is well
        return
    kind: type[BaseException] = type(error)
    if isinstance(error, _Stopped):
        kind = Unfinished
    elif isinstance(error, OSError) and ending:
        kind = ClusterError
    message, code = ending or (str(error), 1)
    entry = {"kind": kind.__name__, "message": message, "exit_code": code}
    with contextlib.suppress(OSError):  # the exit code still tells most of it
        Path(path).write_text(json.dumps(entry))


class _Stopped(BaseException):
    """SIGTERM, raised wherever the main thread is: no `except Exception` there may swallow it."""


def _stop(number: int, frame: object) -> NoReturn:
    raise _Stopped
