"""The commands that install extras: from the repository, or by the names of their packages."""

import re
import tomllib
from pathlib import Path

import pytest

from trainrig import optional_packages
from trainrig.optional_packages import describe_install, list_requirements

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_clone_installs_an_extra_from_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert describe_install("wandb") == "pip install -e '.[wandb]'"
    monkeypatch.chdir(ROOT.parent)
    assert describe_install("wandb") == f"pip install -e '{ROOT}[wandb]'"


def test_an_installed_wheel_names_the_packages_of_an_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(optional_packages, "_REPOSITORY", tmp_path)
    assert describe_install("wandb") == f"pip install '{EXTRAS['wandb'][0]}'"
    assert list_requirements("none") == []


def test_no_message_and_no_page_installs_trainrig_from_an_index() -> None:
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("platform/**/*.py")]
    for file in files:
        if file.name != "optional_packages.py":
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"pip install '?trainrig", text), file


def test_the_extras_that_code_names_exist() -> None:
    for file in ROOT.glob("platform/**/*.py"):
        for extra in re.findall(r"""describe_install\(["']([\w-]+)["']\)""", file.read_text()):
            assert extra in EXTRAS
