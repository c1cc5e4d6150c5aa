"""Entry point of the command line, run as `trainrig` or `python -m trainrig`.

SIGTERM and SIGHUP are handled during the whole life of the process, also while it imports and while
it shuts down the processes that it started.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from trainrig.processes.stop_signals import StopRequest, list_stop_signals

UNFINISHED = 75
# The message for any command, which may have done nothing yet that could be resumed.
STOPPED = "trainrig: stopped by {}; run the same command again\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    code: int | None = None  # the exit code, once the command has ended
    taking_down = StopRequest()
    asked = False  # True after the first stop signal during shutdown, which the second one aborts

    def stop(number: int, frame: object) -> None:
        nonlocal asked
        if code is None:
            with contextlib.suppress(OSError):  # the terminal may have closed
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
