"""The command line as a process: `trainrig`, and `python -m trainrig` for an interpreter whose
scripts are not on the path.

SIGTERM and SIGHUP mean the same from its first instant to its last: while it imports, and while it
takes down what it started.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from trainrig.processes.stop_signals import StopRequest, list_stop_signals

UNFINISHED = 75
# Of any command, which may have done nothing yet that another could go on from.
STOPPED = "trainrig: stopped by {}; the same command tries again\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    code: int | None = None  # until it has said how it ends
    taking_down = StopRequest()
    asked = False  # while taking down, which is let come to its end once

    def stop(number: int, frame: object) -> None:
        nonlocal asked
        if code is None:
            with contextlib.suppress(OSError):  # its terminal has closed
                os.write(2, STOPPED.format(signal.Signals(number).name).encode())
            os._exit(UNFINISHED)
        if not taking_down.is_repeat(number) and asked:
            os._exit(code)
        asked = True

    for number in list_stop_signals():
        signal.signal(number, stop)
    try:
        from trainrig import cli

        cli.main(arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        sys.stdout.flush()
        raise


if __name__ == "__main__":
    main()
