"""Build the source archive and the wheel into a folder, and run the wheel in an empty environment.

The wheel is built from the source archive alone. The environment gets what the wheel declares and
nothing else, so a module that imports an undeclared package fails here. Usage: release.py FOLDER
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Modules that import packages of extras, and those of the confined process, which sees no package.
NOT_ALONE = (
    "trainrig.evaluate.harness.",
    "trainrig.evaluate.confined.",
    "trainrig_contrib.datatrove_signals.",
)
IMPORT_ALL = f"""
import importlib, pkgutil
import trainrig, trainrig_contrib
failed = []
for package in (trainrig, trainrig_contrib):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name.startswith({NOT_ALONE!r}) or found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            if error.name != "triton":  # comes with torch for GPUs
                failed.append(f"{{found.name}}: {{error}}")
if failed:
    raise SystemExit("\\n".join(failed))
"""


def build(folder: Path) -> Path:
    """Write the source archive to `folder`, and the wheel built from it; return the wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    sdist = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder]
    subprocess.run(sdist, cwd=ROOT, check=True)
    (archive,) = folder.glob("*.tar.gz")
    alone = ["--no-build-isolation", "--no-deps", "--no-index"]
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", *alone, "-w", folder, archive]
    subprocess.run(wheel, check=True)
    (built,) = folder.glob("*.whl")
    return built


def run_in_empty_environment(wheel: Path) -> None:
    """Install `wheel` with its dependencies into a new environment, and run its commands there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True, symlinks=True)
        programs = Path(folder, "bin")
        tested = ["--no-compile", "-c", ROOT / "constraints.txt"]
        subprocess.run([programs / "pip", "install", "--quiet", *tested, wheel], check=True)
        subprocess.run([programs / "python", "-c", IMPORT_ALL], cwd=folder, check=True)

        def run(*words: str | Path) -> dict[str, object]:
            command = [programs / "trainrig", *words, "--json"]
            done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE)
            found: dict[str, object] = json.loads(done.stdout)
            return found

        (configs,) = Path(folder).glob("lib/python*/site-packages/trainrig/configs")
        run("check", configs / "quickstart" / "pretrain.toml")
        print(json.dumps(run("--version")))


if __name__ == "__main__":
    run_in_empty_environment(build(Path(sys.argv[1])))
