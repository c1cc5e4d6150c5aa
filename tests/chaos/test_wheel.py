"""The package as a wheel, in an environment and a folder of its own: no checkout is near."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("trainrig", "_trainrig", "__editable__", "__pycache__", "pip")

pytestmark = [pytest.mark.chaos]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment that holds the wheel, and our dependencies."""
    at = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", at, ROOT]
    subprocess.run(command, check=True)
    (wheel,) = at.glob("trainrig-*.whl")
    venv.create(at / "venv", with_pip=True)
    python = at / "venv" / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True)
    dependencies = at / "dependencies"
    dependencies.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(OURS):
            (dependencies / each.name).symlink_to(each)
    (site,) = (at / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    return at / "venv" / "bin"


def run(bin: Path, cwd: Path, *arguments: str | Path) -> str:
    """What `trainrig ARGUMENTS` prints, in the empty folder `cwd`."""
    environment = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "RAY_ADDRESS")}
    ended = subprocess.run(
        [bin / "trainrig", *arguments], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_what_is_shipped_is_found_where_it_was_installed(installed: Path, tmp_path: Path) -> None:
    assert "trainrig 0." in run(installed, tmp_path, "--version")
    (package,) = installed.parent.glob("lib/python*/site-packages/trainrig")
    for run_file in sorted((package / "configs" / "quickstart").glob("*.toml")):
        if run_file.stem != "pages":  # the quickstart's own: no verb takes it
            assert "stage = " in run(installed, tmp_path, "check", run_file)
    assert str(package) in run(installed, tmp_path, "cluster", "check", "local")


@pytest.mark.ray
def test_the_quickstart_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    run(installed, tmp_path, "quickstart", "--workers", "1", "--json")
    assert (tmp_path / "quickstart" / "report.html").is_file()
