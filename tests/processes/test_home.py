"""Processes without a home folder or a passwd entry."""

import os
import subprocess
import sys

import pytest

NAMES = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME")
FIND = """
import getpass, os, stat, sys
from pathlib import Path
from trainrig.processes.child_process import ensure_home

if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
before = dict(os.environ)
ensure_home()
found = os.environ["HOME"]
os.environ.clear()
os.environ.update(before)
ensure_home()
assert os.environ["HOME"] == found
mode = stat.S_IMODE(Path("~").expanduser().stat().st_mode)
print(os.environ["HOME"], oct(mode), getpass.getuser())
"""


def find(*arguments: str, **environment: str) -> list[str]:
    """Return the home folder that a process finds, its mode, and the name of its user."""
    bare = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, "-c", FIND, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, env={**bare, **environment})
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_without_an_entry_gets_a_home_of_its_own_for_as_long_as_it_runs() -> None:
    home, mode, name = find("61234")
    assert (mode, name) == ("0o700", "61234")
    assert not os.path.exists(home)  # noqa: PTH110


def test_a_home_that_is_not_there_is_passed_over_and_one_that_is_stays(tmp_path: object) -> None:
    made, mode, _ = find(HOME=f"{tmp_path}/missing", USER="me")
    assert made != f"{tmp_path}/missing"
    assert mode == "0o700"
    assert find(HOME=str(tmp_path), USER="me")[::2] == [str(tmp_path), "me"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize(
    "home", ["/", "/root/inside"], ids=["not writable", "not to be looked into"]
)
def test_a_home_of_no_use_is_passed_over(home: str) -> None:
    """A container that is run as another user has such a home."""
    made, mode, _ = find("61234", HOME=home)
    assert made != home
    assert mode == "0o700"
