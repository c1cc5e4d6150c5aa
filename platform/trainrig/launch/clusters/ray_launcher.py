"""Ray's own launcher, in a process of its own: it may wait for a machine that never answers.

It logs in to the head by SSH and tries again for as long as it takes. Here it has a deadline, and
is ended with all that it started.
"""

import os
import subprocess
import sys
from pathlib import Path

from trainrig.errors import ClusterError
from trainrig.processes.process_group import hold_group
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_session import ENVIRONMENT


def launch(config: Path, log: Path, seconds: float) -> None:
    """Let Ray bring up the cluster of the file `config`, within so many seconds.

    What it says goes to `log`. Raises ClusterError, with the last of that.
    """
    with (
        log.open("ab") as output,
        hold_group(
            [sys.executable, "-m", __name__, str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT | dict(os.environ),
        ) as process,
    ):
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{log}: the head was not up after {seconds:g} s") from None
    if status:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise ClusterError(f"{log}: Ray's launcher: {lines[-1] if lines else 'it said nothing'}")


if __name__ == "__main__":
    ray_private.create_cluster(sys.argv[1])
