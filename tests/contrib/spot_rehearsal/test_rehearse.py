"""Checks of a rehearsal before a cluster is started."""

import subprocess
import sys

import pytest

from trainrig_contrib.spot_rehearsal import loss_trace
from trainrig_contrib.spot_rehearsal.loss_trace import Event


@pytest.mark.parametrize(
    ("file", "command", "said"),
    [
        ("none.csv", "true", "none.csv: no such trace"),
        ("storm.csv", "no-such-command", "no-such-command: command not found; give it after --"),
    ],
)
def test_impossible_rehearsals_are_refused_in_one_line(tmp_path, file, command, said):
    loss_trace.write(str(tmp_path / "storm.csv"), [Event(1.0, "a", "lost")])
    rehearse = [
        sys.executable,
        "-m",
        "trainrig_contrib.spot_rehearsal.rehearse",
        str(tmp_path / file),
    ]
    done = subprocess.run(
        [*rehearse, "--", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
