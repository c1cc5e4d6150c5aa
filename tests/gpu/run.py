"""Runs every test that needs a GPU, then the benchmark tables, where there is torch and pytest.

`make gpu`, without Ray or a network. The other tests' conftest.py asks for what such a machine need
not have, so these have a folder of their own, and pytest looks no further up.
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
    """What pytest is started with."""
    return [sys.executable, "-m", "pytest", *OPTIONS]


def environment() -> dict[str, str]:
    """This process's, with the package to be found where it lies, and no plug-ins of pytest."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), f"{ROOT}/platform"]))
    return os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def main() -> int:
    """The exit code: that of what failed first, pytest or a table, or 2 where there is no GPU."""
    if not torch.cuda.is_available():
        print(
            f"make gpu: torch {torch.__version__} sees no GPU on this machine; run it where "
            "`nvidia-smi` lists one, with PYTHON= a Python whose torch was built for CUDA",
            file=sys.stderr,
        )
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    # Rows find their kernels compiled: what is compiled meanwhile is not measured.
    ahead = [sys.executable, str(HERE / "compile_ahead.py")]
    compiling = subprocess.Popen(ahead, cwd=ROOT, env=environment(), start_new_session=True)
    try:
        tests = subprocess.run(command(), cwd=ROOT, env=environment()).returncode
        if not tests:
            compiling.wait()
    finally:
        if compiling.poll() is None:  # its rows are processes of their own
            os.killpg(compiling.pid, signal.SIGKILL)
            compiling.wait()
    out = os.environ.get("OUT", f"{ROOT}/gpu-results")
    codes = [tests]
    tables = "attention_table.py", "step_table.py", "layout_table.py"
    for table in tables if not tests else ():
        told = [sys.executable, str(HERE / table), "--out", out]
        codes.append(subprocess.run(told, cwd=ROOT, env=environment()).returncode)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main())
