"""Ray's own launcher in a separate process with a deadline.

The launcher logs in to the head by SSH and retries without limit. Here it is killed at the
deadline, with all processes that it started.
"""

import os
import subprocess
import sys
from pathlib import Path

from trainrig.errors import ClusterError
from trainrig.processes.child_process import hold_group
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_session import ENVIRONMENT


def launch(config: Path, log: Path, seconds: float) -> None:
    """Bring up the cluster of the file `config` with Ray's launcher, within `seconds`.

    Its output goes to `log`. Raises ClusterError with the last line of that.
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
        raise ClusterError(f"{log}: Ray's launcher failed: {lines[-1] if lines else 'no output'}")


if __name__ == "__main__":
    ray_private.create_cluster(sys.argv[1])
