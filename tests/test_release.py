"""A release has one version, files for its users and for hosted CI, a wheel and an sdist."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainrig

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# --- the version


def test_the_version_is_written_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    source = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert f'\n__version__ = "{trainrig.__version__}"\n' in source.read_text()


def test_the_papers_of_a_release_name_its_version() -> None:
    version = trainrig.__version__
    assert load(ROOT / "CITATION.cff")["version"] == version
    newest = re.search(r"^## (\d\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
    series = ".".join(version.split(".")[:2])
    assert f"\n| {series} | yes |\n" in (ROOT / "SECURITY.md").read_text()


# --- files for hosted CI and for issues


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_pins_its_actions(path: Path) -> None:
    flow = load(path)
    assert flow["permissions"] == {"contents": "read"}
    for job in flow["jobs"].values():
        assert job["timeout-minutes"]
        assert re.search(r"-\d", job["runs-on"]), "an image named latest changes under the tests"
        for step in job["steps"]:
            assert re.fullmatch(r"[\w./-]+@v\d+", step.get("uses", "a@v1"))
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_hosted_ci_runs_what_every_other_machine_runs() -> None:
    jobs = [job for path in WORKFLOWS for job in load(path)["jobs"].values()]
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    for path in re.findall(r"docker build -f (\S+)", "\n".join(commands)):
        assert (ROOT / path).is_file()
    versions = [
        step["with"]["python-version"]
        for job in jobs
        for step in job["steps"][1:2]
        if "setup-python" in step.get("uses", "")
    ]
    assert versions == ["3.11"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_an_issue_template_has_fields_with_labels(path: Path) -> None:
    template = load(path)
    assert template["name"] and template["description"]
    names = [field["id"] for field in template["body"]]
    assert len(set(names)) == len(names) > 1
    assert all(field["attributes"]["label"] for field in template["body"])
    assert any(field.get("validations", {}).get("required") for field in template["body"])


# --- the bill of materials


def make_bill() -> str:
    command = [sys.executable, ROOT / ".ci" / "sbom.py"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_bill_of_materials_lists_every_package_once_and_what_it_needs() -> None:
    text = make_bill()
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    parts = [bill["metadata"]["component"], *bill["components"]]
    references = [part["bom-ref"] for part in parts]
    assert len(set(references)) == len(references)
    assert {"torch", "ray", "pydantic"} <= {part["name"] for part in bill["components"]}
    for part in parts:
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        assert all(len(entry) == 1 for entry in part.get("licenses", ()))
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert set(needs) == set(references)
    assert {one for needed in needs.values() for one in needed} <= set(references)
    assert any(one.startswith("pkg:pypi/torch@") for one in needs[references[0]])
    assert len((ROOT / ".ci" / "sbom.py").read_text().splitlines()) <= 80
    assert make_bill() == text


# --- wheel and sdist


def test_ci_runs_the_wheel_in_an_empty_environment() -> None:
    assert "\nmake release " in (ROOT / ".ci" / "run").read_text()
    excepted = re.findall(r'^    "(\S+)\.",$', (ROOT / ".ci" / "release.py").read_text(), re.M)
    assert len(excepted) == 3
    for package in excepted:
        assert (ROOT / "platform" / package.replace(".", "/")).is_dir()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source archive, built from this checkout without a network."""
    at = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", at]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = at.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that is built from the source archive alone."""
    at = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    alone = ["--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, *alone, "-w", at, sdist], check=True)
    (built,) = at.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `trainrig` of a new environment with the wheel, and with this one's dependencies."""
    at = tmp_path_factory.mktemp("environment")
    venv.create(at, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install = ["--python", at / "bin" / "python", "install", "--no-deps", "--no-index", wheel]
    subprocess.run([*pip, *install], check=True)
    (site,) = (at / "lib").glob("python*/site-packages")
    # Folders that a .pth file adds are not searched for .pth files, so no checkout is importable.
    folders = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "dependencies.pth").write_text("\n".join(folders) + "\n")
    return at / "bin" / "trainrig"


def run(program: Path, *words: str | Path) -> str:
    """Run `trainrig WORDS` as a user without a checkout, and return its standard output."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "RAY_ADDRESS")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [program, *words],
        capture_output=True,
        text=True,
        cwd=program.parent,
        env=kept | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_archives_hold_what_they_should(sdist: Path, wheel: Path) -> None:
    version = trainrig.__version__
    assert sdist.name == f"trainrig-{version}.tar.gz"
    assert wheel.name == f"trainrig-{version}-py3-none-any.whl"
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "constraints.txt"} <= sources
    assert {"tests/test_release.py", "docs/commands.md", "cluster/Dockerfile"} <= sources
    assert not [name for name in sources if name.startswith((".venv", "quickstart/", "runs/"))]
    packed = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in packed}
    assert tops == {"trainrig", "trainrig_contrib", f"trainrig-{version}.dist-info"}
    assert f"trainrig-{version}.dist-info/licenses/LICENSE" in packed
    assert {"trainrig/py.typed", "trainrig/hardware.toml", "trainrig/cluster/aws.yaml"} <= {*packed}
    tables = {"trainrig/scaling/laws/published_laws.toml", "trainrig/train/run/metrics.md"}
    assert tables <= {*packed}


@pytest.mark.slow
def test_the_wheel_runs_in_an_environment_without_a_checkout(program: Path) -> None:
    assert json.loads(run(program, "--version", "--json"))["trainrig"] == trainrig.__version__
    (package,) = program.parents[1].glob("lib/python*/site-packages/trainrig")
    shipped = package / "configs" / "quickstart" / "pretrain.toml"
    assert json.loads(run(program, "check", shipped, "--json"))["run"]["stage"] == "pretrain"
    found = json.loads(run(program, "doctor", "--json"))
    severities = {check["subject"]: check["severity"] for check in found["checks"]}
    assert severities["packages"] == "ok"
