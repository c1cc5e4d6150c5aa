"""Files that a run file names are uploaded with it."""

from pathlib import Path

import pytest

from trainrig import config
from trainrig.launch.submit.run_paths import find_paths
from trainrig.launch.submit.uploads import with_shipped_files
from trainrig.rl.reinforcement_run_file import ReinforcementLearning


@pytest.fixture
def run(tmp_path: Path) -> ReinforcementLearning:
    for name in ("rewards.py", "game.py"):
        (tmp_path / name).write_text(f"# {name}\n")
    reward = {"kind": "PythonFunction", "file": str(tmp_path / "rewards.py")}
    given = {
        "checkpoint": "runs/tuned",
        "output": "runs/rl",
        "prompts": {"paths": ("prompts.jsonl",)},
        "rollouts": {"prompts": 4, "samples": 4, "micro_batch": 8},
        "rewards": ({"kind": "ExactAnswer"}, reward),
        "environment": {"kind": "PythonEnvironment", "file": str(tmp_path / "game.py")},
        "training": {"steps": 1},
    }
    return ReinforcementLearning.model_validate(given)


def test_shipped_files_are_distinguished_from_inputs(run: ReinforcementLearning) -> None:
    found = {place.key: place.use for place in find_paths(run)}
    assert found["rewards[1].file"] == found["environment.file"] == "shipped"
    assert found["checkpoint"] == "input"


def test_a_run_that_travels_is_the_same_and_names_copies(
    run: ReinforcementLearning, tmp_path: Path
) -> None:
    moved, files = with_shipped_files(run, "s3://home/runs/rl-1/files")
    assert config.extract_identity(moved) == config.extract_identity(run)
    assert sorted(files.values()) == [b"# game.py\n", b"# rewards.py\n"]
    paths = [place.path for place in find_paths(moved) if place.use == "shipped"]
    assert sorted(paths) == sorted(files)
    assert all(path.startswith("s3://home/runs/rl-1/files/") for path in paths)
    assert moved.rewards[0] is run.rewards[0] and moved.checkpoint == run.checkpoint
    (tmp_path / "rewards.py").write_text("# changed\n")
    _, changed = with_shipped_files(run, "s3://home/runs/rl-1/files")
    assert len(set(files) & set(changed)) == 1
