"""The core works without the package of extras, and says plainly what needs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Python as it is where only the core is installed.
WITHOUT = "import sys; sys.modules['trainrig_contrib'] = None\n"


def run_without_extras(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = f"{WITHOUT}from trainrig import cli; cli.main({list(arguments)!r})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("trainrig cluster check", ["cluster", "check", "aws"]),
        ("trainrig cluster up", ["cluster", "up", "local"]),
    ],
)
def test_a_part_that_is_not_installed_is_named_in_one_line(what: str, arguments: list[str]) -> None:
    ended = run_without_extras(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"{what} needs the package trainrig_contrib" in ended.stderr
