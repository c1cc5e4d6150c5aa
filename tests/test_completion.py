"""Shell completion of `trainrig`: TAB in a real bash, and the scripts for zsh and fish."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig import hardware
from trainrig.launch.supervise.run_record import Home

BIN = Path(sys.executable).parent
# Do what readline does when TAB is pressed: call the completion function of `trainrig` with the
# words typed so far.
PRESS_TAB = """
eval "$(trainrig --show-completion)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
entry=$(complete -p trainrig); entry=${entry#*-F }; "${entry%% *}" trainrig "${!#}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


def environment(home: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(home),
        "TRAINRIG_HOME": "",
    }


def press_tab(folder: Path, *words: str) -> list[str]:
    """Return the completions that bash offers in `folder` for the last of `words`."""
    done = subprocess.run(
        ["bash", "--norc", "-c", PRESS_TAB, "bash", "trainrig", *words],
        cwd=folder,
        env=environment(folder / "state"),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("configs/web/curate.toml", "configs/web/notes.txt", "configs/web/pretrain.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "mine.yaml").touch()
    (tmp_path / ".hidden.toml").touch()
    return tmp_path


@pytest.mark.slow
def test_tab_completes_verbs_run_files_devices_clusters_and_runs(place: Path) -> None:
    assert {"pretrain", "posttrain", "plan", "predict"} == set(press_tab(place, "p"))
    files = ["configs/web/curate.toml", "configs/web/pretrain.toml"]
    assert press_tab(place, "curate", "") == [*files]  # only the one folder is entered
    assert press_tab(place, "check", "configs/web/pre") == files[1:]
    devices = hardware.load().devices
    assert press_tab(place, "plan", "hoffmann", "--device", "h") == [
        name for name in devices if name.startswith("h")
    ]
    assert press_tab(place, "cluster", "up", "kube") == ["kuberay/raycluster", "kuberay/rayjob"]
    assert press_tab(place, "cluster", "up", "mi") == ["mine.yaml"]
    assert press_tab(place, "submit", "pret") == ["pretrain"]
    record = Home.choose(str(place / "state" / "trainrig")).create("pretrain", str(place / "model"))
    assert press_tab(place, "logs", "") == [record.id]
    assert press_tab(place, "export", "--dtype", "b") == ["bfloat16"]


@pytest.mark.slow
def test_tab_reads_no_bucket_and_ends_quietly_without_matches(place: Path) -> None:
    assert press_tab(place, "stop", "--home", "s3://none-of-ours/home", "") == [""]
    assert press_tab(place, "check", "--hardware", "none.toml", "--device", "") == [""]
    assert press_tab(place, "curate", "no/such/fol") == [""]


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_there_is_a_script_for_other_shells(shell: str, word: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["trainrig"],
        env=environment(tmp_path) | {"_TRAINRIG_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert word in done.stdout
    assert "_TRAINRIG_COMPLETE" in done.stdout


def test_completion_is_installed_for_bash(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("# mine\n")
    subprocess.run(
        ["bash", "--norc", "-c", "trainrig --install-completion; true"],
        env=environment(tmp_path) | {"HOME": str(tmp_path)},
        capture_output=True,
        check=True,
        timeout=120,
    )
    sourced = (tmp_path / ".bashrc").read_text()
    assert sourced.startswith("# mine\n")
    script = subprocess.run(
        ["bash", "--norc", "-ic", "source ~/.bashrc; complete -p trainrig"],
        env=environment(tmp_path) | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "-F _trainrig_completion" in script.stdout
