"""The core works without the package of extras, and says plainly what needs it."""

import subprocess
import sys
from pathlib import Path

import pytest

# Python as it is where only the core is installed.
WITHOUT = "import sys; sys.modules['trainrig_contrib'] = None\n"
CURATE = """
stage = "curate"
output = "out"
[[sources]]
name = "web"
paths = ["pages.jsonl"]
filters = [{ kind = "GopherQuality", words = "datatrove" }]
"""


def run_without_extras(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = f"{WITHOUT}from trainrig import cli; cli.main({list(arguments)!r})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ('words = "datatrove"', ["check", "curate.toml"]),
        ("trainrig cluster check", ["cluster", "check", "aws"]),
        ("trainrig cluster up", ["cluster", "up", "local"]),
    ],
)
def test_a_part_that_is_not_installed_is_named_in_one_line(
    what: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("curate.toml").write_text(CURATE)
    ended = run_without_extras(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"{what} needs the package trainrig_contrib" in ended.stderr
