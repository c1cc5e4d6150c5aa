"""run.sh is read as a shell reads it, and only `trainrig` lines are stages."""

from pathlib import Path

import pytest

from trainrig.errors import ConfigError
from trainrig.projects.stage_list import ProjectStage, format_script, read_stages


def test_stages_are_read_as_they_were_written(tmp_path: Path) -> None:
    stages = [ProjectStage(("tokenize", "a b.toml"), "note"), ProjectStage(("export", "x", "y"))]
    (tmp_path / "run.sh").write_text(format_script(stages))
    assert [stage.words for stage in read_stages(str(tmp_path))] == [s.words for s in stages]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (None, "run.sh: no such file; name a folder that `trainrig init` wrote"),
        ("#!/bin/sh\n", "run.sh: has no stage"),
        ("trainrig tokenize a.toml\nrm -r b\n", r"run.sh:2: `rm -r b` is not a stage; write"),
        ("trainrig run .\n", r"run.sh:1: `trainrig run .` is not a stage"),
        ("trainrig 'tokenize\n", "run.sh:1: not a shell command: No closing quotation"),
        ("trainrig --log-level debug run .\n", "run.sh:1: .* is not a stage"),
        ("trainrig tokenize a.toml && echo done\n", "run.sh:1: .* or run the script with `sh"),
        ("trainrig tokenize a.toml>log\n", "run.sh:1: .* is not a stage"),
        ("trainrig tokenize \udcff.toml\n", "run.sh: not UTF-8"),
    ],
)
def test_a_script_with_anything_else_is_refused(
    tmp_path: Path, script: str | None, problem: str
) -> None:
    if script is not None:
        (tmp_path / "run.sh").write_bytes(script.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=problem):
        read_stages(str(tmp_path))
