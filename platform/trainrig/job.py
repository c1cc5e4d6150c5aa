"""What every job script does: `python jobs/VERB.py RUN.toml [--set a.b=value …]`.

Exit codes are those of the command line: 0 done, 1 failed, 2 the user's input, 75 ended whole but
unfinished, 130 after Ctrl-C. One line on stderr says why; what we did not foresee keeps its
traceback.
"""

import argparse
import contextlib
import errno
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from trainrig import config
from trainrig.config import Run
from trainrig.errors import TrainrigError, Unfinished
from trainrig.manifest import Manifest

STOPPED = "stopped by SIGTERM; the same command goes on from the last that was whole"


def main(
    model: type[Run], stage: Callable[[Run], Manifest], arguments: Sequence[str] | None = None
) -> None:
    """Do `stage` as the run file on the command line says; its counts on stdout, as JSON."""
    parser = argparse.ArgumentParser(description=f"Do what a run file for `{model.verb}` says.")
    parser.add_argument("run_file", metavar="RUN.toml")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", dest="changes")
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
    try:
        signal.signal(signal.SIGTERM, _stop)
        yield
    except TrainrigError as error:
        print(f"trainrig: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except _Stopped:
        print(f"trainrig: {STOPPED}", file=sys.stderr)
        raise SystemExit(Unfinished.exit_code) from None
    except KeyboardInterrupt:
        print("trainrig: interrupted; the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"trainrig: {where}storage is full; free some and run it again", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class _Stopped(BaseException):
    """SIGTERM, raised wherever the main thread is: no `except Exception` there may swallow it."""


def _stop(number: int, frame: object) -> NoReturn:
    raise _Stopped
