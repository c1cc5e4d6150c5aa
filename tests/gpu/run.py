"""Run every test that needs a GPU, then the benchmark tables, where there is torch and pytest.

`make gpu` needs no Ray and no network. The other tests' conftest.py imports packages that such a
machine may not have, so these tests have a folder of their own, and pytest looks no further up.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OPTIONS = (
    *("-o", "addopts=", "--import-mode=importlib", "--confcutdir", str(HERE)),
    *("-p", "no:cacheprovider", "-q", "-rs", "-m", "gpu", str(HERE)),
)


def command() -> list[str]:
    """Return the command line of pytest."""
    return [sys.executable, "-m", "pytest", *OPTIONS]


def environment() -> dict[str, str]:
    """Return the environment with the package on the path and without pytest plug-ins."""
    found = [os.environ.get("PYTHONPATH"), f"{ROOT}/platform", f"{ROOT}/tests"]
    path = os.pathsep.join(filter(None, found))
    return os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def main() -> int:
    """Return the exit code: the first failure's, of pytest or a table, or 2 without a GPU."""
    if not torch.cuda.is_available():
        print(
            f"make gpu: torch {torch.__version__} sees no GPU on this machine; run it where "
            "`nvidia-smi` lists one, with PYTHON= a Python whose torch was built for CUDA",
            file=sys.stderr,
        )
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    # Compile ahead, so that measured rows find their kernels compiled.
    ahead = [sys.executable, str(HERE / "compile_ahead.py")]
    compiling = subprocess.Popen(ahead, cwd=ROOT, env=environment(), start_new_session=True)
    try:
        tests = subprocess.run(command(), cwd=ROOT, env=environment()).returncode
        if not tests:
            compiling.wait()
    finally:
        if compiling.poll() is None:  # rows are separate processes
            os.killpg(compiling.pid, signal.SIGKILL)
            compiling.wait()
    out = os.environ.get("OUT", f"{ROOT}/gpu-results")
    codes = [tests]
    tables = "attention_table.py", "step_table.py", "layout_table.py"
    for table in tables if not tests else ():
        arguments = [sys.executable, str(HERE / table), "--out", out]
        codes.append(subprocess.run(arguments, cwd=ROOT, env=environment()).returncode)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main())
