import shlex
import sys
import time
from pathlib import Path

import pytest

from trainrig.launch.supervise.supervisor_output import notify


def python(code):
    return shlex.join([sys.executable, "-c", code])


def test_the_command_gets_variables(tmp_path):
    code = f"import os; open({str(tmp_path / 'told')!r}, 'w').write(os.environ['TRAINRIG_STATE'])"
    assert notify(python(code), 30, {"state": "failed", "message": "a\0b"}) == {"exit_code": 0}
    assert (tmp_path / "told").read_text() == "failed"


def test_the_command_runs_without_a_shell(tmp_path):
    echo = "import sys; print(sys.argv[1:]); sys.exit(3)"
    result = notify(f"{python(echo)} '$HOME;' `id` > {tmp_path}/x *", 30, {"message": "$(id)"})
    assert result == {
        "exit_code": 3,
        "problem": f"['$HOME;', '`id`', '>', '{tmp_path}/x', '*']",
    }
    assert not list(tmp_path.iterdir())


def test_a_slow_command_is_killed_with_its_children(tmp_path):
    alive = tmp_path / "alive"
    late = f"import time; time.sleep(1); open({str(alive)!r}, 'w')"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {late!r}])"
    assert notify(python(code), 0.4, {}) == {"problem": "took more than 0.4 s"}
    time.sleep(1)
    assert not Path(alive).exists()


@pytest.mark.parametrize("command", ["no-such-command-here", "/", "/etc/passwd"])
def test_a_command_that_cannot_start_is_only_reported(command):
    assert notify(command, 30, {}).keys() == {"problem"}
