"""The README's commands as they are written, one after the other, after a whole quickstart."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(3_600)]


def commands_after_the_quickstart() -> list[list[str]]:
    """Those of the first block under `## Then`."""
    section = README.partition("\n## Then\n")[2]
    block = re.search(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert block
    return [shlex.split(line, comments=True) for line in block[1].splitlines() if line.strip()]


def test_every_command_works_in_the_state_that_the_one_before_left(tmp_path: Path) -> None:
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    program = str(Path(sys.executable).with_name("trainrig"))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    for words in [["trainrig", "quickstart"], *commands_after_the_quickstart()]:
        assert words[0] == "trainrig"
        ended = subprocess.run(
            [program, *words[1:]], capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert ended.returncode == 0, f"{shlex.join(words)}\n{ended.stderr}"
