"""The command line as a process: `trainrig`, and `python -m trainrig` for an interpreter whose
scripts are not on the path.

SIGTERM means the same from its first instant to its last: while it imports, and while it takes down
what it started.
"""

import os
import signal
import sys
from collections.abc import Sequence

UNFINISHED = 75
# Of any command, which may have done nothing yet that another could go on from.
STOPPED = b"trainrig: stopped by SIGTERM; the same command tries again\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    code: int | None = None  # until it has said how it ends

    def stop(number: int, frame: object) -> None:
        if code is None:
            os.write(2, STOPPED)
        os._exit(UNFINISHED if code is None else code)

    signal.signal(signal.SIGTERM, stop)
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
