"""The uploaded package: complete, nothing else, and the same bytes from any installation."""

import io
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import trainrig
from trainrig.launch.submit import uploads
from trainrig.launch.submit.uploads import pack, pin_versions

HERE = Path(trainrig.__file__).parent


def test_the_archive_has_the_package_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(pack().data)) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names} == {"trainrig", "trainrig_contrib"}
    assert {
        "trainrig/__init__.py",
        "trainrig/hardware.toml",
        "trainrig/launch/supervise/entrypoint.py",
        "trainrig_contrib/cluster_check/schemas/kubernetes.json",
    } <= names
    wrong = [n for n in names if "/tests/" in n or "/." in n or n.endswith(".pyc")]
    assert not wrong
    sources = {
        path.relative_to(HERE.parent).as_posix()
        for package in (HERE, HERE.with_name("trainrig_contrib"))
        for path in package.rglob("*.py")
    }
    assert sources <= names


def test_an_installed_copy_packs_to_the_same_bytes(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages" / "trainrig"
    for package in (HERE, HERE.with_name("trainrig_contrib")):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, installed.with_name(package.name), ignore=ignored)
    (installed / "__pycache__").mkdir()
    (installed / "__pycache__" / "cli.pyc").write_bytes(b"of this interpreter")
    for folder in (".git", ".venv", "tests"):
        (installed / folder).mkdir()
        (installed / folder / "large").write_bytes(b"x" * 1000)
    (installed / "cli.py").touch()
    assert pack(installed) == pack(HERE)
    (installed / "cli.py").write_text("# changed\n")
    assert pack(installed).name != pack(HERE).name


def test_the_upload_alone_is_a_trainrig(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(pack().data)) as archive:
        archive.extractall(tmp_path)
    code = (
        "import trainrig.launch.supervise.entrypoint, trainrig.hardware as h; "
        "h.load(); print(h.__file__)"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert ended.stdout.strip() == str(tmp_path / "trainrig" / "hardware.py"), ended.stderr


def test_pinned_are_the_versions_here_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(pin.split("==") for pin in pin_versions())
    assert found["numpy"] == metadata.version("numpy")
    assert found["torch"] == metadata.version("torch").partition("+")[0]
    assert "ray" not in found and "moto" not in found
    assert found["obstore"] == metadata.version("obstore")  # of the extras `gcs` and `azure`

    def not_installed(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(uploads.metadata, "requires", not_installed)
    assert dict(pin.split("==") for pin in pin_versions()).items() <= found.items()
